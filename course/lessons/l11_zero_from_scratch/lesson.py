# ---
# title: ZeRO from scratch
# goal: Keep less on every rank, and train as one process would.
# able:
#   - shard an optimizer with two collectives
#   - predict which stage of ZeRO fits into a memory limit
#   - say what else needs memory, and what helps
# more:
#   - read stage 3, and count the bytes of each stage
#   - shard a model with FSDP2, and say what its settings trade
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up:
#   - ask: Which two collectives make an all-reduce?
#     answer: >-
#       A reduce-scatter, after which each rank has one chunk of the sum, and an all-gather, which sends all
#       chunks to every rank.
#   - ask: You train with Adam in float32. How many bytes does that take per parameter, without activations?
#     answer: >-
#       16: the weight, its gradient and Adam's two averages, 4 bytes each.
#   - ask: In data parallelism, how do the weights of two ranks differ after a step?
#     answer: >-
#       Not at all: the ranks start equal, and all take the same step.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Four copies
#
# Adam keeps two averages per weight: its **optimizer state**. Weights, gradients and optimizer state are the **model states**. In data
# parallelism (lesson 06), every rank keeps them all:

# %%
from course.lessons.l11_zero_from_scratch.figures import draw_kept

draw_kept(ranks=4, stages=[0])

# %% [markdown] tags=["subslide"]
# Three of the four rows are copies. **ZeRO**, the *Zero Redundancy Optimizer*, **shards** what was copied, so each rank keeps one slice: stage 1 shards the
# optimizer state, stage 2 also the gradients, stage 3 also the weights. Each rank is the **owner** of its slice of every tensor: only the owner updates it.
# First, the data:

# %%
# %%px --save 11_zero.py
"""ZeRO, stage by stage: trains a network on data/digits.npz, beside this file."""

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
# A **reduce-scatter** sends each owner its slice of the summed gradient:

# %% tags=["source: course_lib.parallel.plain_zero:sum_slice"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# An **all-gather** fills a tensor with the slices of all ranks:

# %% tags=["source: course_lib.parallel.plain_zero:gather"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# The optimizer gets only this rank's slices, in `mine`. They are views into the model's weights, so a step of the optimizer changes the model:


# %%
# %%px --save 11_zero.py
def train(comm, stage, steps=60, layers=0, width=128):
    """Train on all ranks of `comm`, and print the last loss."""
    torch.manual_seed(0)  # the same weights on every rank
    middle = [nn.Linear(width, width) for _ in range(layers)]
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), *middle, nn.Linear(width, 10))
    mine = [nn.Parameter(own_slice(comm, full)) for full in model.parameters()]
    if stage >= 2:
        sum_in_backward(comm, model, mine)  # section 3 defines this one and the next
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
# Somebody tested this `update` on one rank. The last loss was 0.001087.


# %%
# %%px
def update(comm, model, mine, optimizer):
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_slice(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# **Vote:** on four ranks, (a) MPI reports an error, (b) 0.001087 again, (c) a much higher loss.

# %%
# %%px
train(comm, stage=1)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c), and no rank complains. Before you read on: which of its numbers does a rank update, and which does it use in the next forward pass?
#
# </details>

# %% tags=["exercise: 11.5", "subslide"]

# %% [markdown] tags=["notes"]
# Five minutes up to the vote, six for the exercise. The usual slip is to gather before the step. Ask: whose numbers are new, and who has seen them?

# %%
# %%px --save 11_zero.py
if __name__ == "__main__":
    train(comm, stage=1)

# %% [markdown]
# Is this now one process's loss?

# %%
# !mpiexec -n 1 python code/11_zero.py

# %% [markdown] tags=["slide"]
# ## 3 · Gradients and weights
#
# **Stage 2**: why keep full gradients until backward ends? A **hook** is a function of ours that PyTorch calls at a given moment, here when a gradient is
# complete. Ours runs the reduce-scatter at once and drops the full gradient:

# %% tags=["source: course_lib.parallel.plain_zero:sum_in_backward"]
# %%px --save 11_zero.py

# %% [markdown] tags=["subslide"]
# **Stage 3**: why keep the weights of layers that are not running? Hooks gather a layer's weights just before it runs, in forward and again in backward, and
# free them right after. We import these hooks; More shows them.
#
# **Vote:** on four ranks, which stages end at 0.001087? (a) Neither, (b) stage 2, (c) both.

# %%
# %%px
from course_lib.parallel.plain_zero import gather_in_time

for stage in (2, 3):
    train(comm, stage)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). ZeRO changes where numbers are kept, not what is computed. Only rounding may differ, far behind these six decimals.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · What is left?
#
# Forward also keeps **activations** for backward: here 64 + 128 + 10 numbers per image, 32 images per rank, beside 9,610 parameters. **Vote:** compared
# with stage 0 (no ZeRO), how much does a rank keep in stage 3? About (a) a quarter, (b) a third, (c) half.

# %%
draw_kept(ranks=4, activations=32 * (64 + 128 + 10) / 9610)  # 32 images per rank, 9,610 parameters

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b): 1.67 of 4.67. Each rank keeps the activations of *its own* images. They are not copies, so no stage shards them. A smaller batch per rank helps, or recomputing
# (lesson 08).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · Three limits
#
# A larger network has 64 MiB of weights, so 256 MiB of model states. We run it on *two* ranks, and let each allocate at most 224 MiB, then 150, then 120. Up to
# 10 MiB go to activations and temporaries. **Predict** the lowest stage that fits each limit: write it over the `"?"`. (Linux only.)

# %%
from course_lib.effects import runs_within

# `first` runs before the limit applies: what libraries allocate once shall not count
first = "from course_lib.parallel.plain_zero import gather_in_time; train(comm, 3, steps=2)"
large = "train(comm, {}, steps=3, layers=32, width=512)"
for mib, guess in {224: "?", 150: "?", 120: "?"}.items():
    fits = (n for n in (1, 2, 3) if runs_within(mib, 2, "code/11_zero.py", large.format(n), first))
    print(f"{mib} MiB: guess {guess}, stage {next(fits, 'none')}")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Stage 1 needs 64 + 64 + 128/2 = 192 MiB, stage 2 needs 64 + 192/2 = 160, stage 3 needs 256/2 = 128: for 120 MiB, two ranks are too few. On N ranks, that is 2 + 2/N, 1 + 3/N and 4/N numbers per
# parameter. Why not always stage 3? It gathers the weights twice per micro-batch, stages 1 and 2 only once per step.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | 16 bits | 2 bytes per weight and gradient, 12 for the optimizer: on N GPUs stage 1 keeps 4 + 12/N, stage 2 keeps 2 + 14/N, stage 3 keeps 16/N |
# | slices | in stages 1 and 2, DeepSpeed (lesson 12) joins tensors before it cuts: fewer, larger messages |
# | slow network between machines | if one machine's GPUs can hold the model, keep one copy per machine (HSDP, in More) |

# %% tags=["exercise: 11.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Keep every number once: optimizer state (stage 1), gradients (2), weights (3). Activations stay.
# - The result is that of one process, up to rounding, if the optimizer updates each number by itself, as Adam does.
# - Use the lowest stage that fits: stage 3 sends more.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your training needs 20 GB more than each of your 8 GPUs has. (a) Stage 1, (b) stage 3, (c) a smaller batch per GPU: what must you know first?
#
# <details><summary>What to listen for</summary>What fills the memory. (a) frees 7/8 of the optimizer state; (b) frees 7/8 of all
# model states, but sends more; (c) frees activations only, and changes the training unless you accumulate gradients.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# Two questions about the core.

# %% tags=["exercise: 11.q1"]

# %% tags=["exercise: 11.q5"]

# %% [markdown]
# ### How does stage 3 work, and what does it cost?
#
# The core imported `gather_in_time`. Its hooks gather a layer's weights `before` it runs, and free them `after`. In backward, a hook on the layer's
# output calls `before` again. When a weight's gradient is complete, the hook of stage 2 sums it, then `free` drops the weight.

# %% tags=["source: course_lib.parallel.plain_zero:free"]
# %%px --save 11_zero.py

# %% tags=["source: course_lib.parallel.plain_zero:gather_in_time"]
# %%px --save 11_zero.py

# %% [markdown]
# Your file now has stage 3: add the line `train(comm, stage=3)` at its end, not indented, and run `mpiexec -n 4 python code/11_zero.py`.
#
# Each stage keeps less than the one before. Does it send more? We count what each rank sends in our two collectives, as if both were rings (lesson 04): in a
# reduce-scatter or an all-gather of n numbers on N ranks, a rank sends n · (N − 1)/N numbers; in an all-reduce it sends twice that.

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
# <details><summary>Open after you have run the cell</summary>
#
# 1.5 times. The ring's all-reduce *is* a reduce-scatter and an all-gather; stages 1 and 2 put the update between the two. With one backward per step, they send as much as stage 0. Stage 3 gathers for forward,
# frees, and gathers again for backward.
#
# </details>
#
# That is the count of ZeRO's paper: 2, 2, 2 and 3 numbers per parameter in stages 0 to 3.
#
# ### What if it is still too large?
#
# **If one layer is too large.** Stage 3 gathers all its weights while it runs. *Memory-centric tiling* splits a linear layer into many small ones, and gathers
# one at a time. **Vote:** with 16 tiles, how much of a layer of 2.1 MB is gathered at once: (a) all, since backward needs it, (b) a sixteenth?

# %%
# %%px
from course.lessons.l11_zero_from_scratch.runs import most_gathered

gathered = {tiles: most_gathered(comm, tiles) for tiles in (1, 4, 16)}

# %%
for tiles, nbytes in cluster["gathered"][0].items():
    print(f"tiles: {tiles:2}, at most {nbytes / 1000:6.1f} kB of weights gathered")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b): backward, too, frees a tile before it gathers the next.
#
# </details>
#
# **If even a slice is too large.** *Offload* it from the GPU to the host's memory, or to a disk. `Zero2` is our stage 2 as a class. `offload_state` puts Adam's averages into files, which `in_file` (below) makes; the optimizer
# does not change. (With GPUs, Adam then usually runs on the host's CPUs.) **Predict:** in which of six decimals, if any, will the loss change?

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
# <details><summary>Open after you have run the cell</summary>
#
# In none: Adam computes with a tensor in a file as with any other, and the operating system reads its pages when they are needed. It costs time, not accuracy. You may meet the word *out-of-core*: for Awan and others, a model whose training does not fit into one device's memory, as in section 5; elsewhere, "kept on slower
# storage", as here.
#
# </details>
#
# ### What does everybody use?
#
# **FSDP** (*Fully Sharded Data Parallel*) is PyTorch's stage 3, by default. Its second version, **FSDP2**, is one function, `fully_shard`, which we call for every layer, then for the model.
# It cuts each parameter by rows. It averages gradients by default; our loss is already divided by the global batch, so we ask for sums. (A model too large for one rank is built on the
# device `meta`, without memory, and cut before it gets any.)

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
# **HSDP**, hybrid sharding, shards the model among the ranks of one machine, so each machine keeps one full copy, and must have room for it. We take two "machines" of two ranks. **Predict** for FSDP and for HSDP: how many
# of the 9,610 weights does rank 0 keep, and does the loss equal our stage 3's?

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
# <details><summary>Open after you have run the cell</summary>
#
# The loss is ours, to all six decimals. But rank 0 keeps more than a quarter: FSDP2 cuts the ten rows of the last layer into 3, 3, 3 and 1. Ours cuts numbers, not rows.
# HSDP keeps half: weights are gathered inside a machine, and only slices of gradients cross the network between machines.
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
# - A. Awan and others, *OC-DNN*, HiPC 2018: out-of-core models.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
