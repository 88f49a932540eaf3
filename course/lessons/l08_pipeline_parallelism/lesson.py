# ---
# title: Pipeline parallelism
# goal: Cut a network into stages, and find out who waits.
# able:
#   - run a network across ranks
#   - count idle slots
#   - repair the schedule 1F1B
# more:
#   - say what recomputing, interleaving and unequal stages cost
# before: >-
#   {01}, {03}, {05}
# minutes: {core: 20, more: 10}
# ranks: 4
# warm-up:
#   - ask: >-
#       You call `backward` for each micro-batch. What must its loss be, so that `.grad` becomes the gradient of
#       the batch's mean loss?
#     answer: >-
#       The sum over its samples, divided by the size of the whole batch.
#   - ask: Each of two ranks sends the other 1 MB with `Send`, then calls `Recv`. What happens?
#     answer: >-
#       With most MPI libraries both ranks wait in Send forever.
#       <code>Isend</code> returns at once.
#   - ask: One rank takes 8 s for a job, and two ranks take 5 s. What is their speed-up?
#     answer: 1.6 (at best 2).
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A stage per rank
#
# What if a network does not fit on one GPU? In **pipeline parallelism**, each rank keeps a few consecutive layers, its **pipeline stage**.
#
# ```
#             rank 0           rank 1           rank 2           rank 3
# images →  layers 1, 2  →   layers 3, 4  →   layers 5, 6  →   layers 7, 8  → loss     forward: outputs
#                        ←                ←                ←                ←          backward: their gradients
# ```

# %%
# %%px --save 08_pipeline.py
"""Pipeline parallelism: trains on data/digits.npz."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()


# %%
# %%px --save 08_pipeline.py
def layer(n):
    torch.manual_seed(n)  # equal first weights, whichever rank builds it
    return nn.Sequential(nn.ReLU(), nn.Linear(64 if n == 1 else 128, 10 if n == 8 else 128))


def cut(team):
    return nn.Sequential(*map(layer, np.array_split(range(1, 9), team.size)[team.rank]))


# %% [markdown] tags=["subslide"]
# We cut each batch into **micro-batches**. A **schedule** lists what a rank does, in order:
#
# ```
# ("F", 2)   micro-batch 2 forward:    receive the stage's input x, run its layers, send the output y to the next rank
# ("B", 2)   micro-batch 2 backward:   receive the gradient of y, run backward, send the gradient of x to the previous rank
# ```
#
# The previous stage has no loss, so its backward starts from the gradient of its output, our `x`.
# Until backward, the dictionary `held` keeps `x` and `y`. With `y`, autograd keeps what backward needs: the **activations**.

# %% tags=["source: course_lib.parallel.stages:received"]
# %%px --save 08_pipeline.py

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# The simplest schedule is **GPipe**: all micro-batches go forward, then all backward.


# %%
# %%px --save 08_pipeline.py
def gpipe(stage, stages, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def train(team, schedule=gpipe, m=2, steps=1):
    stage, order = cut(team), schedule(team.rank, team.size, m)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)
    for batch in np.random.default_rng(0).integers(len(images), size=(steps, m, 512)):
        parts = [(images[row], labels[row]) for row in batch]
        optimizer.zero_grad()
        loss = run_stage(team, stage, order, parts, lambda y, t: F.cross_entropy(y, t) / m, 128)
        optimizer.step()
    return loss


# %%
# %%px --save 08_pipeline.py
if __name__ == "__main__" and (loss := train(comm, steps=40)):
    print(f"ranks: {comm.size}, loss {loss:.9f}")

# %% [markdown]
# Now one rank trains all layers. **Vote:** to how many decimals do the two losses agree: (a) all nine, (b) about three, (c) none?

# %%
# !mpiexec -n 1 python code/08_pipeline.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Each layer does the same arithmetic in the same order. (With batch norm, the losses agree if m is the same.
# With dropout, ranks draw different random numbers.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Is it faster?
#
# We time `train` (one step) with 1 to 16 micro-batches of 512 images, on one rank and on two.

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %%
# %%px --targets 0:2 --timeout 300
from collections import defaultdict

from course_lib.measure import timed

pair = comm.Create_group(comm.group.Incl([0, 1]))
alone, both, speed = defaultdict(list), defaultdict(list), {}
for m in 7 * (1, 2, 4, 8, 16):
    alone[m] += [timed(pair, lambda: comm.rank == 0 and train(MPI.COMM_SELF, m=m), repeat=1)]
    both[m] += [timed(pair, lambda: train(pair, m=m), repeat=1)]
    speed[m] = min(alone[m]) / min(both[m])

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules, draw_speed

outcome("One micro-batch: how many times as fast are two ranks?", cluster[0]["speed"][1])
draw_speed(cluster[0]["speed"], formula={m: 2 * m / (m + 1) for m in (1, 2, 4, 8, 16)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With one micro-batch, only one rank computes at a time. With more, they often compute together.
# (Above 1 at m = 1? Both ranks build and update layers.)
#
# </details>
#
# We count slots on four ranks with equal stages:
#
# ```
# forward     1 slot of time
# backward    2 slots: gradients of the input, and of the weights
# message     0 slots
# ```

# %%
draw_schedules(4, cluster[0]["gpipe"])

# %% [markdown]
# Each rank is idle for 9 slots (white), its **bubble**.
# **Vote:** with 16 micro-batches, does each rank have (a) fewer, (b) 9, (c) more?

# %%
draw_schedules(16, cluster[0]["gpipe"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Rank 0 waits while the last micro-batch goes forward and backward through three stages: 3 · (1 + 2). But the step gets longer:
#
# ```
#                          4 ranks, 16 micro-batches    p ranks, m micro-batches
# busy slots per rank      16 · 3 = 48                  m · 3
# idle slots per rank      3 · 3 = 9                    (p − 1) · 3
# idle share of the step   9 / 57                       (p − 1) / (m + p − 1)
# speed-up over one rank   4 · 48 / 57 = 3.4            p · m / (m + p − 1)
# ```
#
# The dashed curve is the last formula for p = 2, equal stages, free messages, and a core per rank.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# Why not take many micro-batches of 512? GPipe keeps all their activations until backward. On the last of two ranks, each micro-batch needs:
#
# ```
# input of the stage       512 images · 128 numbers · 8 bytes    0.5 MiB
# outputs of four ReLUs    4 · 0.5 MiB                           2.0 MiB
# images (in `parts`)      512 images · 64 numbers · 8 bytes     0.25 MiB
# ```
#
# **Predict:** how many fit into 64 MiB? Write your number in place of 32.

# %%
from course_lib.effects import (
    runs_within,  # True if 64 MiB more per rank suffice; `first` runs before, unlimited
)

runs_within(64, 2, "code/08_pipeline.py", "train(comm, gpipe, 32)", first="train(comm)")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# On paper, 23 (64 / 2.75). But weights, gradients and the loss's activations need memory, too.
#
# </details>
#
# What if each backward comes right after its forward? Then a rank keeps only one micro-batch. **Predict:** how many slots do 8 micro-batches take on four ranks? (GPipe: 33.)


# %%
def at_once(stage, stages, m):
    return [(kind, i) for i in range(m) for kind in "FB"]


draw_schedules(8, at_once)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 8 · 12 = 96. No micro-batch starts before the previous one has gone backward.
#
# </details>

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown]
# **Predict:** does 1F1B train 100 micro-batches in 64 MiB?

# %%
runs_within(64, 2, "code/08_pipeline.py", "train(comm, one_f_one_b, 100)", first="train(comm)")

# %% [markdown] tags=["subslide"]
# **Predict:** how many slots does 1F1B take for 8 micro-batches on four ranks?

# %%
draw_schedules(8, cluster[0]["gpipe"], cluster[0]["one_f_one_b"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 33 as well, because rank 3 sets the time in both:
#
# ```
# 3 slots     until its first input arrives
# 24 slots    it works: 8 · (1 + 2)
# 6 slots     then ranks 2, 1 and 0 run their last backward in turn
# ```
#
# After four forwards, rank 0 runs a backward before each forward, so it keeps at most 4 micro-batches (on two ranks 2, so 100 fit).
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# Eight pipelines of 8 GPUs share a batch of 128 micro-batches, so m = 16. With GPipe or 1F1B and equal stages, each GPU idles for
# 7/23 of the step. With 128 pipelines (1,024 GPUs), m = 1: each idles for 7/8.
# Messages and the pipelines' all-reduce cost extra, unless computing hides them.
#
# Only outputs and their gradients cross a boundary, so a pipeline may span nodes.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - With GPipe or 1F1B, equal stages (one per rank) and free messages, a rank idles for (p−1)/(m+p−1) of a step.
# - Without recomputing or interleaving (see More), GPipe keeps the activations of all m micro-batches, 1F1B those of at most p.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# What reduces these 7/23 most: (a) 1F1B instead of GPipe, (b) 16 pipelines of 4 GPUs, (c) micro-batches of half the size?
#
# <details><summary>What to listen for</summary>(c) gives 7/39, but GPUs compute small micro-batches less efficiently. (b) gives 3/11 (m = 8), with twice as many layers per GPU. (a) saves only memory.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?
#
# With free messages, GPipe and 1F1B idle equally long. (With slow ones, 1F1B idles longer: most forwards first wait for a gradient.) Can a rank compute more to save memory, or use more memory to idle less?

# %% tags=["exercise: 08.q4"]

# %% [markdown]
# GPipe's authors let ranks **recompute**: a forward keeps only the stage's input. Before a micro-batch's backward, the
# rank runs its forward again to recompute the activations. (PyTorch's word is activation checkpointing.)
#
# We count the bytes that autograd keeps for 8 micro-batches on four ranks. On rank 0, one micro-batch has an input of 0.25 MiB, and 0.75 MiB
# of activations. **Predict:** what does rank 0 keep with GPipe, with 1F1B, and with GPipe that recomputes?

# %%
# %%px
from course_lib.parallel.pipeline import Recomputed
from course_lib.training.kept import SavedBytes

batch = np.random.default_rng(0).integers(len(images), size=(8, 512))
parts = [(images[row], labels[row]) for row in batch]


def kept(schedule, wrap=nn.Sequential):  # nn.Sequential changes nothing
    stage = cut(comm)
    with SavedBytes(stage) as counter:
        run_stage(comm, wrap(stage), schedule(comm.rank, 4, 8), parts, F.cross_entropy, 128)
    return f"{counter.peak / 2**20:.2f} MiB"


print("GPipe", kept(gpipe), "  1F1B", kept(one_f_one_b), "  GPipe, recomputing", kept(gpipe, Recomputed))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rank 0 keeps eight micro-batches with GPipe (6 MiB) and four with 1F1B (3 MiB). With recomputing, it keeps eight inputs and the activations of one micro-batch (2.75 MiB). Rank 3
# needs least with 1F1B: it has no later stage to feed, so it keeps one micro-batch. (The counter leaves out the outputs in `held` and, without recomputing,
# the stages' inputs.)
#
# Recomputing takes 4 slots per micro-batch instead of 3, if it repeats the whole stage. It must repeat the same dropout, and not update
# batch norm's running mean twice. Deep stages save more than ours, since they have many activations for one input.
#
# </details>
#
# Now we use more memory to save time. Cut the network into eight equal **chunks**, and give rank r two of them, r and r + 4. In this
# **interleaved** schedule, a chunk takes half as long as a stage did, so the first micro-batch reaches the last rank sooner. But each
# micro-batch visits rank 0 twice before rank 0 receives its gradient.
#
# We simulate equal stages, backwards that take twice as long as forwards, and free messages. **Predict:** 1F1B keeps 4 micro-batches on
# rank 0. How many does the interleaved schedule keep there?

# %%
from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import interleaved_one_f_one_b, peak_activations, simulate

one, two = (interleaved_one_f_one_b(4, 8, chunks=chunks) for chunks in (1, 2))
held = peak_activations(one[0]), peak_activations(two[0])
print(f"rank 0 keeps {held[0]} forwards of a stage, or {held[1]} of a chunk")
schedule_grids({"1F1B": simulate(one, 1, 2), "interleaved": simulate(two, 1 / 2, 1)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 5.5. In the picture, rank 0 runs 11 forwards before its first backward, each through half of its layers.
#
# In return, the bubble lasts 4.5 slots instead of 9. With v equal chunks per rank it lasts 1/v as long, if m is a multiple of p and messages
# are free. But a micro-batch now crosses seven boundaries instead of three, so on slow links many chunks can take longer.
#
# </details>
#
# The rest of the bubble comes from the **flush**: the pipeline empties before each update. PipeDream, which introduced 1F1B, has no flush. Its stages
# update after each backward and go on. But a backward needs its forward's weights, so a stage keeps old weights for each micro-batch under way. The gradients are **stale**:
# computed with old weights, applied to new ones. *Zero-bubble* schedules (see References) fill most idle slots without stale gradients: a
# rank computes the gradients of its weights later, since no other rank waits for them.
#
# **To remember:** recomputing saves memory and costs time. Interleaving saves time if messages are fast, and costs memory.
#
# ### Which stage sets the pace?
#
# We simulated equal stages. But the last stage of a language model also computes a score for every token of the vocabulary. What does one
# expensive stage do to all the others?

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# Four stages that compute at the same time need four cores. So our stages *sleep* for as long as they would compute.
# The messages are real. We call such times **emulated**.
#
# Forward and backward take 1 + 2 ms on the first three stages, and 3 + 6 ms on the last. **Predict:** how many milliseconds do 16 micro-batches take?

# %% tags=["nbval-ignore-output"]
# %%px
from course_lib.measure import timed
from course_lib.training.layers import Sleep

sleeper = Sleep(0.003, 0.006) if comm.rank == 3 else Sleep(0.001, 0.002)
order, parts = one_f_one_b(comm.rank, 4, 16), 16 * [(torch.ones(1, 9), torch.ones(1))]
took = timed(comm, lambda: run_stage(comm, sleeper, order, parts, lambda y, _: y.sum(), 9))
if comm.rank == 0:
    print(f"{1e3 * took:.0f} ms emulated")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The last stage works for 16 · 9 = 144 ms. Before it starts, the first micro-batch passes three stages (3 · 1 ms). After it ends, the last gradient passes back through
# them (3 · 2 ms). That makes 153 ms. You measure more: messages take time, sleeps last longer than asked, and waiting ranks may keep a core busy.
#
# Four equal stages of 4.5 ms would take (16 + 3) · 4.5 = 85.5 ms for the same work.
#
# </details>
#
# So stages should take equal *time*. But when you cut, you do not know the times yet. What is the better guess: the weights of each layer, or its operations?
#
# We try both on five convolutions and two linear layers. `split_layers` makes the more expensive of two stages as cheap as possible. **Predict:** if it
# counts weights, what share of the operations does the first stage get?

# %%
# %%px --targets 0
from course_lib.parallel.pipeline import layer_flops, split_layers

convolutions = [nn.Conv2d(channels, 16, 3, padding=1) for channels in (1, 16, 16, 16, 16)]
linears = nn.MaxPool2d(4), nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)
model = nn.Sequential(*convolutions, *linears)
flops = layer_flops(model, torch.ones(8, 1, 28, 28))  # operations of each layer
for name, costs in {"weights": None, "operations": flops}.items():
    front, back = split_layers(model, 2, costs)
    share = sum(flops[: len(front)]) / sum(flops)
    print(f"cut by {name}: the first stage has {share:.0%} of the operations")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 95 %. The first linear layer has nearly all weights, so the first stage gets all convolutions. But a convolution uses its few weights again at every pixel, and a linear layer
# uses each weight once per image. By this count, the second rank is nearly always idle.
#
# Operations, too, are only a guess. Time the running stages on your GPUs, and move a layer from a slow stage to a faster neighbour that has memory for it. (With 1F1B, early
# stages often have the least memory left.)
#
# </details>
#
# **To remember:** the most expensive stage sets the pace, so balance the times of the stages, not their weights.

# %% [markdown]
# ## References
#
# - Y. Huang and others, [GPipe](https://arxiv.org/abs/1811.06965), 2019: micro-batches, with recomputation.
# - D. Narayanan and others, [PipeDream](https://doi.org/10.1145/3341301.3359646), 2019: 1F1B without a flush.
# - D. Narayanan and others, [Memory-efficient pipeline-parallel DNN training](https://arxiv.org/abs/2006.09503), 2021: PipeDream-Flush, which is 1F1B with a flush, as ours.
# - D. Narayanan and others, [Efficient large-scale language model training on GPU clusters using
#   Megatron-LM](https://arxiv.org/abs/2104.04473), 2021: 1F1B with one update per batch, and interleaving.
# - P. Qi and others, [Zero bubble pipeline parallelism](https://arxiv.org/abs/2401.10241), 2024: ranks compute weight gradients while they would be idle.
# - PyTorch, [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html): `ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B` and `ScheduleZBVZeroBubble`.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
