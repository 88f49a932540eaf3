# ---
# title: Pipeline parallelism
# goal: Cut a network into stages, one per rank, and find out how much of the time they are idle.
# able:
#   - carry a forward and a backward pass across ranks
#   - count how long the ranks of a pipeline are idle
#   - write the schedule 1F1B, and say how many micro-batches a stage holds
# more:
#   - say what recomputing, interleaving and unequal stages cost
# before: >-
#   {01}, {03}, {05}
# minutes: {core: 20, more: 8}
# ranks: 4
# warm-up:
#   - ask: >-
#       You cut a batch into micro-batches and call `backward` for each. What must be true of each loss, so that
#       `.grad` ends with the gradient of the whole batch?
#     answer: It is a sum over samples, divided by the size of the whole batch. Then the gradients add up.
#   - ask: Two ranks call `Send` to each other at the same moment, with 1 MB each. What happens?
#     answer: >-
#       With most MPI libraries the program hangs: each rank waits in Send, and neither reaches its Recv.
#       <code>Isend</code>, which starts to send and returns at once, avoids this.
#   - ask: In data parallelism every rank holds the whole model. What do the ranks send each other in a step?
#     answer: Gradients, which are summed. Today no rank needs the whole model.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Half of the layers each
#
# A network does not fit into one rank's memory. In **pipeline parallelism** each rank holds some consecutive layers, a **pipeline stage**.

# %%
# %%px --save 08_pipeline.py
"""Pipeline parallelism: trains a network on data/digits.npz, a stage per rank."""

from itertools import pairwise
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
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()


# %%
# %%px --save 08_pipeline.py
def cut(team):
    """This rank's stage of eight layers; the weights are the same for any number of ranks."""
    torch.manual_seed(0)
    layers = [x for a, b in pairwise([64, *7 * [128], 10]) for x in (nn.Linear(a, b), nn.ReLU())][:-1]
    return nn.Sequential(*(layers[n] for n in np.array_split(range(15), team.size)[team.rank]))


# %% [markdown] tags=["subslide"]
# A batch is cut into **micro-batches**, whose gradients add up (lesson 05). A **schedule** lists what a rank does: `("F", 2)` takes
# micro-batch 2 forward, `("B", 2)` backward. Activations travel to the next rank, their gradients back:

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# To autograd, a received tensor is a new beginning. `requires_grad_()` makes it compute the gradient that the rank before waits for.
#
# **GPipe** is the simplest schedule: all forwards, then all backwards. Every micro-batch has 512 images.


# %%
# %%px --save 08_pipeline.py
def gpipe(stage, stages, m):
    """The schedule of one of the stages, for m micro-batches."""
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def step(team, stage, schedule, m, seed=0):
    """Forward and backward of m micro-batches; returns this rank's part of the loss."""
    rows = np.random.default_rng(seed).integers(len(images), size=(m, 512))
    parts = [(images[row], labels[row]) for row in rows]
    loss_fn = lambda y, targets: F.cross_entropy(y, targets, reduction="sum") / rows.size  # noqa: E731
    return run_stage(team, stage, schedule(team.rank, team.size, m), parts, loss_fn)


# %%
# %%px --save 08_pipeline.py
def main(schedule=gpipe, m=2, steps=40):
    stage = cut(comm)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)
    for seed in range(steps):
        optimizer.zero_grad()
        loss = comm.allreduce(step(comm, stage, schedule, m, seed))
        optimizer.step()
    if comm.rank == 0:
        print(f"ranks: {comm.size}, m = {m}, step {steps}, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()

# %% [markdown]
# **Vote:** the losses of one rank and of three agree in (a) no decimal, (b) two or three, (c) all six.

# %%
# !mpiexec -n 1 python code/08_pipeline.py
# !mpiexec -n 3 python code/08_pipeline.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# All six. A network that is cut between layers does the same additions and multiplications. (Batch norm would see one micro-batch at a time.)
#
# </details>
#
# Now the time. Ranks 0 and 1 hold four layers each, and take *one* micro-batch. How many times as fast as one rank are they?

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %% [markdown]
# Then with more: we draw 2, 4, 8 and 16 as well.

# %%
# %%px --timeout 100
from functools import partial

from course_lib.measure import timed

pair = comm.Split(comm.rank < 2)


def seconds(team):
    stage = cut(team)
    return {m: timed(team, partial(step, team, stage, gpipe, m), repeat=5) for m in (1, 2, 4, 8, 16)}


times = [seconds(team) for team in (pair, MPI.COMM_SELF)[: max(0, 2 - comm.rank)]]  # rank 0: both

# %% tags=["nbval-ignore-output"]
two, one = cluster[0]["times"]
outcome("One micro-batch: how many times as fast are two ranks?", one[1] / two[1])
rows = [{"labels": {"micro-batches": m}, "value": one[m] / two[m], "unit": "times one rank"} for m in one]
show(rows, x="micro-batches", y="speed")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# One micro-batch: two ranks are no faster. Rank 1 waits for the activations of rank 0, then rank 0 for the gradients. Many: nearly twice as fast, if each
# rank has a core to itself.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Count the white slots
#
# Let us play schedules on paper. This is all the simulation is fed with: four equal stages, a forward takes 1 slot, a backward 2, messages nothing.

# %%
# %%px --targets 0
grids = {f"m = {m}": [gpipe(rank, 4, m) for rank in range(4)] for m in (1, 4)}

# %%
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules

draw_schedules(cluster[0]["grids"])

# %% [markdown]
# White is the **bubble**. Rank 0 works for 3m slots. In between it waits while its last micro-batch passes the p − 1 other ranks and comes back: **predict**
# the idle slots of a step, on four ranks with 16 micro-batches. And how many times as fast are two ranks then?

# %%
# %%px --targets 0
for p, m in ((2, 1), (2, 4), (2, 16), (4, 16)):
    print(p, "ranks, m =", m, "idle", 3 * (p - 1), "of", 3 * (m + p - 1), "speed", p * m / (m + p - 1))

# %% [markdown]
# p ranks are **p · m / (m + p − 1)** times as fast as one, and idle for **(p − 1) / (m + p − 1)** of the time. Compare with your picture. Its curve may lie
# lower: messages take time, stages are not quite equal, ranks may share cores.

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# More micro-batches, then. But now each rank may allocate only 64 MiB for a step (`course_lib/effects.py`).

# %%
# %%writefile code/limited.py
"""A step of 08_pipeline.py, each rank with 64 MiB to allocate: limited.py SCHEDULE MICRO-BATCHES."""

import runpy
import sys

from course_lib.effects import memory_limit

ours = runpy.run_path("code/08_pipeline.py")
ours["main"](steps=1)  # without a limit: what torch allocates once
with memory_limit(64 * 2**20):
    ours["main"](ours[sys.argv[1]], int(sys.argv[2]), steps=1)

# %% [markdown]
# `-m mpi4py` ends all ranks when one raises an error; `grep` picks the lines that matter.

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python -m mpi4py code/limited.py gpipe 32 2>&1 | grep "loss\|memory:"

# %% [markdown]
# With 2 micro-batches it trains, with 32 it dies. **Vote:** what can go, without a change of the result? (a) the weights' gradients, (b) activations of micro-batches whose backward
# could come sooner, (c) activations that have been sent.

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown] tags=["subslide"]
# Your schedule, on paper and under the limit. **Predict:** does a step take fewer slots than with GPipe?

# %%
# %%px --targets 0
grids = {each.__name__: [each(rank, 4, 8) for rank in range(4)] for each in (gpipe, one_f_one_b)}
for name, rows in grids.items():
    held = [max(sum(1 if kind == "F" else -1 for kind, _ in row[:n]) for n in range(17)) for row in rows]
    print(f"{name:11} ranks hold up to {held} micro-batches")

# %%
draw_schedules(cluster[0]["grids"])

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python -m mpi4py code/limited.py one_f_one_b 32 2>&1 | grep "loss\|memory:"

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# No: the bubble is the same, 9 of 33 slots. But rank s of p holds at most p − s micro-batches, however many there are, and GPipe all. (It was (b). An
# activation that was sent is still needed here: the weights' gradients are computed from it.)
#
# </details>
#
# GPipe's authors knew: what they published also *recomputes* (More).

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | m | the global batch is fixed by the training, and each replica gets only its part of it: often m is smaller than you like |
# | micro-batch | as small as still keeps a GPU busy; the formula assumes that a half-size one takes half the time |
# | messages | activations only, and only to the next stage: the way to cross machines. They overlap with computing if a receive is started early; ours blocks |
# | stages | embedding and loss make first and last stage longer; batch norm sees a micro-batch |
# | 1F1B | the usual schedule; PyTorch's is `torch.distributed.pipelining.Schedule1F1B` |

# %% tags=["exercise: 08.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Activations travel forward, their gradients back; the training stays the same.
# - With equal stages and free messages, p ranks are p · m / (m + p − 1) times as fast as one, with GPipe and with 1F1B.
# - GPipe holds all m micro-batches, 1F1B at most p − s on stage s.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your pipeline has 8 stages and 8 micro-batches. What do you change first? (a) 1F1B instead of GPipe, (b) 32 micro-batches of the same size, (c) links
# with twice the bandwidth.
#
# <details><summary>What to listen for</summary>(b): idle for 7/39 instead of 7/15, if the training bears a batch four times as large; with GPipe it needs four times
# the memory, and (a) becomes necessary. (c): ranks wait mostly for others' computing.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?
#
# What GPipe's authors published **recomputes**: a rank keeps only the input of its stage, and goes forward again when the gradient comes.

# %%
# %%px
from torch.utils.checkpoint import checkpoint


def recomputed(stage):
    """The stage, but only its input is kept for backward."""
    return lambda x: checkpoint(stage, x, use_reentrant=False)


# %% [markdown]
# `SavedBytes` counts what autograd keeps. **Predict** the order of the three, on rank 0 of four with 8 micro-batches.

# %%
# %%px
from course_lib.training.kept import SavedBytes

kept = {}
for name, schedule, wrap in (
    ("GPipe", gpipe, nn.Sequential),
    ("1F1B", one_f_one_b, nn.Sequential),
    ("GPipe, recomputed", gpipe, recomputed),
):
    stage = cut(comm)
    with SavedBytes(stage) as counter:
        step(comm, wrap(stage), schedule, 8)
    kept[name] = counter.peak / 2**20

# %%
for name in cluster[0]["kept"]:
    print(f"{name:18}", *(f"rank {rank}: {kept[name]:.2f} " for rank, kept in enumerate(cluster["kept"])))

# %% [markdown]
# Recomputing beats even 1F1B where a stage is deep (and both can be combined). The price is a second forward: 4 slots per micro-batch instead of 3.
#
# **Can the bubble shrink without more micro-batches?** Cut the network into eight stages, and give rank r stages r and r + 4, two **chunks**. That is **interleaving**: the first micro-batch reaches the last rank
# sooner, because chunks are half as long. With v chunks, and m a multiple of p, the idle share is (p − 1) / (v · m + p − 1). **Predict:** does rank 0 hold more
# activations than with 1F1B, or fewer?

# %%
from course_lib.theory.schedules import (
    interleaved_one_f_one_b,
    makespan,
    one_f_one_b,
    peak_activations,
    simulate,
)

for m in (4, 8, 32):
    for chunks in (1, 2):
        schedule = interleaved_one_f_one_b(4, m, chunks=chunks)
        slots, held = makespan(simulate(schedule, 1 / chunks, 2 / chunks)), peak_activations(schedule[0])
        print(f"m = {m:2}, {chunks} per rank: {slots:5} slots, it holds {held / chunks} of its layers")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# More, from m = 8 on: 11 chunks, as much as 5.5 whole stages, instead of 4. With m = 4 it does not show. And there are seven boundaries to send across
# instead of three.
#
# </details>

# %%
from course.lessons.shared.figures.schedules import live_activations, schedule_grids

both = {
    "1F1B": simulate(one_f_one_b(4, 8), 1, 2),
    "interleaved": simulate(interleaved_one_f_one_b(4, 8, chunks=2), 0.5, 1),
}
schedule_grids(both)

# %%
live_activations(both)

# %% [markdown]
# **And without any bubble?** PipeDream, which introduced 1F1B, never waits for the end of a batch: it updates after each backward and lets the next
# micro-batch in. There is no **flush**, so there is no bubble, but a micro-batch may go forward with weights that others have updated since. PipeDream keeps
# that version for its backward. Its gradients are stale, and it is not the training of one process. What we wrote, 1F1B *with* a flush, came later
# (PipeDream-Flush, Megatron-LM).
#
# ### Which stage sets the pace?

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# Four stages on four ranks need four cores. Here they *sleep* for as long as they would compute, which needs none; messages are real. Such times are
# **emulated**. Three stages take 3 ms forward and backward, the last one 9 ms, and 16 micro-batches go through.

# %% tags=["nbval-ignore-output"]
# %%px
from course_lib.training.layers import Sleep

last = comm.rank == 3
sleeper = Sleep(0.003 if last else 0.001, 0.006 if last else 0.002)
parts = [(torch.ones(1, 9), torch.ones(1)) for _ in range(16)]
took = timed(
    comm,
    lambda: run_stage(comm, sleeper, one_f_one_b(comm.rank, 4, 16), parts, lambda y, _: y.sum()),
)
if comm.rank == 0:
    print(f"{1e3 * took:.0f} ms emulated; the last stage alone works for {16 * 9} ms")

# %% [markdown]
# The other three are idle most of the time. So cut by *time*, not by layers or weights: `layer_flops` of `course_lib` counts operations, and `split_layers`
# makes the most expensive stage as cheap as possible.

# %%
# %%px --targets 0
from course_lib.parallel.pipeline import layer_flops, split_layers

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    *(layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())),
    *(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)),
)
flops = layer_flops(model, torch.ones(8, 1, 28, 28))
for name, costs in {"weights": None, "operations": flops}.items():
    front, _ = split_layers(model, 2, costs)
    share = sum(flops[: len(front)]) / sum(flops)
    print(f"cut in two by {name:10}: the first stage has {share:.0%} of the operations")

# %% [markdown]
# Dropout draws different numbers on every rank. This makes them those of one process:

# %%
# %%px
from course_lib.training.layers import with_repeatable_dropout

same = with_repeatable_dropout(nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.5)), seed=0)

# %% [markdown]
# ## References
#
# - Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), 2019: micro-batches, with recomputation.
# - D. Narayanan and others, [PipeDream](https://doi.org/10.1145/3341301.3359646), 2019: 1F1B without a flush.
# - D. Narayanan and others, [Memory-efficient pipeline-parallel DNN training](https://arxiv.org/abs/2006.09503), 2021: PipeDream-Flush.
# - D. Narayanan and others, [Efficient large-scale language model training on GPU clusters using
#   Megatron-LM](https://arxiv.org/abs/2104.04473), 2021: 1F1B with one update per batch, and interleaving.
# - P. Qi and others, [Zero bubble pipeline parallelism](https://arxiv.org/abs/2401.10241), 2024: weight gradients where the bubble was.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
