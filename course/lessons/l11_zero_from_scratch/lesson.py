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
# minutes: {core: 20, more: 20}
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
# A model does not fit into your GPU. Do three more GPUs help? Not in data parallelism (lesson 06), because every rank keeps all **model states**: weights, gradients,
# and Adam's two averages per weight, its **optimizer state**. This is stage 0:

# %%
from course.lessons.l11_zero_from_scratch.figures import draw_kept

draw_kept(ranks=4, stages=[0])

# %% [markdown] tags=["subslide"]
# Ranks 1 to 3 keep copies. **ZeRO**, the *Zero Redundancy Optimizer*, **shards** more in each stage. Of what is sharded, each rank keeps one slice:
#
# ```
#            weights     gradients     optimizer state
# stage 1    full        full          slice
# stage 2    full        slice         slice
# stage 3    slice       slice         slice
# ```
#
# A slice's **owner** keeps and updates it. We write stage 1 first:

# %%
# %%px --save 11_zero.py
"""ZeRO, stage by stage: trains a network on data/digits.npz."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"][:128] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"][:128]).long()

# %% tags=["source: course_lib.parallel.plain_zero:own_slice"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# After backward, each rank has gradients of its own images. A **reduce-scatter** adds them up, and sends each owner only its slice:

# %% tags=["source: course_lib.parallel.plain_zero:sum_slice"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# The optimizer gets only this rank's slices, `mine`. They are views into the weights, so the optimizer changes the model:


# %%
# %%px --save 11_zero.py
def train(comm, stage, steps=60, layers=0, width=128):
    """Train, and print the last loss."""
    torch.manual_seed(0)  # the same weights on every rank
    middle = [nn.Linear(width, width) for _ in range(layers)]
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), *middle, nn.Linear(width, 10))
    mine = [nn.Parameter(own_slice(comm, full)) for full in model.parameters()]
    if stage >= 2:
        sum_in_backward(comm, model, mine)  # section 3 has these two
    if stage == 3:
        gather_in_time(comm, model, mine)
    optimizer = torch.optim.Adam(mine, lr=0.01)
    x, y = (each.tensor_split(comm.size)[comm.rank] for each in (images, labels))
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(images)
        loss.backward()
        update(comm, model, mine, optimizer)
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, stage {stage}, last loss {loss:.6f}")


# %% [markdown] tags=["slide"]
# ## 2 · The last line of the loop
#
# The loop ends with `update`. A colleague tested this version on one rank, and the last loss was right: 0.001087.


# %%
# %%px
def update(comm, model, mine, optimizer):
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_slice(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# **Vote:** on four ranks, (a) MPI reports an error, (b) the loss is 0.001087 again, (c) it is much higher.

# %%
# %%px
train(comm, stage=1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): the loss is 1.10, and no rank reports an error. On one rank, a slice is the full tensor, so the test passed. On four, which weights does a rank update?
# Which does its next forward use?
#
# </details>
#
# Your second tool, the **all-gather**, fills a tensor with all ranks' slices:

# %% tags=["source: course_lib.parallel.plain_zero:gather"]
# %%px --save 11_zero.py

# %% tags=["exercise: 11.5", "subslide"]

# %% [markdown] tags=["notes"]
# Five minutes up to the vote, six for the exercise. The usual slip is to gather before the step. Ask: whose numbers are new, and who has seen them?

# %%
# %%px --save 11_zero.py
if __name__ == "__main__":
    train(comm, stage=1)

# %% [markdown]
# Is the file still right on one rank?

# %%
# !mpiexec -n 1 python code/11_zero.py

# %% [markdown] tags=["slide"]
# ## 3 · Gradients and weights
#
# Full gradients stay in memory until backward ends. **Stage 2** sums and drops them earlier, in a **hook**: a function that PyTorch calls at a given moment, here
# when one gradient is complete.

# %% tags=["source: course_lib.parallel.plain_zero:sum_in_backward"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# A layer needs its full weights. So in **stage 3**, hooks gather them just before it runs, in forward and again in backward, and free them right after (code in More).
#
# **Vote:** which of the two end at 0.001087? (a) Neither, (b) only stage 2, (c) both.

# %%
# %%px
from course_lib.parallel.plain_zero import gather_in_time

for stage in (2, 3):
    train(comm, stage)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Layers still run with full weights, and weights get the same summed gradients. ZeRO changes where numbers are kept, not what is computed.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · What is left?
#
# Forward also keeps **activations** for backward:
#
# ```
# per image        64 inputs + 128 hidden numbers + 10 outputs  =    202
# per rank         32 images · 202                              =  6,464
# per parameter    6,464 / 9,610 parameters                     =   0.67
# ```
#
# **Vote:** of stage 0's 4 + 0.67 numbers per parameter, stage 3 leaves about (a) a quarter, (b) a third, (c) half.

# %%
draw_kept(ranks=4, activations=32 * (64 + 128 + 10) / 9610)  # 32 images per rank, 9,610 parameters

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 4/4 + 0.67 = 1.67. Each rank needs the activations of its *own* images. They are no copies, so no stage shards them. While a layer runs, its
# full weights come on top.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · Three limits
#
# Memory runs out. A larger network needs, in MiB:
#
# ```
# weights 64      gradients 64      optimizer state 128
# activations and the layer at work: up to 10, in every stage
# ```
#
# Each of *two* ranks may allocate 224 MiB, then 150, then 120 (Linux only).

# %%
predict("The lowest stage that fits into 150 MiB?", None)

# %%
from course_lib.effects import runs_within

first = "from course_lib.parallel.plain_zero import gather_in_time; train(comm, 3, steps=2)"  # no limit
large = "train(comm, {}, steps=3, layers=32, width=512)"
lowest = {}
for mib in 224, 150, 120:
    fits = (n for n in (1, 2, 3) if runs_within(mib, 2, "code/11_zero.py", large.format(n), first))
    lowest[mib] = next(fits, "none")
    print(f"{mib} MiB: lowest stage: {lowest[mib]}")

# %%
outcome("The lowest stage that fits into 150 MiB?", lowest[150], word="it is stage")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
#            weights   gradients   optimizer state    MiB per rank
# stage 0      64    +    64     +      128         =  256
# stage 1      64    +    64     +       64         =  192
# stage 2      64    +    32     +       64         =  160
# stage 3      32    +    32     +       64         =  128
# ```
#
# No stage fits into 120 MiB. On four ranks, stage 3 would: it keeps 64.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | 16 bits | Weights and gradients take 2 bytes each, the optimizer state 12 (with a 32-bit copy), so stage 1 frees most. |
# | slow network | Shard inside each machine, if a full copy of the model states fits there (HSDP, in More). |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also weights, and no stage activations.
# - ZeRO trains as data parallelism does, up to rounding, if the optimizer updates each number by itself, as Adam does.
# - Begin with stage 1, because its reduce-scatter and all-gather are the halves of stage 0's all-reduce. Stage 3 gathers weights twice.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# In data parallelism, each of your 8 GPUs is 20 GB short. What must you know to choose (a) stage 1, (b) stage 3, (c) a smaller batch?
#
# <details><summary>What to listen for</summary>What fills the memory. (a) frees 7/8 of the optimizer state, (b) of all
# model states, (c) only activations.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Before you read on, try the core on three plans that somebody else has made. Which stage fits, how long does each GPU compute, and does this clipping still clip?

# %% tags=["exercise: 11.q4"]

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q5"]

# %% [markdown]
# ### How does a layer run without its weights?
#
# In stage 3, a rank gives most of its weights away, and yet every layer runs with all of them. Somebody must fetch a layer's weights in time, twice per step, and must drop them in
# between. In the core, `gather_in_time` did this out of sight. Now we read it. It needs a hook for each of three moments:
#
# - Forward is about to run a layer. The hook `before` gathers the layer's weights.
# - Forward has run the layer. The hook `after` frees the weights, and puts another hook on the layer's output. That one calls `before` again when backward reaches the layer.
# - The gradient of a weight is complete. Stage 2's hook sums the gradient, and then `free` drops the weight.
#
# Our hooks expect one backward per step. A second one would replace the gradients of the first, because `sum_slice` makes a new gradient each time.
#
# To free a weight, we take away its memory and leave the tensor in place:

# %% tags=["source: course_lib.parallel.plain_zero:free"]
# %%px --save 11_zero.py

# %% tags=["source: course_lib.parallel.plain_zero:gather_in_time"]
# %%px --save 11_zero.py

# %% [markdown]
# Your file now has stage 3. To try it, add the line `train(comm, stage=3)` at the end of the file, not indented, and run `mpiexec -n 4 python code/11_zero.py`.
#
# #### Is memory paid for in messages?
#
# Each stage keeps less than the stage before. If it had to send more, you would want to know how much, so we count.
#
# We count the numbers that a rank sends as if MPI used rings (lesson 04). On a ring of N ranks, a rank sends n · (N − 1)/N numbers in a reduce-scatter of n numbers, and as many in an
# all-gather. An all-reduce is one after the other, so it sends twice as many. The factor (N − 1)/N is the same everywhere, and `Counting` leaves it out.
#
# Before you predict, look back at the hooks: which collectives does a weight go through in one step of stage 2, and which in stage 3?

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
    train(Counting(comm), stage, steps=10)
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
# 1.5 times. In stages 1 and 2, a step has one reduce-scatter, which sums the gradients, and one all-gather, which brings back the new weights. Together, the two are the
# all-reduce of a ring, so stages 1 and 2 send exactly as much as stage 0. Stage 3 gathers the weights once for forward and once more for backward, because it freed them in
# between. This makes three collectives instead of two.
#
# ZeRO's paper counts the same for one backward per step: 2, 2, 2 and 3 numbers per parameter in stages 0 to 3. So stages 1 and 2 save memory without sending more, and stage 3 is
# the first that sends more.
#
# </details>
#
# ### What would a much larger model need?
#
# You have all three stages, and they train a network of 9,610 parameters. Now let the model grow until something breaks again. What breaks first?
#
# **One layer is too large.** While a layer runs, stage 3 gathers all of its weights on every rank, however many ranks there are. *Memory-centric tiling* splits a linear layer into
# many small linear layers, the tiles, and stage 3 treats each tile as a layer. **Vote:** a layer has 2.1 MB of weights and is cut into 16 tiles. At any moment of a step, how much of the layer
# is gathered? At most (a) all tiles, since backward needs them, (b) two tiles, since one follows the other, (c) one tile.

# %%
# %%px
from course.lessons.l11_zero_from_scratch.runs import most_gathered

gathered = {tiles: most_gathered(comm, tiles) for tiles in (1, 4, 16)}

# %%
for tiles, nbytes in cluster["gathered"][0].items():
    print(f"tiles: {tiles:2}, at most {nbytes / 1000:6.1f} kB of weights gathered")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): 131.6 kB is a sixteenth. Our code frees a tile before it gathers the next, in forward and in backward. A library that fetches the next tile while this one
# computes waits less, but it needs room for two.
#
# </details>
#
# **Even a slice is too large.** Tiles make smaller what is gathered, not what a rank keeps. If the slices themselves do not fit, a GPU can **offload** them: it keeps them in
# the host's memory or on a disk. We have no GPU here, so we move Adam's averages one step further down, from memory to files.
#
# The first cell makes a tensor whose numbers are in a file. The second trains with our stage 2, written as a class, `Zero2`. For each of Adam's averages, `offload_state` calls `in_file`
# and gives the result to Adam, which is not told that anything has changed. **Predict:** will any of the loss's six decimals change?

# %% tags=["source: course_lib.parallel.zero:in_file"]
# %%px

# %%
# %%px
import tempfile

from course_lib.parallel.zero import Zero2, offload_state

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
x, y = (each.tensor_split(comm.size)[comm.rank] for each in (images, labels))
zero = Zero2(comm, model, lambda slices: torch.optim.Adam(slices, lr=0.01))
with tempfile.TemporaryDirectory() as name:
    in_files = offload_state(zero.optimizer, Path(name), comm.rank)
    for _ in range(10):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(images)
        loss.backward()
        zero.step()
        zero.zero_grad()
    offloaded = comm.allreduce(loss.item())
    del zero
train(comm, stage=2, steps=10)

# %%
print(f"loss with files: {cluster['offloaded'][0]:.6f}")
print(f"bytes in files: {sum(cluster['in_files']):,}; 9,610 parameters, two averages of 8 bytes")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# No: both losses are 0.537938. For Adam, a tensor in a file is a tensor like any other, because the operating system reads a part of the file when Adam needs it.
# The numbers stay the same, and only the way to them is longer. So offloading costs time, not accuracy.
#
# </details>
#
# #### Who writes these hooks in practice?
#
# You read the hooks once, so that you know what happens. In your own training you would let PyTorch place them. **FSDP** (*Fully Sharded Data Parallel*) is PyTorch's stage 3, by default, and
# its second version, **FSDP2**, is one function, `fully_shard`. The weights in one call are gathered together. So we call it for every layer (in a Transformer, for every block), and
# then for the model, which takes what is left. FSDP2 cuts each parameter by rows.
#
# One setting decides whether the gradients are right. By default, FSDP2 divides the summed gradients by the number of ranks. Our loss is already divided by the global batch, so the gradients
# would be divided twice. We set FSDP2's divisor to 1.

# %%
# %%px --timeout 100
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.parallel.ddp import start_group

start_group(comm, "mpi4py")


def train_fsdp(mesh):
    """As `train`, with FSDP2 on a mesh of ranks; the last loss, and how many weights this rank keeps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    for layer in (model[0], model[2], model):  # the two linear layers, then what is left
        fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return comm.allreduce(loss.item()), sum(each.to_local().numel() for each in model.parameters())


# %% [markdown]
# There is a second decision, about links. With FSDP, the weights of every layer come from all ranks, and on a cluster this means through the network between machines. **HSDP**,
# hybrid sharding, shards the model only among the ranks of a group, often those of one machine. Each group then keeps a full copy of the model states, and must have room for the copy.
#
# We pretend that two of our ranks are one machine and two are another. **Predict**, for FSDP and for HSDP: how many of the 9,610 weights does rank 0 keep? Does
# the last loss equal that of our stage 3?

# %%
# %%px --timeout 100
train(comm, stage=3)
sharded = train_fsdp(init_device_mesh("cpu", (4,)))
hybrid = train_fsdp(init_device_mesh("cpu", (2, 2), mesh_dim_names=("machines", "ranks")))

# %%
for name in ("sharded", "hybrid"):
    loss, numbers = cluster[name][0]
    print(f"{name:12} loss {loss:.6f}, rank 0 keeps {numbers} numbers")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Both losses equal ours, to all six decimals. With FSDP, rank 0 keeps 2,467 weights, which is more than a quarter. The last layer has ten rows, and FSDP2 gives the ranks 3, 3, 3 and 1
# of them, while our code cuts between any two numbers.
#
# With HSDP, rank 0 keeps half of the weights, because only two ranks share them. In return, weights are gathered inside a machine, and only slices of gradients cross the
# network between machines.
#
# </details>
#
# So HSDP keeps more in order to send less over slow links. FSDP2 has another setting of this kind:

# %% tags=["exercise: 11.q6"]

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
