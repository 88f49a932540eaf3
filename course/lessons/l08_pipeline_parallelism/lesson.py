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
# minutes: {core: 20, more: 9}
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
# ## 1 · Each rank a part of the layers
#
# Some networks are too large for the memory of any rank. In **pipeline parallelism** each rank keeps and trains some consecutive layers, a **pipeline stage**.

# %%
# %%px --save 08_pipeline.py
"""Pipeline parallelism: trains a network on data/digits.npz, a stage per rank."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: what the cell is saved to
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
IMAGES, WIDTH = 512, 128  # per micro-batch; numbers that a layer makes of an image


# %%
# %%px --save 08_pipeline.py
def cut(team):
    """This rank's stage. Every rank draws all layers, so the weights do not depend on the cut."""
    torch.manual_seed(0)
    layers = [x for size in pairwise([64, *7 * [WIDTH], 10]) for x in (nn.Linear(*size), nn.ReLU())]
    mine = np.array_split(range(15), team.size)[team.rank]  # 15 layers: no ReLU at the end
    return nn.Sequential(*(layers[n] for n in mine))


# %% [markdown] tags=["subslide"]
# What layers compute, their **activations**, a rank keeps for backward. It sends the last layer's to the next rank, and later gets back their gradient.
#
# A batch is cut into **micro-batches**, whose gradients add up (lesson 05). A **schedule** is the list of what a rank does, one after the other: `("F", 2)` takes micro-batch 2 forward, `("B", 2)` takes it backward.

# %% tags=["source: course_lib.parallel.stages:received"]
# %%px --save 08_pipeline.py

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# Only the last rank has a loss. For all others, `requires_grad_()` is the trick: it makes autograd compute a gradient for what was *received*. That gradient goes to the
# rank before, which continues from it with `y.backward(gradient)`. (`Isend`, because two neighbours may send to each other at the same time.)
#
# The simplest schedule is that of **GPipe**: all forwards, then all backwards.


# %%
# %%px --save 08_pipeline.py
def gpipe(stage, stages, m):
    """The schedule of one of the stages, for m micro-batches."""
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def step(team, stage, schedule, m, seed=0):
    """Forward and backward of m micro-batches; returns this rank's part of the loss."""
    batch = np.random.default_rng(seed).integers(len(images), size=(m, IMAGES))
    parts = [(images[row], labels[row]) for row in batch]

    def share(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum") / batch.size

    return run_stage(team, stage, schedule(team.rank, team.size, m), parts, share, WIDTH)


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
# Now one rank with all layers, in one process. **Guess:** which of the six decimals change?

# %%
# !mpiexec -n 1 python code/08_pipeline.py

# %% [markdown]
# None: the same sums, in the same order. And how long does it take? Ranks 0 and 1 (`pair`) hold half of the layers each, and take *one* micro-batch. How many times as fast as rank 0 alone are they? (`measure` runs both ways ten times; the shortest counts.)

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %%
# %%px --targets 0:2
from course_lib.measure import measure

alone = MPI.COMM_SELF
pair = comm.Create_group(comm.group.Incl([0, 1]))  # ranks 0 and 1
full, half = cut(alone), cut(pair)
ways = {"one": lambda: comm.rank or step(alone, full, gpipe, 1)}  # on rank 0 only
ways["two"] = lambda: step(pair, half, gpipe, 1)
one, two = measure(pair, ways)
single = one.low / two.low

# %% tags=["nbval-ignore-output"]
outcome("One micro-batch: how many times as fast are two ranks?", cluster[0]["single"])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# No faster! Rank 1 waits for activations, and then rank 0 waits for their gradients: one of the two is always idle. With more micro-batches, rank 0 can
# take the next one while rank 1 works on this one. How much is that worth?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Count the white slots
#
# Let us draw it: four equal stages, and messages that cost nothing. A forward takes 1 slot. A backward takes 2, for gradients of weights *and* of inputs.

# %%
# %%px --targets 0
paper = {m: [gpipe(rank, 4, m) for rank in range(4)] for m in (4, 16)}

# %%
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules

draw_schedules({"4 micro-batches": cluster[0]["paper"][4]})

# %% [markdown]
# The white slots, ends included, are the **bubble**: each rank is idle for 9. **Vote:** with 16 micro-batches a rank is idle for (a) fewer slots, (b) 9, (c) more.

# %%
draw_schedules({"16 micro-batches": cluster[0]["paper"][16]})

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). Rank 0 waits while its last micro-batch passes the other p − 1 ranks and comes back: 3(p − 1) slots, whatever m is.
#
# With 3m slots of work, a step takes 3(m + p − 1). One rank alone would work for 3pm. So p ranks are **p · m / (m + p − 1)** times as fast as one.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# So take many micro-batches! But memory ends somewhere. We let each of two ranks allocate 64 MiB for a step, for 32 micro-batches of 512 images. **Vote:** they (a) run, (b) run slowly, (c) fail. (With `-m mpi4py`, a rank that fails ends all.)

# %%
# %%writefile code/limited.py
"""A step of 08_pipeline.py, each rank with 64 MiB to allocate: limited.py SCHEDULE MICRO-BATCHES."""

import runpy
import sys

from course_lib.effects import memory_limit

ours = runpy.run_path("code/08_pipeline.py")
ours["main"](steps=1)  # first without a limit, as torch allocates some things only once
with memory_limit(64 * 2**20):
    ours["main"](ours[sys.argv[1]], int(sys.argv[2]), steps=1)

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python -m mpi4py code/limited.py gpipe 32 2>&1 | grep "m = 32\|memory:"

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). A rank dies asking for another half MiB. GPipe keeps the activations of all 32 micro-batches before the first one goes backward.
#
# </details>
#
# Why should the first backward wait so long?

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown] tags=["subslide"]
# Does your schedule survive the limit? And what does it cost: with 8 micro-batches, GPipe takes 33 slots. **Predict** yours.

# %% tags=["nbval-ignore-output"]
# !mpiexec -n 2 python -m mpi4py code/limited.py one_f_one_b 32 2>&1 | grep "m = 32\|memory:"

# %%
# %%px --targets 0
grids = {each.__name__: [each(rank, 4, 8) for rank in range(4)] for each in (gpipe, one_f_one_b)}

# %%
draw_schedules(cluster[0]["grids"])

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# It runs, and it takes 33 slots, too: 1F1B saves memory, not time. Rank s of p begins with p − s forwards (`warmup` + 1). From then on each backward frees a micro-batch before the next forward, so
# the rank never holds more than p − s.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | m | 8 pipelines of 8 stages share one global batch: m is often small |
# | messages | small, between neighbours only, so pipelines often span machines; real pipelines receive while they compute |
# | stages | a language model's output layer lengthens the last, its embedding enlarges the first |
# | batch norm | sees one micro-batch at a time |
# | 1F1B | in PyTorch: `torch.distributed.pipelining.Schedule1F1B` |

# %% tags=["exercise: 08.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - With equal stages and free messages, p ranks are p · m / (m + p − 1) times as fast as one, with GPipe and with 1F1B.
# - GPipe holds all m micro-batches, 1F1B at most p − s on stage s.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your GPipe has 8 stages and 8 micro-batches. Which change gives most images per second? (a) 1F1B, (b) 32
# micro-batches of the same size, (c) links with twice the bandwidth.
#
# <details><summary>What to listen for</summary>(b): idle for 7/39 of the time, not 7/15, if training bears that batch. Memory may then
# need (a). (c): ranks mostly wait for computing, not messages.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Does your machine obey the formula?
#
# Two ranks and m micro-batches: 2m / (m + 1). **Predict:** do the measured points lie above the formula, on it, or below?


# %%
# %%px --targets 0:2 --timeout 100
def speed_up(m):
    """How many times as fast two ranks are as one, by the shortest of ten runs of each."""
    ways = {
        "one": lambda: comm.rank or step(alone, full, gpipe, m),  # on rank 0
        "two": lambda: step(pair, half, gpipe, m),
    }
    one, two = measure(pair, ways)
    return one.low / two.low


speed = {m: speed_up(m) for m in (1, 2, 4, 8, 16)}

# %% tags=["nbval-ignore-output"]
points = []
for m, measured in cluster[0]["speed"].items():
    row = {"labels": {"micro-batches": m}, "unit": "times one rank"}
    points += [{**row, "value": measured}, {**row, "value": 2 * m / (m + 1), "kind": "predicted"}]
show(points, x="micro-batches", y="speed")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# On a quiet machine mostly below: messages take time, and stages are not quite equal. The shape is the formula's, though no measured time went into it. If points jump, or lie above 2, other programs disturbed them: run the cells again.
#
# </details>
#
# ### What can memory buy?
#
# The GPipe of the paper also **recomputes**: a rank keeps only the input of its stage, and goes forward again when the gradient comes.
# `Recomputed` of `course_lib` does it (PyTorch's is `torch.utils.checkpoint`), and `SavedBytes` counts what autograd keeps. Four ranks, 8 micro-batches; GPipe, 1F1B, and GPipe with recomputing. **Predict:**
# which of the three keeps least on rank 0, and which on rank 3?

# %%
# %%px
from course_lib.parallel.pipeline import Recomputed
from course_lib.training.kept import SavedBytes

kept = {}
for name, schedule, wrap in (
    ("GPipe", gpipe, nn.Sequential),
    ("1F1B", one_f_one_b, nn.Sequential),
    ("GPipe, recomputed", gpipe, Recomputed),
):
    stage = cut(comm)
    with SavedBytes(stage) as counter:
        step(comm, wrap(stage), schedule, 8)
    kept[name] = counter.peak / 2**20

# %%
for name in cluster[0]["kept"]:
    print(f"{name:18}", *(f"rank {r}: {kept[name]:.2f} MiB " for r, kept in enumerate(cluster["kept"])))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Recomputed GPipe keeps the stage's input for every micro-batch, and the activations of one while it goes backward. On rank 0 that is less than 1F1B keeps, on
# the others more: a stage here has only two linear layers, and with more of them the inputs weigh less. 1F1B can recompute, too. The price is a second forward: 4 slots per micro-batch instead of 3.
#
# </details>
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
        print(f"m = {m:2}, {chunks} per rank: {slots:5} slots, rank 0 holds {held / chunks} micro-batches")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# More, from m = 8 on: up to 11 forwards of a chunk wait for their backward. A chunk is half a rank's layers, so they weigh as much as 5.5 micro-batches; 1F1B holds 4. With m = 4 there are no more than 4 to hold. And there are seven
# boundaries to send across instead of three. The next figure shows m = 8, with chunk 1 in brown.
#
# </details>

# %%
from course.lessons.shared.figures.schedules import schedule_grids

both = {
    "1F1B": simulate(one_f_one_b(4, 8), 1, 2),
    "interleaved": simulate(interleaved_one_f_one_b(4, 8, chunks=2), 0.5, 1),
}
schedule_grids(both)

# %% [markdown]
# **And without any bubble?** PipeDream, which introduced 1F1B, never waits for the end of a batch: a stage updates its weights after each backward. But between a micro-batch's forward and its
# backward, the backwards of other micro-batches update the weights. So PipeDream keeps the old version for the backward: more memory, and a gradient that is **stale** when it is applied. This is not the training of one
# process. What we wrote, 1F1B *with* a **flush** (the pipeline runs empty before the weights change), came later (PipeDream-Flush, Megatron-LM).
#
# ### Which stage sets the pace?

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# Four stages on four ranks need four cores. Here they *sleep* for as long as they would compute, which needs none; messages are real. Such times are
# **emulated**. Three stages take 3 ms for forward and backward together, the last one 9 ms, and 16 micro-batches go through.

# %% tags=["nbval-ignore-output"]
# %%px
from course_lib.measure import timed
from course_lib.training.layers import Sleep

last = comm.rank == 3
sleeper = Sleep(0.003 if last else 0.001, 0.006 if last else 0.002)
parts = [(torch.ones(1, 9), torch.ones(1)) for _ in range(16)]
took = timed(
    comm,
    lambda: run_stage(comm, sleeper, one_f_one_b(comm.rank, 4, 16), parts, lambda y, _: y.sum(), 9),
)
if comm.rank == 0:
    print(f"{1e3 * took:.0f} ms emulated; the last stage alone works for {16 * 9} ms")

# %% [markdown]
# Filling and draining add 9 ms; sleeps that last too long, and messages, add the rest. The other three ranks are idle most of the time. So cut by *time*, not by layers or weights: `layer_flops` of `course_lib` counts operations, a first guess at time, and `split_layers`
# makes the most expensive stage as cheap as possible. **Predict** for a CNN: if the cut splits the weights as evenly as whole layers allow, what share of the operations has the first stage?

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
# <details><summary>Open after you have run the cell</summary>
#
# 95 %: it has all convolutions, as one linear layer holds nearly all weights. But a convolution uses its few weights at every pixel, a linear layer uses each once. Cut by operations, the first stage has 48 %.
#
# </details>

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
