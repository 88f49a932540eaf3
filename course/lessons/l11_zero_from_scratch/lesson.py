# ---
# title: ZeRO from scratch
# goal: Keep each number on one rank only.
# able:
#   - write stage 1 of ZeRO
#   - predict which stage fits into a memory limit
# more:
#   - say what no stage makes smaller
#   - read stage 3, and count what each stage sends
#   - shard a model with FSDP2, and say what its settings cost
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 21}
# ranks: 4
# warm-up:
#   - ask: Which two collectives make an all-reduce?
#     answer: >-
#       A reduce-scatter, after which each rank has one chunk of the sum, and an all-gather, which sends all
#       chunks to every rank.
#   - ask: You train with Adam in float32. How many bytes do you need per parameter, activations left out?
#     answer: >-
#       16: the weight, its gradient and Adam's two averages, 4 bytes each.
#   - ask: In data parallelism, how do the weights of two ranks differ after a step?
#     answer: >-
#       Not at all: the ranks start equal, and all take the same step.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Four copies
#
# A model does not fit into your GPU. Do three more GPUs help?
#
# Not with data parallelism alone. Every rank keeps all **model states**: the weights, their gradients, and the **optimizer state** (Adam's two averages per weight).
#
# So **ZeRO**, the *Zero Redundancy Optimizer*, **shards** tensors: each rank keeps one slice, its shard. Only this rank, the **owner**, updates the slice.
#
# Stage 0 of ZeRO is plain data parallelism. Guess: of four numbers per parameter, how many does a rank keep in stage 3?

# %%
from course.lessons.l11_zero_from_scratch.figures import draw_kept

draw_kept(ranks=4)

# %% [markdown] tags=["subslide"]
# We write stage 1. The ranks share 128 images of digits:

# %%
# %%px --save 11_zero.py
"""ZeRO, stage by stage, on data/digits.npz."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # rounding stays far below the digits we print

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"][comm.rank : 128 : comm.size] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"][comm.rank : 128 : comm.size]).long()

# %% [markdown]
# We cut every tensor, so each rank owns a slice of every layer:

# %% tags=["source: course_lib.parallel.plain_zero:own_slice"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# A **reduce-scatter** sums the full gradients of all ranks, and sends each owner its slice:

# %% tags=["source: course_lib.parallel.plain_zero:sum_slice"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# An **all-gather** builds the full tensor from all ranks' slices:

# %% tags=["source: course_lib.parallel.plain_zero:gather"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# In stage 1, Adam gets only `mine`, this rank's slices. A slice is a view: when Adam changes it, that part of the full tensor changes, too:


# %%
# %%px --save 11_zero.py
def network(layers=0, width=128):  # section 4 adds layers
    torch.manual_seed(0)  # the same weights on every rank
    middle = [nn.Linear(width, width) for _ in range(layers)]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *middle, nn.Linear(width, 10))


def train(comm, model, *hooks, steps=60):
    mine = [nn.Parameter(own_slice(comm, full)) for full in model.parameters()]
    for register in hooks:  # for section 3; none here
        register(comm, model, mine)
    optimizer = torch.optim.Adam(mine, lr=0.01)  # averages for our slices only
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / 128  # images of all ranks
        loss.backward()
        update(comm, model, mine, optimizer)
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, stage {1 + len(hooks)}, last loss {loss:.6f}")


# %% [markdown] tags=["slide"]
# ## 2 · The last line of the loop
#
# A colleague wrote `update` and tested it on one rank. The loss fell from 2.3 to 0.001087, as in ordinary training:


# %%
# %%px
def update(comm, model, mine, optimizer):
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_slice(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# **Vote:** on four ranks, training (a) ends at 0.001087 again, (b) ends far above, without an error, (c) stops with an error.

# %%
# %%px
train(comm, network())

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Each rank updates only its own slices, so the ranks train different networks. On one rank, a slice is the full tensor, so the
# test passed.
#
# </details>

# %% tags=["exercise: 11.5", "subslide"]

# %% [markdown] tags=["notes"]
# Five minutes up to the vote, six for the exercise. The usual slip is to gather before the step. Ask: whose numbers are new, and who has seen them?

# %%
# %%px --save 11_zero.py
if __name__ == "__main__":
    train(comm, network())

# %%
# !mpiexec -n 1 python code/11_zero.py  # is the file still right on one rank?

# %% [markdown] tags=["slide"]
# ## 3 · Gradients and weights
#
# During backward, stage 1 piles up the full gradients of all layers. In **stage 2**, PyTorch calls a **hook**, a function of ours, as soon as a tensor's
# gradient is complete:

# %% tags=["source: course_lib.parallel.plain_zero:sum_in_backward"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# A layer cannot run with a slice of its weights. In **stage 3**, hooks gather its full weights just before it runs, in forward and again in backward,
# and free them right after.
#
# **Vote:** your `update` still calls `sum_slice` and `gather`. In stage 3, (a) gradients are summed twice, so the loss is wrong, (b) a call fails: nothing full is left, (c) the loss is 0.001087.

# %%
# %%px
from course_lib.parallel.plain_zero import gather_in_time  # stage 3's hooks: we read them in More

train(comm, network(), sum_in_backward, gather_in_time)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Hooks have done both jobs, so both `if` lines skip them.
#
# ZeRO changes where numbers are kept and who updates them. Every rank still runs every layer in full.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Three limits
#
# Which stage do you need? We train a larger network on two ranks, so a slice is half. In stage 0, each rank keeps:
#
# ```
# 8.4 million parameters, 8 bytes per number:  weights 64   +   gradients 64   +   optimizer state 128   =   256 MiB
#
# on top, up to 12 MiB:                    activations (no stage shards them); from stage 2 on, full tensors of the layer that runs
# ```
#
# We limit each rank to 184 MiB (Linux only):

# %%
predict("The lowest stage that fits into 184 MiB?", None)

# %% [markdown]
# We try two steps of stage 1. If a rank fails, the command shows the line and the error:

# %%
from course_lib.effects import LIMITED, runs_within  # LIMITED: the program of a job under a limit

first = "from course_lib.parallel.plain_zero import gather_in_time; train(comm, network())"  # no limit yet
large = "train(comm, network(32, 512), steps=2)"
job = f'mpiexec -n 2 python -m mpi4py -c "{LIMITED}" 184 code/11_zero.py "{large}" "{first}"'
# !MALLOC_MMAP_THRESHOLD_=100000 {job} 2>&1 | grep -aoE "^    (loss|update).*|Default.*bytes" | sort -u

# %% [markdown]
# A rank asked for 2 MiB, the gradient of one layer, and died. **Vote:** did it die in the backward of (a) the first step, (b) the second? We run a single step:


# %%
def trains(mib, how):
    return runs_within(mib, 2, "code/11_zero.py", f"train(comm, network(32, 512), {how})", first)


trains(184, "steps=1")  # stage 1

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Adam makes its averages at the end of the first step. They stay:
#
# ```
#                                weights   gradients   optimizer state    MiB per rank
# at the end of backward 1         64    +    64     +        0        =  128
# at the end of backward 2         64    +    64     +       64        =  192
# ```
#
# So test a memory plan with at least two steps. Stage 1 needs at most 192 + 12 = 204 MiB: 224 should do.
#
# </details>
#
# Does stage 2 train in 184?

# %%
print("stage 1 trains in 224 MiB:", trains(224, "steps=3"))
fits = trains(184, "sum_in_backward, steps=3")  # stage 2
outcome("The lowest stage that fits into 184 MiB?", 2 if fits else "not 2", word="it is stage")

# %% [markdown]
# **Your turn:** what is the smallest limit in which *stage 3* trains? Guess, then find it in four runs:

# %%
trains(154, "sum_in_backward, steps=3")  # stage 2, in a limit that is too small for it

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Stage 3, `sum_in_backward, gather_in_time`, needs 128 MiB, and up to 12 on top. (We found 140.)
#
# ```
#            weights   gradients   optimizer state    MiB per rank
# stage 2      64    +    32     +       64         =  160
# stage 3      32    +    32     +       64         =  128
# ```
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# 64 GPUs, with one rank each, train 8 billion parameters. Per parameter, then per GPU:
#
# ```
#            weights   gradients   optimizer state
#            16 bits   16 bits     32 bits: a copy of the weights, two averages
# bytes        2           2       4 + 4 + 4 = 12    per parameter
#
# stage 0     16      +   16      +      96          =  128     GB per GPU
# stage 1     16      +   16      +       1.5        =   33.5
# stage 2     16      +    0.25   +       1.5        =   17.75
# stage 3      0.25   +    0.25   +       1.5        =    2
#
# on top: activations; in stages 2 and 3 full gradients of a layer or a few; in stage 3 also full weights:
#         PyTorch's FSDP gathers one or two layers, and what is in no layer; DeepSpeed (lesson 12) up to 10⁹ weights
#
# FSDP does stage 3 by default. In mixed precision, FSDP2 keeps slices of 32 bits: 4 + 4 + 8 bytes per parameter, also 2 GB.
# ```

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also weights.
# - With an optimizer that works element by element, such as Adam, ZeRO trains as data parallelism does, up to rounding. (Clipping by the norm needs one
#   more all-reduce. Batch norm and dropout act per rank, as before.)
# - Choose the lowest stage that fits with your batch. Stage 3 gathers weights twice per micro-batch, which costs time unless computation hides it.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Data parallelism needs 20 GB more than each of your 8 GPUs has. What must you know to choose (a) stage 1, (b) stage 3, (c) a smaller micro-batch?
#
# <details><summary>What to listen for</summary>What fills the memory. Choose (a) if 7/8 of the optimizer state is over 20 GB, (c) if
# activations fill it (accumulate, so the batch stays), else (b).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# The core said: no stage shards activations. Does that matter? We count them for the network that we trained:
#
# ```
# per image        64 inputs + 128 hidden numbers + 10 outputs  =    202
# per rank         32 images · 202                              =  6,464
# per parameter    6,464 / 9,610 parameters                     =   0.67
# ```
#
# **Vote:** in stage 0, a rank keeps 4 + 0.67 numbers per parameter. In stage 3, on four ranks, with the running layer left out: about (a) a quarter of this, (b) a third, (c) half.

# %%
draw_kept(ranks=4, activations=6464 / 9610, stages=[0, 3])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 4/4 + 0.67 = 1.67 of 4.67 numbers. On 64 ranks, with 32 images each, it would be 4/64 + 0.67, and nearly all of that is activations. More ranks shrink model states. Within
# data parallelism, fewer images per rank, numbers of fewer bits, or computing activations again in backward (lesson 08) shrink the rest. Tensor and spatial parallelism (lessons 09 and 10) cut
# activations, too.
#
# The layer that runs comes on top. Here, the first layer has 8,320 of 9,610 parameters, so stage 3 saves little at its peak. In a deep network, one layer is a small part.
#
# </details>
#
# Before you read on: can you use the core in three new situations?

# %% tags=["exercise: 11.q4"]

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q5"]

# %% [markdown]
# ### How does a layer run without its weights?
#
# In stage 3, a rank keeps only a slice of each weight, and yet every layer runs with full weights. In the core, `gather_in_time` did this, but we did not read it. Now we do.
#
# Follow one layer through a step. Three things happen to it, and hooks do the work:
#
# 1. Forward is about to run the layer. The hook `before` gathers its weights.
# 2. Forward has run the layer. The hook `after` frees the weights. They will be needed again, so `after` also puts a hook on the layer's output: when backward gets there, it calls
#    `before` once more.
# 3. In backward, the gradient of a weight is complete. Hooks run in the order in which they were registered: stage 2's hook sums the gradient, then `free` frees the weight.
#
# How do you free a tensor that autograd and the layer still hold? We take away its memory, and leave the tensor itself in place:

# %% tags=["source: course_lib.parallel.plain_zero:free"]
# %%px --save 11_zero.py

# %% tags=["source: course_lib.parallel.plain_zero:gather_in_time"]
# %%px --save 11_zero.py

# %% [markdown]
# Your file now has stage 3. To try it, add the line `train(comm, network(), sum_in_backward, gather_in_time)` at the end of the file, indented like the line above it, and run `mpiexec -n 4 python code/11_zero.py`.
#
# #### Does less memory mean more bytes sent?
#
# Each stage keeps less than the stage before. Does it send more in return? Let the communicator count.
#
# What shall it count? In a ring of N ranks (lesson 04), each rank sends n · (N − 1)/N numbers per reduce-scatter of n numbers, and the same per all-gather. An all-reduce
# is both in turn, so it sends twice as many. The factor (N − 1)/N is everywhere, so `Counting` leaves it out and adds up n. An algorithm other
# than the ring may send other amounts, but in the same collectives.
#
# Before you predict, look back at the hooks. In one step, which collectives do a weight and its gradient go through in stage 2? And in stage 3?

# %%
predict("How many times as many bytes does a rank send in stage 3 as in stage 2?", None)

# %%
# %%px
from course_lib.parallel.plain_zero import update  # the right one, if yours is not yet


class Counting(MPI.Intracomm):
    """A communicator that adds up the numbers that a rank sends, without the factor (N - 1)/N."""

    sent = 0

    def Reduce_scatter(self, sendbuf, recvbuf):
        Counting.sent += sendbuf.numel()
        super().Reduce_scatter(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf, recvbuf):
        Counting.sent += recvbuf.numel()
        super().Allgatherv(sendbuf, recvbuf)


def sent_in(stage):
    Counting.sent = 0
    train(Counting(comm), network(), *(sum_in_backward, gather_in_time)[: stage - 1], steps=10)
    return Counting.sent / 10 / 9610


sent = [sent_in(stage) for stage in (1, 2, 3)]

# %%
sent = cluster["sent"][0]
print("numbers per parameter and step, times (N - 1)/N, stages 1 to 3:", *(f"{each:.2f}" for each in sent))
outcome(
    "How many times as many bytes does a rank send in stage 3 as in stage 2?",
    sent[2] / sent[1],
    word="counted",
)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 1.5 times. In stages 1 and 2, a step has one reduce-scatter for the gradients and one all-gather for the new weights. Together, the two are the all-reduce of a ring, so stages 1
# and 2 send as much as stage 0. (DeepSpeed's defaults send more: lesson 12.) Stage 3 gathers the weights for forward, frees them, and gathers them again for backward. That makes three collectives instead of two.
#
# ZeRO's paper has the same counts: 2, 2, 2 and 3 numbers per parameter in stages 0 to 3. They hold for one backward per step. If you accumulate the gradients of several backwards,
# stages 0 and 1 can wait and sum once. Stage 2 must sum after each, since it does not keep full gradients. Stage 3 must also gather each time. (Our short code expects one
# backward: `sum_slice` would replace the first gradient by the second.)
#
# </details>
#
# #### Who writes these hooks in practice?
#
# PyTorch does. Its **FSDP** (*Fully Sharded Data Parallel*) does by default what ZeRO calls stage 3. The second version, **FSDP2**, is one function, `fully_shard`. It registers
# hooks of the same kind as those that you have just read.
#
# Two things differ. FSDP2 gathers the next layer while this one runs, so two layers may be full at a time. With mixed precision, it keeps slices in float32 and gathers them in 16 bits.
#
# Each call of `fully_shard` makes one group, gathered together. So we call it for every layer (in a Transformer, for every block), and at last for the model, which takes
# what is left. A single call for the whole model would gather the whole model.
#
# One setting decides whether the gradients are right. By default, FSDP2 sums gradients and divides by the number of ranks. That fits a loss which is a mean over the rank's own
# images. Ours is already divided by the global batch, so we set FSDP2's divisor to 1.

# %%
# %%px --timeout 100
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.parallel.ddp import start_group

start_group(comm, "mpi4py")  # PyTorch's collectives, through MPI


def train_fsdp(mesh):
    """As `train`, with FSDP2 on a mesh of ranks; the last loss, and how many weights this rank keeps."""
    model = network()
    for layer in (model[0], model[2], model):  # the two linear layers, then what is left
        fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / 128
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return comm.allreduce(loss.item()), sum(each.to_local().numel() for each in model.parameters())


# %% [markdown]
# The next choice is about slow links. With FSDP on several machines, each layer's weights also come from other machines, over slower links.
# **HSDP**, hybrid sharding, shards the model only among the ranks of a group, often one machine. Each group then keeps a full copy of the model states, and must have room for it.
#
# We pretend that two of our ranks are one machine and two are another. **Predict**, for FSDP and for HSDP: how many of the 9,610 weights does rank 0 keep? Does
# the last loss equal that of our stage 3?

# %%
# %%px --timeout 100
train(comm, network(), sum_in_backward, gather_in_time)
sharded = train_fsdp(init_device_mesh("cpu", (4,)))
hybrid = train_fsdp(init_device_mesh("cpu", (2, 2), mesh_dim_names=("machines", "ranks")))

# %%
for name in ("sharded", "hybrid"):
    loss, numbers = cluster[name][0]
    print(f"{name:12} loss {loss:.6f}, rank 0 keeps {numbers} numbers")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Both losses equal ours, to all six decimals. With FSDP, rank 0 keeps 2,467 weights, a little more than a quarter. FSDP2 cuts by rows, and the last layer has ten: the ranks get 3, 3,
# 3 and 1 of them. Our code cuts between any two numbers.
#
# With HSDP, rank 0 keeps half of the weights, because only two ranks share them. In return, weights are gathered inside a machine, and only slices of gradients cross the
# network between machines. On thousands of ranks, there is a second reason for HSDP: the latency of an all-gather in a ring grows with the number of ranks in it.
#
# </details>
#
# So HSDP keeps more memory to send less over slow links. FSDP2 has one more setting of this kind:

# %% tags=["exercise: 11.q6"]

# %% [markdown]
# <details><summary>Open after you have answered</summary>
#
# Try it: in the cell with `gather_in_time`, comment out the line that registers `after`. Run that cell and the two cells that count again. Stage 3 now sends 2.00 instead of 3.00, since
# gathered weights stay until backward frees them. Restore the line afterwards, and run its cell again.
#
# Now you know what ZeRO's stages are called in PyTorch:
#
# ```
# stage 1    ZeroRedundancyOptimizer, with DDP: sends 3 numbers, not 2; FSDP2 has no stage 1
# stage 2    nearly: fully_shard(…, reshard_after_forward=False)
# stage 3    fully_shard(…), with its defaults
# HSDP       fully_shard(…, mesh=…), with a mesh of two dimensions
# ```
#
# </details>

# %% [markdown]
# ### What would a much larger model need?
#
# Our stages train a network of 9,610 parameters. Let the model grow until something breaks. What breaks first?
#
# **One layer is too large.** While a layer runs, stage 3 gathers all of its weights on every rank, so more ranks do not help. The usual answer is tensor parallelism
# (lesson 09): a rank computes with its part of the layer only. A rarer one, *memory-centric tiling*, keeps to ZeRO: it splits a linear layer into many small linear layers, the
# tiles. Stage 3 then treats each tile as a layer.
#
# **Vote:** our code cuts a layer of 2.1 MB of weights into 16 tiles. At any moment of a step, how much of the layer is gathered? At most (a) all tiles, since backward needs them,
# (b) two tiles, since one follows the other, (c) one tile.

# %%
# %%px
from course.lessons.l11_zero_from_scratch.runs import most_gathered  # in one step of the library's stage 3

gathered = {tiles: most_gathered(comm, tiles) for tiles in (1, 4, 16)}

# %%
for tiles, nbytes in cluster["gathered"][0].items():
    print(f"tiles: {tiles:2}, at most {nbytes / 1000:6.1f} kB of weights gathered")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): 131.6 kB is a sixteenth. Our code frees a tile before it gathers the next, in forward and in backward. So it computes nothing while it gathers. On a cluster, libraries
# fetch the next tile, or the next layer, while this one computes. They wait less, but need room for two at least, so (b) is closer for them.
#
# </details>
#
# **Even a slice is too large.** Tiles shrink what a rank gathers, not what it keeps. If the slices themselves do not fit, a GPU can **offload** them to the host's memory or to a
# disk. We have no GPU here, so we move Adam's averages one step further down, from memory to files.
#
# The first cell shows how the library makes a tensor in a file. The second trains with our stage 2, written as a class, `Zero2`. There, `offload_state` replaces each of Adam's averages
# by such a tensor. Adam itself stays as it is. **Predict:** how many bytes are in the files of all four ranks together? Our model has 9,610 parameters.

# %% tags=["source: course_lib.parallel.zero:in_file"]
# %%px

# %%
# %%px
import tempfile

from course_lib.parallel.zero import Zero2, offload_state

model = network()
zero = Zero2(comm, model, lambda slices: torch.optim.Adam(slices, lr=0.01))
with tempfile.TemporaryDirectory() as name:
    in_files = offload_state(zero.optimizer, Path(name), comm.rank)
    for _ in range(10):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / 128
        loss.backward()
        zero.step()
        zero.zero_grad()
    offloaded = comm.allreduce(loss.item())
    del zero
train(comm, network(), sum_in_backward, steps=10)

# %%
print(f"loss with files: {cluster['offloaded'][0]:.6f}")
print(f"bytes in files: {sum(cluster['in_files']):,}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 2 · 8 · 9,610 = 153,760 bytes: two averages per parameter, each kept by its owner only. Without ZeRO, it would be four times as much. Both losses are 0.537938: Adam reads and writes
# the same numbers, but from a file. So here, offloading changes no result. With large files, each step waits for the disk, unless computing hides it.
#
# </details>

# %% [markdown]
# ## References
#
# - S. Rajbhandari and others, [ZeRO](https://arxiv.org/abs/1910.02054), 2020: the stages, model states, and ZeRO-R for the rest.
# - J. Ren and others, [ZeRO-Offload](https://arxiv.org/abs/2101.06840), 2021; S. Rajbhandari and others,
#   [ZeRO-Infinity](https://arxiv.org/abs/2104.07857), 2021: offloading, and tiles.
# - Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), 2023; PyTorch,
#   [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# - G. Wang and others, [ZeRO++](https://arxiv.org/abs/2306.10209), 2023: stage 3 with fewer bytes between machines.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022, says that ZeRO needs 64 times less memory and sends as much as data parallelism. The first holds for the
#   model states in stage 3 on 64 ranks, the second for stages 1 and 2.
# - A. Awan and others, *OC-DNN*, HiPC 2018: *out-of-core* models, whose training does not fit into one device's memory.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
