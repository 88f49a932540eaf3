# ---
# title: Pipeline parallelism
# goal: Cut a network into stages, one per rank, and find out how much of the time they are idle.
# able:
#   - run forward and backward across ranks
#   - count how long a pipeline's ranks are idle
#   - write the schedule 1F1B, and say how many micro-batches a stage holds
# more:
#   - say what recomputing, interleaving and unequal stages cost
# before: >-
#   {01}, {03}, {05}
# minutes: {core: 20, more: 10}
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
#     answer: Gradients, which are summed or averaged. In a pipeline no rank keeps the whole model.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A stage per rank
#
# Some networks are too large for one GPU. In **pipeline parallelism** each rank keeps some consecutive layers, a **pipeline stage**.

# %%
# %%px --save 08_pipeline.py
"""Pipeline parallelism: trains a network on data/digits.npz, one stage per rank."""

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
IMAGES, WIDTH = 512, 128  # images per micro-batch; outputs of a hidden layer per image


# %%
# %%px --save 08_pipeline.py
def cut(team):
    """This rank's stage. Each rank first draws all layers, so that the cut does not change the weights."""
    torch.manual_seed(0)
    layers = [x for size in pairwise([64, *7 * [WIDTH], 10]) for x in (nn.ReLU(), nn.Linear(*size))]
    return nn.Sequential(*np.array_split(layers, team.size)[team.rank])


# %% [markdown] tags=["subslide"]
# A batch is cut into **micro-batches** (lesson 05). A **schedule** lists what a rank does: `("F", 2)` takes micro-batch 2 forward, `("B", 2)` takes it backward. Between the two, the rank keeps
# what its layers computed: their **activations**.

# %% tags=["source: course_lib.parallel.stages:received"]
# %%px --save 08_pipeline.py

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# Activations go to the next rank, and their gradient comes back. `requires_grad_()` makes autograd compute the gradient of what was *received*;
# `y.backward(gradient)` continues from the gradient that the next rank sent.
#
# The simplest schedule is **GPipe**'s: all forwards, then all backwards, the last micro-batch first.


# %%
# %%px --save 08_pipeline.py
def gpipe(stage, stages, m):
    """The schedule of one of the stages, for m micro-batches."""
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def train(team, schedule=gpipe, m=2, steps=40):
    """Train with m micro-batches per step; returns the loss of the last step."""
    stage = cut(team)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)

    def share(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum") / (m * IMAGES)

    for seed in range(steps):
        batch = np.random.default_rng(seed).integers(len(images), size=(m, IMAGES))
        parts = [(images[row], labels[row]) for row in batch]
        optimizer.zero_grad()
        loss = run_stage(team, stage, schedule(team.rank, team.size, m), parts, share, WIDTH)
        optimizer.step()
    return team.allreduce(loss)


# %%
# %%px --save 08_pipeline.py
if __name__ == "__main__":
    loss = train(comm)
    if comm.rank == 0:
        print(f"ranks: {comm.size}, loss {loss:.6f}")

# %% [markdown]
# Now one rank trains all layers. **Guess:** how many of the six decimals change?

# %%
# !mpiexec -n 1 python code/08_pipeline.py

# %% [markdown] tags=["slide"]
# ## 2 · Who is idle?
#
# No decimal changed: it is the same arithmetic, in the same order. But is the pipeline faster? Rank 0 first trains all layers alone. Then ranks 0 and 1 train half of them each.

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %%
# %%px --targets 0:2 --timeout 300
from course_lib.measure import measure

alone, pair = MPI.COMM_SELF, comm.Create_group(comm.group.Incl([0, 1]))
speed = {}
for m in 1, 2, 4, 8, 16:
    ways = {"one": lambda: comm.rank == 0 and train(alone, gpipe, m, steps=1)}
    ways["two"] = lambda: train(pair, gpipe, m, steps=1)
    one, two = measure(pair, ways)
    speed[m] = one.low / two.low  # the shortest of ten runs

# %% tags=["nbval-ignore-output"]
outcome("One micro-batch: how many times as fast are two ranks?", cluster[0]["speed"][1])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# You pay for two ranks and get at most the speed of one! Rank 1 waits for activations, then rank 0 for their gradient: one is always idle.
#
# </details>
#
# Do more micro-batches, each as large, help? We draw four equal stages. A forward takes 1 slot, a backward 2, and messages take none.

# %%
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules, draw_speed

draw_schedules(4, cluster[0]["gpipe"])

# %% [markdown]
# The white slots, also before the first pass and after the last, are the **bubble**: each rank is idle for 9 slots. **Vote:** with 16 micro-batches a rank is idle for (a) fewer, (b) 9, (c) more.

# %%
draw_schedules(16, cluster[0]["gpipe"])

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). Rank 0 waits while its last micro-batch passes through the other p − 1 ranks and back: 3(p − 1) slots, whatever m is. With 3m slots of work, a step takes 3(m + p − 1). One rank alone
# takes 3pm. So p ranks are **p · m / (m + p − 1)** times as fast.
#
# </details>
#
# Your two ranks have also trained with 2, 4, 8 and 16 micro-batches. **Predict** their speed-up over one rank with 16.

# %% tags=["nbval-ignore-output"]
draw_speed(cluster[0]["speed"], formula={m: 2 * m / (m + 1) for m in (1, 2, 4, 8, 16)})

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# No measured time went into the formula. The points stay below it, as messages take time, and far below if other programs use your cores.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# So take many micro-batches! Each leaves about 2 MiB of activations on each of two ranks. We let each rank allocate 64 MiB (this works on Linux). **Vote:** with 32 micro-batches, they (a) train, (b) run out of memory.

# %%
from course_lib.effects import runs_within  # runs a job whose ranks may allocate so many MiB

small = "train(comm, steps=1)"  # runs first, without the limit
print("GPipe trains:", runs_within(64, 2, "code/08_pipeline.py", "train(comm, gpipe, 32, 1)", small))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b). GPipe keeps the activations of all 32 before it frees the first: 32 · 2 MiB reach the limit, and the images need memory, too.
#
# </details>
#
# Why should the first backward wait so long?

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown] tags=["subslide"]
# Does your schedule survive the limit? And what does it cost? With 8 micro-batches, GPipe takes 33 slots. **Predict** yours.

# %%
print("1F1B trains:", runs_within(64, 2, "code/08_pipeline.py", "train(comm, one_f_one_b, 32, 1)", small))

# %%
draw_schedules(8, cluster[0]["gpipe"], cluster[0]["one_f_one_b"])

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# It survives, and takes 33 slots, too: with the same m, 1F1B saves memory, not time. Stage s of p begins with p − s forwards: the warm-up, and the first of the pairs. Then each backward
# frees a micro-batch before the next forward. So memory no longer limits m.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | m | limited: 8 pipelines of 8 stages share one global batch, and small micro-batches use a GPU badly |
# | messages | few, between neighbours only: pipelines often span machines |
# | stages | unequal: a language model's output layer lengthens the last |
# | batch norm | sees one micro-batch at a time |

# %% tags=["exercise: 08.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - With equal stages and free messages, the speed-up of p ranks is p · m / (m + p − 1).
# - GPipe holds all m micro-batches. With the same m, 1F1B is as fast, and stage s (from 0) holds at most p − s, whatever m is.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your GPipe has 8 stages and 8 micro-batches. Which change gives most images per second: (a) 1F1B, (b) 32
# micro-batches of the same size, (c) links with twice the bandwidth?
#
# <details><summary>What to listen for</summary>(b): idle for 7/39 of the time, not 7/15, if training bears that batch. Memory may then
# need (a). (c) helps little as long as messages are short compared with computing.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?
#
# GPipe's authors had a different answer to the memory limit. Their ranks **recompute**: a rank keeps only the input of its stage, and goes forward again when the gradient comes.
# `Recomputed` of `course_lib` does that (PyTorch's is `torch.utils.checkpoint`), and `SavedBytes` counts what autograd keeps. Four ranks run 8 micro-batches with GPipe, with 1F1B, and with GPipe that recomputes. **Predict:**
# which keeps least on rank 0, and which on rank 3?

# %%
# %%px
from course_lib.parallel.pipeline import Recomputed
from course_lib.training.kept import SavedBytes

batch = np.random.default_rng(0).integers(len(images), size=(8, IMAGES))
parts = [(images[row], labels[row]) for row in batch]
kept = {}
for name, schedule, wrap in (
    ("GPipe", gpipe, nn.Sequential),
    ("1F1B", one_f_one_b, nn.Sequential),
    ("GPipe, recomputed", gpipe, Recomputed),
):
    stage = cut(comm)
    with SavedBytes(stage) as counter:
        run_stage(comm, wrap(stage), schedule(comm.rank, 4, 8), parts, F.cross_entropy, WIDTH)
    kept[name] = counter.peak / 2**20

# %%
for name in cluster[0]["kept"]:
    print(f"{name:18}", *(f"rank {r}: {kept[name]:.2f} MiB " for r, kept in enumerate(cluster["kept"])))

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# GPipe that recomputes keeps the stage's input for every micro-batch, and the activations of one while it goes backward. On rank 0, where inputs are small and 1F1B holds most, that is less than 1F1B
# keeps; on the others it is more. A stage here has only two linear layers; in a deeper stage the inputs weigh less. 1F1B can recompute, too. The price is a second forward: 4 slots per micro-batch instead of 3.
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
# More, from m = 8 on: up to 11 forwards of a chunk wait for their backward. A chunk is half a rank's layers, so they weigh as much as 5.5 micro-batches; 1F1B holds 4. With m = 4 there are only 4 to hold. And activations cross
# seven boundaries instead of three, so slow links can cost more than the bubble saves. The next figure shows m = 8, with chunk 1 in brown.
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
# Four stages on four ranks need four cores. Here each stage *sleeps* for as long as it would compute; sleeping needs no core. Messages are real. Such times are
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
# Filling and draining the pipeline add 9 ms; sleeps that last too long, messages, and other programs add the rest. The first three ranks are idle most of the time. So cut by *time*, not by layers or weights: `layer_flops` of `course_lib` counts operations, a first guess at time, and `split_layers`
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
# 95 %: it has all convolutions, as one linear layer holds nearly all weights. But a convolution uses its few weights at every pixel; this linear layer uses each once per image. (In a language model, linear layers use theirs at every
# token, so equal blocks are equal work.) Cut by operations, the first stage has 48 %.
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
# - P. Qi and others, [Zero bubble pipeline parallelism](https://arxiv.org/abs/2401.10241), 2024: ranks compute weight gradients while they would be idle.
# - PyTorch, [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html): `Schedule1F1B` and others.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
