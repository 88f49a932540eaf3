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
# minutes: {core: 20, more: 17}
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
# Adam keeps two averages per weight, its **optimizer state**. Weights, gradients and optimizer state are the **model states**. In
# data parallelism (lesson 06), every rank keeps all of them. This is stage 0:

# %%
from course.lessons.l11_zero_from_scratch.figures import draw_kept

draw_kept(ranks=4, stages=[0])

# %% [markdown] tags=["subslide"]
# Ranks 1 to 3 keep copies. **ZeRO**, the *Zero Redundancy Optimizer*, removes them in three stages:
#
# - Stage 1 **shards** the optimizer state: each rank keeps one slice.
# - Stage 2 also shards the gradients.
# - Stage 3 also shards the weights.
#
# The **owner** of a slice is the rank that keeps and updates it.

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
# A **reduce-scatter** sums the gradients of all ranks, and sends each owner its slice of the sum:

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
# The loop ends with `update`. Somebody tested this one on one rank. The last loss was 0.001087.


# %%
# %%px
def update(comm, model, mine, optimizer):
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_slice(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# **Vote:** on four ranks, (a) MPI reports an error, (b) the loss is 0.001087 again, (c) the loss is much higher.

# %%
# %%px
train(comm, stage=1)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): the loss is 1.10, and no rank reports an error. Which weights does a rank update? Which does its next forward use?
#
# </details>
#
# You have one more tool. An **all-gather** fills a tensor with the slices of all ranks:

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
# Is that still the loss of one rank?

# %%
# !mpiexec -n 1 python code/11_zero.py

# %% [markdown] tags=["slide"]
# ## 3 · Gradients and weights
#
# **Stage 2** drops each full gradient before backward ends. It uses a **hook**, a function that PyTorch calls at a given moment. Ours runs
# when a gradient is complete:

# %% tags=["source: course_lib.parallel.plain_zero:sum_in_backward"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# In **stage 3**, hooks gather a layer's full weights just before it runs, in forward and again in backward, and free them right after.
# (More shows these hooks.)
#
# **Vote:** which stages end at 0.001087? (a) Neither, (b) only stage 2, (c) both.

# %%
# %%px
from course_lib.parallel.plain_zero import gather_in_time

for stage in (2, 3):
    train(comm, stage)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). ZeRO changes where numbers are kept, not what is computed.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · What is left?
#
# Forward also keeps **activations** for backward: here 64 inputs, 128 hidden numbers and 10 outputs of each image. These are 0.67 numbers per parameter.
#
# **Vote:** how much of stage 0's 4.67 numbers is left in stage 3? About (a) a quarter, (b) a third, (c) half.

# %%
draw_kept(ranks=4, activations=32 * (64 + 128 + 10) / 9610)  # 32 images per rank, 9,610 parameters

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 1.67. Each rank needs the activations of its *own* images. They are not copies, so no stage shards them. While a layer runs, its full
# weights come on top.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · Three limits
#
# A larger network has 64 MiB of weights, 64 of gradients and 128 of optimizer state. The activations and
# the layer at work take up to 10 MiB. We let each of *two* ranks allocate at most 224 MiB, then 150, then 120. (Linux only.)

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
# Model states per rank, in MiB:
#
# - stage 0: 64 + 64 + 128 = 256
# - stage 1: 64 + 64 + 128/2 = 192
# - stage 2: 64 + (64 + 128)/2 = 160
# - stage 3: (64 + 64 + 128)/2 = 128
#
# No stage fits into 120 MiB.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | 16 bits | A weight takes 2 bytes, its gradient 2, its optimizer state 12 (with a 32-bit copy). |
# | slow network | Keep a full copy of the model states in each machine, sharded among its GPUs (HSDP, in More). |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also weights. No stage shards activations.
# - ZeRO trains as data parallelism does, up to rounding, if the optimizer updates each number by itself, as Adam does.
# - Begin with stage 1: a reduce-scatter and an all-gather are the halves of stage 0's all-reduce. Stage 3 gathers the weights twice.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# In data parallelism, each of your 8 GPUs is 20 GB short. What must you know before you choose (a) stage 1, (b) stage 3, (c) a smaller batch?
#
# <details><summary>What to listen for</summary>What fills the memory. (a) frees 7/8 of the optimizer state, (b) 7/8 of all
# model states, (c) only activations.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What fits, what is computed, what is clipped?

# %% tags=["exercise: 11.q4"]

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q5"]

# %% [markdown]
# ### How does stage 3 work, and what does it cost?
#
# The core imported `gather_in_time`; now we read it. In forward, the hook `before` gathers a layer's weights, and the hook `after` frees them. Backward needs
# the weights again, so a hook on the layer's output calls `before` when backward reaches the layer. When a weight's gradient is complete,
# stage 2's hook sums the gradient. Then `free` drops the weight. Our hooks expect one backward per step: a second one would replace the gradients.

# %% tags=["source: course_lib.parallel.plain_zero:free"]
# %%px --save 11_zero.py

# %% tags=["source: course_lib.parallel.plain_zero:gather_in_time"]
# %%px --save 11_zero.py

# %% [markdown]
# Your file now has stage 3. Add the line `train(comm, stage=3)` at the end of the file, not indented, and run `mpiexec -n 4 python code/11_zero.py`.
#
# Each stage keeps less than the stage before. Does it also send more? We count the numbers that a rank sends, as if MPI used rings (lesson 04). On a ring of
# N ranks, a rank sends n · (N − 1)/N numbers in a reduce-scatter of n numbers. In an all-gather, it sends as many. In an all-reduce, it sends
# twice as many.

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
# 1.5 times. Stages 1 and 2 run one reduce-scatter and one all-gather per step. A ring's all-reduce consists of these two collectives, so
# stages 1 and 2 send as much as stage 0. Stage 3 gathers once for forward and once more for backward.
#
# ZeRO's paper counts the same for one backward per step: 2, 2, 2 and 3 numbers per parameter in stages 0 to 3.
#
# </details>
#
# ### What if the model is still too large?
#
# **One layer is too large.** In stage 3, a rank gathers all weights of a layer while the layer runs. *Memory-centric tiling* splits a linear layer into many small
# layers, the tiles. Stage 3 then treats each tile as a layer. **Vote:** a layer has 2.1 MB of weights, cut into 16 tiles. How much of the layer is gathered at any
# moment of a step? At most (a) all tiles, since backward needs them, (b) two tiles, since one follows the other, (c) one tile.

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
# (c): 131.6 kB is a sixteenth. In backward, too, our code frees a tile before it gathers the next.
#
# </details>
#
# **Even a slice is too large.** A GPU can **offload** its slice: it keeps the slice in the host's memory or on a disk. Here we have no GPU, so we
# offload Adam's averages from memory to files. `Zero2` is our stage 2 as a class. `offload_state` calls `in_file` for each average, and gives the
# result to Adam. **Predict:** will any of the loss's six decimals change?

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
# No: both losses are 0.537938. Adam computes with a tensor in a file as with any other tensor. The operating system reads a part of the file
# when Adam needs it. This costs time, not accuracy.
#
# </details>
#
# ### What does everybody use?
#
# **FSDP** (*Fully Sharded Data Parallel*) is PyTorch's stage 3, by default. Its second version, **FSDP2**, is one function, `fully_shard`. We call `fully_shard` for
# every layer (in a Transformer, for every block), then for the model. FSDP2 cuts each parameter by rows.
#
# By default, FSDP2 divides the summed gradients by the number of ranks. Our loss is already divided by the global batch, so we set this divisor to 1.

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
# **HSDP**, hybrid sharding, shards the model among the ranks of a group, often those of one machine. So each group keeps a full copy of the model states, and must have room for the copy. We
# pretend that two of our ranks are one machine and two are another. **Predict**, for FSDP and for HSDP: how many of the 9,610 weights does rank 0 keep? Does
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
# Both losses equal ours, to all six decimals. With FSDP, rank 0 keeps 2,467 weights, more than a quarter: FSDP2 cuts the ten rows of the last layer into
# 3, 3, 3 and 1. Our code cuts numbers, not rows.
#
# With HSDP, rank 0 keeps half. Weights are gathered inside a machine. Only slices of gradients cross the network between machines.
#
# </details>

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
