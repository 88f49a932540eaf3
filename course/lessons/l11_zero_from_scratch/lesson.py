# ---
# title: ZeRO from scratch
# goal: Keep each number on one rank only.
# able:
#   - write stage 1 of ZeRO
#   - predict which stage fits into a memory limit
# more:
#   - read stage 3, and count what each stage sends
#   - shard a model with FSDP2, and say what its settings cost
#   - say what no stage makes smaller
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 13}
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
# Not with plain data parallelism: every rank keeps all **model states**: weights, gradients, and the **optimizer state** (Adam's two averages per weight).
#
# So **ZeRO**, the *Zero Redundancy Optimizer*, **shards** tensors: each rank keeps one part, its **shard**. Only this rank, the **owner**, updates it.
#
# Stage 0 is plain data parallelism. Stage 3 shards all model states:

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
# We cut each tensor into one shard per rank:

# %% tags=["source: course_lib.parallel.plain_zero:own_shard"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# A **reduce-scatter** sums the full gradients of all ranks. Each owner gets its shard of the sum:

# %% tags=["source: course_lib.parallel.plain_zero:sum_shard"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# An **all-gather** builds the full tensor from all ranks' shards:

# %% tags=["source: course_lib.parallel.plain_zero:gather"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# Adam gets only `mine`, this rank's shards. They are views, so Adam's step changes these parts of the full tensors:


# %%
# %%px --save 11_zero.py
def network(layers=0, width=128):  # section 4 adds layers
    torch.manual_seed(0)  # the same weights on every rank
    middle = [nn.Linear(width, width) for _ in range(layers)]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *middle, nn.Linear(width, 10))


def train(comm, model, *hooks, steps=60):
    mine = [nn.Parameter(own_shard(comm, full)) for full in model.parameters()]
    for register in hooks:  # for section 3; none here
        register(comm, model, mine)
    optimizer = torch.optim.Adam(mine, lr=0.01)  # averages for our shards only
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
        sum_shard(comm, full, part)
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
# (b). Each rank updates only its own shards, so the ranks train different networks. On one rank, a shard is the full tensor.
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
# !mpiexec -n 1 python code/11_zero.py  # still right on one rank?

# %% [markdown] tags=["slide"]
# ## 3 · Gradients and weights
#
# In stage 1, each rank holds full gradients. **Stage 2** uses **hooks**, functions that PyTorch calls at set moments.
# Ours calls `sum_shard` when a gradient is complete:

# %% tags=["source: course_lib.parallel.plain_zero:sum_in_backward"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# A layer runs only with full weights. In **stage 3**, hooks gather them just before it runs, in forward and again in backward, and free them
# right after.
#
# **Vote:** your `update` still calls `sum_shard` and `gather`. In stage 3, (a) gradients are summed twice, so the loss is wrong, (b) a call fails: nothing full is left, (c) the loss is 0.001087.

# %%
# %%px
from course_lib.parallel.plain_zero import gather_in_time  # stage 3's hooks: we read them in More

train(comm, network(), sum_in_backward, gather_in_time)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Both calls do nothing: hooks summed gradients in backward, and gather weights in forward. ZeRO changes who keeps and updates numbers. Every rank still runs every layer in full.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Three limits
#
# We train a larger network on two ranks, so a shard is half. In stage 0, each rank keeps:
#
# ```
# 8.4 million parameters, 8 bytes per number:  weights 64   +   gradients 64   +   optimizer state 128   =   256 MiB
#
# on top, up to 12 MiB:                    activations (no stage shards them); from stage 2 on, full tensors of the layer that runs
# ```
#
# Not counting libraries, each rank may allocate 184 MiB (Linux only):

# %%
predict("The lowest stage that fits into 184 MiB?", None)

# %% [markdown]
# Two ranks load your file, warm up, and try three steps of stage 1 under the limit:

# %%
from course_lib.effects import runs_within

first = "from course_lib.parallel.plain_zero import gather_in_time; train(comm, network())"  # warm-up


def trains(mib, how):
    return runs_within(mib, 2, "code/11_zero.py", f"train(comm, network(32, 512), {how})", first)


trains(184, "steps=3")

# %% [markdown]
# `False`: a rank asked for more than 184 MiB. **Vote:** was this in the backward of (a) the first step, (b) the second? We run one step:

# %%
trains(184, "steps=1")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Adam makes its averages at the end of the first step, and keeps them:
#
# ```
#                                weights   gradients   optimizer state    MiB per rank
# at the end of backward 1         64    +    64     +        0        =  128
# at the end of backward 2         64    +    64     +       64        =  192
# ```
#
# So test memory plans with two steps. Stage 1 needs at most 192 + 12 = 204 MiB: 224 should suffice.
#
# </details>
#
# Does stage 2 train in 184?

# %%
print("stage 1 trains in 224 MiB:", trains(224, "steps=3"))
fits = trains(184, "sum_in_backward, steps=3")  # stage 2
outcome("The lowest stage that fits into 184 MiB?", 2 if fits else "not 2", word="it is stage")

# %% [markdown]
# **Your turn:** what is the smallest limit in which *stage 3* trains? Bet, then find it in four runs:

# %%
trains(154, "sum_in_backward, gather_in_time, steps=3")  # change 154

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Stage 3 needs 128 MiB, and up to 12 on top. (We found 140.)
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
# 64 GPUs of 40 GB, one rank each, train 8 billion parameters in mixed precision (2 bytes per weight, 2 per gradient, 12 for Adam), and accumulate gradients. Activations take 20 GB. **Vote:** which is the lowest stage that fits: (a) 1, (b) 2, (c) 3?
#
# <details><summary>Open after your vote</summary>
#
# (b): 17.75 + 20 = 37.75 GB. Each GPU keeps:
#
# ```
#            weights   gradients   optimizer state
#            16 bits   16 bits     32 bits: a copy of the weights, two averages
#
# stage 0     16      +   16      +      96          =  128     GB per GPU
# stage 1     16      +   16      +       1.5        =   33.5
# stage 2     16      +    0.25   +       1.5        =   17.75
# stage 3      0.25   +    0.25   +       1.5        =    2
#
# on top:    activations
#            in stages 2 and 3 full gradients of some layers
#            in stage 3 full weights of at least one layer (lesson 12: up to 10⁹ weights)
# ```
#
# Without accumulation, stage 1 may fit: backward frees activations while gradients appear.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also weights.
# - With an elementwise optimizer, such as Adam, ZeRO trains as data parallelism does, up to rounding. (Clipping by the norm needs one
#   more all-reduce. Batch norm and dropout act per rank in both.)
# - Choose the lowest stage that fits with the micro-batch you want. Stage 3 gathers weights twice per micro-batch, which costs time unless computation hides it.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Data parallelism needs 20 GB more than each of your 8 GPUs has. What must you know to choose (a) stage 1, (b) stage 3, (c) a smaller micro-batch?
#
# <details><summary>What to listen for</summary>Choose (a) if 7/8 of the optimizer state is over 20 GB, (b) if only 7/8 of all model states is, (c) if
# activations fill the memory (accumulate to keep the batch).</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### How does a layer run without its weights?
#
# In stage 3, a rank keeps only shards. So who runs a layer?

# %% tags=["exercise: 11.q1"]

# %% [markdown]
# The core imported `gather_in_time`. Now we read it. Follow one layer through a step:
#
# 1. Before forward runs the layer, `before` gathers its weights.
# 2. After forward, `after` frees them, and puts a hook on the layer's output: when backward gets there, the hook calls `before`.
# 3. When backward has the gradient of a weight, stage 2's hook sums it. Then `free` frees the weight.
#
# Autograd and the layer still refer to the tensor. So `free` releases only its memory:

# %% tags=["source: course_lib.parallel.plain_zero:free"]
# %%px --save 11_zero.py

# %% tags=["source: course_lib.parallel.plain_zero:gather_in_time"]
# %%px --save 11_zero.py

# %% [markdown]
# Your file now has all three stages. Stage 3 keeps less than stage 2. Does it send more? The communicator below counts n numbers for a reduce-scatter or all-gather of n numbers. (In a
# ring of N ranks, each rank sends (N − 1)/N of n: lesson 04.) Find the collectives in the hooks before you predict.

# %%
predict("How many times as many bytes does a rank send in stage 3 as in stage 2?", None)


# %%
# %%px
from course_lib.parallel.plain_zero import update  # the course's: yours may send otherwise


class Counting(MPI.Intracomm):
    def Reduce_scatter(self, full, part):
        sent[-1] += full.numel() / 9610  # per parameter
        super().Reduce_scatter(full, part)

    def Allgatherv(self, part, full):
        sent[-1] += full.numel() / 9610
        super().Allgatherv(part, full)


sent = []
for hooks in ([], [sum_in_backward], [sum_in_backward, gather_in_time]):
    sent.append(0)
    train(Counting(comm), network(), *hooks, steps=1)

# %%
one, two, three = cluster[0]["sent"]
print("numbers per parameter in stages 1, 2 and 3:", one, two, three)
outcome("How many times as many bytes does a rank send in stage 3 as in stage 2?", three / two)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 1.5 times. In stages 1 and 2, a reduce-scatter sums the gradients, and an all-gather collects the new weights. A ring's all-reduce
# consists of these two, so stage 0 sends 2 as well. Stage 3 gathers for forward, and again for backward.
#
# ZeRO's paper counts the same for stages 0 to 3: 2, 2, 2 and 3. (DeepSpeed's defaults send more: lesson 12.) All this holds for one backward per step, and for as many bytes per gradient as per weight. If you
# accumulate gradients, stages 0 and 1 can sum once, but stage 2 sums in each backward, and stage 3 also gathers twice for each. (Our short code
# expects one backward. Libraries join many tensors per message, and send while backward goes on.)
#
# </details>
#
# **To remember:** stage 3 saves memory, but needs a second all-gather.
#
# ### What would you use on 64 GPUs?
#
# You would not write these hooks. PyTorch's **FSDP** (*Fully Sharded Data Parallel*) does by default what ZeRO calls stage 3. Its second
# version, **FSDP2**, is one function, `fully_shard`. Each call makes one group of weights that are gathered together. So we call it for every layer
# (in a Transformer, for every block), and then for the model: one group for the rest.
#
# By default, FSDP2 divides summed gradients by the number of ranks. Our loss is already divided by the global batch, so we set this divisor to 1. (Adam hides a wrong divisor: a constant factor almost cancels.)
#
# If links between machines are slow, **HSDP** (hybrid sharding) shards only inside a group, often one machine. Each group keeps a full copy of the model
# states, which must fit. We pretend that four ranks are one machine, then two machines. **Predict** for both: how many of the 9,610 weights does rank 0 keep? And is the
# last loss 0.001087, as ours was?

# %%
# %%px --timeout 100
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.parallel.ddp import start_group

start_group(comm, "mpi4py")  # PyTorch's collectives, through MPI
for shape in ({"ranks": 4}, {"machines": 2, "ranks": 2}):  # FSDP, then HSDP
    model, mesh = network(), init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    for layer in (model[0], model[2], model):  # the two linear layers, then what is left
        fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / 128
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss, kept = comm.allreduce(loss.item()), sum(each.to_local().numel() for each in model.parameters())
    if comm.rank == 0:
        print(f"{shape}: loss {loss:.6f}, rank 0 keeps {kept} weights")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Both losses equal ours, to six decimals. With FSDP, rank 0 keeps 2,467 weights, more than a quarter: FSDP cuts by rows, and rank 0 gets three of the last layer's ten. Our code cuts between any two
# numbers. With HSDP it keeps half: two ranks share a copy. In return, machines exchange only shards of gradients.
#
# On GPUs, FSDP2 gathers the next layer while this one runs: two may be full at a time. In mixed precision, its shards have 32 bits (weight 4, gradient 4, Adam 8 bytes per parameter). It gathers weights
# in 16 bits.
#
# </details>
#
# FSDP2 lets you choose when it frees weights:

# %% tags=["exercise: 11.q6"]

# %% [markdown]
# <details><summary>Open after you have answered</summary>
#
# ZeRO's stages in PyTorch:
#
# ```
# stage 1    ZeroRedundancyOptimizer, with DDP: in a ring, a rank sends 3 numbers per parameter, not 2; FSDP2 has no stage 1
# stage 2    fully_shard(…, reshard_after_forward=False), but it keeps only shards between steps
# stage 3    fully_shard(…), with its defaults
# HSDP       fully_shard(…, mesh=…), with a mesh of two dimensions
# ```
#
# </details>
#
# What is left besides the shards? Activations, which no stage shards. Our network on four ranks has:
#
# ```
# per image        64 inputs + 128 hidden numbers + 10 outputs  =    202
# per rank         32 images · 202                              =  6,464
# per parameter    6,464 / 9,610 parameters                     =   0.67
# ```
#
# **Vote:** in stage 0, a rank keeps 4 + 0.67 numbers per parameter. In stage 3, on four ranks, without the running layer's full weights: about (a) a quarter of this, (b) a third, (c) half.

# %%
draw_kept(ranks=4, activations=6464 / 9610, stages=[0, 3])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 4/4 + 0.67 = 1.67 of 4.67 numbers. On 64 ranks, with 32 images each, it would be 4/64 + 0.67: nearly all activations.
#
# </details>

# %% tags=["exercise: 11.q4"]

# %% [markdown]
# What can you do if a model still does not fit?
#
# ```
# activations are too large    fewer images per rank, recomputing (lesson 08), tensor and spatial parallelism (09, 10)
# one layer is too large       tensor parallelism (09), or tiles: many small linear layers, gathered one after the other
# a shard is too large         offload: keep it in the CPU's memory or in files; results stay equal, up to rounding
# ```
#
# **Offloading** takes time, unless computation hides it. [All ways to split](../docs/ways-to-split.md) says where to find tiles and offloading in `course_lib`.
#
# **To remember:** with more ranks, ZeRO keeps fewer model states per rank. Activations per image and the running layer keep their size.

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
