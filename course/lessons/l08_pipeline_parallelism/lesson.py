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
# minutes: {core: 20, more: 14}
# ranks: 4
# warm-up:
#   - ask: >-
#       You cut a batch into micro-batches and call `backward` for each. Which loss must a micro-batch have, so that
#       `.grad` becomes the gradient of the batch's mean loss?
#     answer: >-
#       The sum over its samples, divided by the size of the whole batch. Then the gradients of the micro-batches
#       add up to that of the batch.
#   - ask: Two ranks call `Send` to each other at the same moment, with 1 MB each. What happens?
#     answer: >-
#       With most MPI libraries the program hangs, because each rank waits in Send and neither reaches its Recv.
#       <code>Isend</code> avoids this: it starts to send and returns at once.
#   - ask: In data parallelism every rank holds the whole model. What do the ranks send each other per step?
#     answer: Their gradients, which they sum or average.
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

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # so that rounding hides no mistake

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: where this cell is saved
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()


# %%
# %%px --save 08_pipeline.py
def cut(team):
    torch.manual_seed(0)  # 8 layers (ReLU, Linear), all built here: any cut starts with equal weights
    layers = [x for size in pairwise([64, *7 * [128], 10]) for x in (nn.ReLU(), nn.Linear(*size))]
    return nn.Sequential(*np.array_split(layers, team.size)[team.rank])  # this rank's stage


# %% [markdown] tags=["subslide"]
# We cut each batch into **micro-batches**. A **schedule** lists what a rank does, in order:
#
# ```
# ("F", 2)   micro-batch 2 forward:    receive the stage's input x, run its layers, send the output y to the next rank
# ("B", 2)   micro-batch 2 backward:   receive the gradient of y, run backward, send the gradient of x to the previous rank
# ```
#
# Why send a gradient back? The previous stage has no loss. Its backward starts from the gradient of its output, our `x`.
# Until its backward, a micro-batch's `x` and `y` stay in a dictionary, `held`. With `y`, autograd keeps what backward needs: the **activations**.

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
    for batch in np.random.default_rng(0).integers(len(images), size=(steps, m, 512)):  # 512 images each
        parts = [(images[row], labels[row]) for row in batch]
        optimizer.zero_grad()
        loss = run_stage(team, stage, order, parts, lambda y, t: F.cross_entropy(y, t) / m, 128)
        optimizer.step()
    return loss  # 0 before the last rank


# %%
# %%px --save 08_pipeline.py
if __name__ == "__main__" and (loss := train(comm, steps=40)):  # only the last rank has one
    print(f"ranks: {comm.size}, loss {loss:.9f}")

# %% [markdown]
# Now one rank trains all layers. **Vote:** on how many decimals do both losses agree: (a) all nine, (b) about three, (c) none?

# %%
# !mpiexec -n 1 python code/08_pipeline.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a). Each layer does the same arithmetic in the same order. (With batch norm, too: both runs normalize the same micro-batches. Not with
# dropout, because ranks draw their own random numbers.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Is it faster?
#
# We time a step of 1 to 16 micro-batches: on rank 0 with all layers, and on ranks 0 and 1 with half each.

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %%
# %%px --targets 0:2 --timeout 300
from collections import defaultdict

from course_lib.measure import timed

pair = comm.Create_group(comm.group.Incl([0, 1]))
alone, both, speed = defaultdict(list), defaultdict(list), {}
for m in 10 * (1, 2, 4, 8, 16):  # ten rounds; the fastest run counts, as other programs disturb it least
    alone[m] += [timed(pair, lambda: comm.rank == 0 and train(MPI.COMM_SELF, m=m), repeat=1)]
    both[m] += [timed(pair, lambda: train(pair, m=m), repeat=1)]  # half of the layers each
    speed[m] = min(alone[m]) / min(both[m])

# %% tags=["nbval-ignore-output"]
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules, draw_speed

outcome("One micro-batch: how many times as fast are two ranks?", cluster[0]["speed"][1])
draw_speed(cluster[0]["speed"], formula={m: 2 * m / (m + 1) for m in (1, 2, 4, 8, 16)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# With one micro-batch, two ranks are about as fast as one: one works while the other waits. With more micro-batches, both can work at once.
#
# </details>
#
# To explain the dashed curve, we count, first on four ranks with equal stages:
#
# ```
# forward     1 slot of time
# backward    2 slots: it computes the gradients of the input, and those of the weights
# message     0 slots
# ```

# %%
draw_schedules(4, cluster[0]["gpipe"])

# %% [markdown]
# A rank is idle in its white slots, the **bubble**. Each rank has 9: rank 3 has 3 at the start and 6 at the end.
# **Vote:** with 16 micro-batches, does each rank have (a) fewer, (b) 9, (c) more?

# %%
draw_schedules(16, cluster[0]["gpipe"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Rank 0 waits while the last micro-batch passes three stages forward and backward, however many came before. But the step gets
# longer:
#
# ```
#                          4 ranks, 16 micro-batches    p ranks, m micro-batches
# busy slots per rank      16 · 3 = 48                  m · 3
# idle slots per rank      3 · 3 = 9                    (p − 1) · 3
# idle share of the step   9 / 57                       (p − 1) / (m + p − 1)
# speed-up over one rank   4 · 48 / 57 = 3.4            p · m / (m + p − 1)
# ```
#
# The dashed curve is the last formula for two ranks. It assumes equal stages, free messages and undisturbed cores. Here, none of this holds exactly.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# So why not take very many micro-batches of 512 images? GPipe keeps every micro-batch's activations until its backward. On rank 1 of 2:
#
# ```
# input of the stage       512 images · 128 numbers · 8 bytes    0.5 MiB
# inputs of four linears   4 · 0.5 MiB                           2.0 MiB
# images (in `parts`)      512 images · 64 numbers · 8 bytes     0.25 MiB
# ```
#
# **Predict:** how many micro-batches fit into 64 MiB? Write your number in place of 32.

# %%
from course_lib.effects import runs_within  # True if 64 MiB per rank suffice; `first` runs before

runs_within(64, 2, "code/08_pipeline.py", "train(comm, gpipe, 32)", first="train(comm)")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# On paper, 64 / 2.75 = 23 fit. In practice slightly fewer do: a rank also holds weights, gradients and the loss's activations.
#
# </details>
#
# What if each rank ran each backward right after its forward? Then it keeps only one micro-batch. **Predict:** how many slots do 8 micro-batches take on four ranks? (GPipe: 24 + 9 = 33.)


# %%
def at_once(stage, stages, m):
    return [(kind, i) for i in range(m) for kind in "FB"]


draw_schedules(8, at_once)

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 8 · 12 = 96. Each micro-batch passes all stages twice before the next one starts, so only one rank works at a time.
#
# </details>

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown]
# GPipe runs out of memory with 32 micro-batches. **Predict:** does 1F1B train 100?

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
# 6 slots     then ranks 2, 1 and 0 run their last backward, one after the other
# ```
#
# With free messages, 1F1B takes as long as GPipe. It needs less memory if m > p. After four forwards, rank 0 runs a backward before each forward, so it keeps
# at most 4 micro-batches (2 of the 100 above).
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# The batch size limits m. If eight pipelines of 8 GPUs share 128 micro-batches, p = 8 and m = 16 in each. With GPipe or 1F1B and one equal
# stage per GPU, a GPU then idles for 7/23 of the pipeline's time. Waiting for messages, and for the pipelines' all-reduce, adds to that.
#
# Per micro-batch, one output and one gradient cross a boundary. If that is the least traffic of your plan, let pipelines span nodes.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - GPipe and 1F1B idle for (p−1)/(m+p−1) of a step, with one equal stage per rank and free messages.
# - Without recomputing, GPipe keeps the activations of m micro-batches. 1F1B keeps at most p on rank 0, and 1 on the last rank.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# What reduces these 7/23 most: (a) 1F1B instead of GPipe, (b) 16 pipelines of 4 GPUs, (c) micro-batches of half the size?
#
# <details><summary>What to listen for</summary>(c) gives 7/39, if a micro-batch has two samples or more. But a GPU computes small ones less efficiently. (b) gives 3/11, and each GPU holds twice as many layers. (a) saves only memory.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?
#
# A schedule can often save memory at the price of time, or time at the price of memory. How much? We begin with a rank whose memory is full.

# %% tags=["exercise: 08.q4"]

# %% [markdown]
# GPipe's authors had another answer to the memory limit: save memory, and pay with time. Their ranks **recompute**. In a forward, a rank keeps only the input of its stage and drops
# the activations. When the gradient arrives, the rank runs the same forward again, which brings the activations back, and then runs backward.
# PyTorch calls this activation checkpointing (`torch.utils.checkpoint`), although no file is written.
#
# We let four ranks run 8 micro-batches in three ways: with GPipe, with 1F1B, and with GPipe that recomputes. `Recomputed` of `course_lib` wraps a stage, and `SavedBytes` counts the bytes that
# autograd keeps (not the outputs `y` in `held`). One micro-batch takes:
#
# ```
#              input of the stage     activations
# rank 0       0.25 MiB               0.75 MiB
# rank 3       0.50 MiB               1.04 MiB
# ```
#
# **Predict:** which way keeps least on rank 0? And which keeps least on rank 3?

# %%
# %%px
from course_lib.parallel.pipeline import Recomputed
from course_lib.training.kept import SavedBytes

batch = np.random.default_rng(0).integers(len(images), size=(8, 512))
parts = [(images[row], labels[row]) for row in batch]
kept = {}
for name, schedule, wrap in (
    ("GPipe", gpipe, nn.Sequential),
    ("1F1B", one_f_one_b, nn.Sequential),
    ("GPipe, recomputed", gpipe, Recomputed),
):
    stage = cut(comm)
    with SavedBytes(stage) as counter:
        run_stage(comm, wrap(stage), schedule(comm.rank, 4, 8), parts, F.cross_entropy, 128)
    kept[name] = counter.peak / 2**20

# %%
for name in cluster[0]["kept"]:
    print(f"{name:18}", *(f"rank {r}: {kept[name]:.2f} MiB " for r, kept in enumerate(cluster["kept"])))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Autograd keeps least on rank 0 with recomputing, and least on rank 3 with 1F1B. But `held` also keeps outputs of 0.5 MiB on rank 0: eight of them when recomputing, four with 1F1B. Without the images, which `parts` keeps in both cases, that makes 4.75 MiB against 5. (Megatron frees an output once it is sent.)
#
# A recomputing rank keeps eight inputs, and all activations of the one micro-batch that is going backward. On rank 0, that makes 8 · 0.25 + 0.75 = 2.75 MiB.
# (Rank 3 also keeps the loss's activations, which are not recomputed: 5.30 MiB.)
#
# What 1F1B keeps depends on the stage. Rank 0 starts four micro-batches before its first backward, so it keeps four. Rank 3 has no later stages to feed, so it keeps only one.
#
# What does recomputing cost? Each micro-batch needs a second forward, so it takes 4 slots instead of 3 if the whole stage is recomputed. In return, it saves far more in deep stages than in ours: we have two linear layers per stage, while a deep stage
# has many activations for one input. You can also combine the two. If 1F1B recomputes, a rank keeps at most p inputs and one micro-batch's activations.
#
# </details>
#
# #### Can the bubble shrink without more micro-batches?
#
# Now we trade in the other direction, and pay with memory to save time. Cut the network into eight equal stages instead of four, and give two of them to each rank: rank r gets stages r and r + 4. These two are its
# **chunks**, and the schedule is called **interleaved**. A chunk takes half as long as a whole stage, so the first micro-batch reaches the last rank in half the time. The bubble shrinks.
#
# What does this cost in memory? A micro-batch now visits rank 0 twice before its first gradient can come back. **Predict:** with 8 micro-batches, 1F1B keeps 4 on rank 0. How many does the interleaved schedule keep there?
# (Count rank 0's forwards before its first backward: 4, then 1, then 2 for each later rank. Each keeps half as much as one through a whole stage.)

# %%
from course_lib.theory.schedules import (
    gpipe,
    interleaved_one_f_one_b,
    makespan,
    peak_activations,
    simulate,
)

schedules = {chunks: interleaved_one_f_one_b(4, 8, chunks=chunks) for chunks in (1, 2, 4)}
for chunks, schedule in schedules.items():
    slots = makespan(simulate(schedule, 1 / chunks, 2 / chunks))  # a forward, a backward through one chunk
    held = peak_activations(schedule[0]) / chunks
    print(f"chunks per rank: {chunks}   slots: {slots:5}   rank 0 keeps {held} micro-batches")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 5.5. Rank 0 runs four forwards through its first chunk. Then micro-batch 0 comes back, and rank 0 runs its second chunk. While micro-batch 0 visits the three later ranks and its gradient comes back, rank 0 runs six more forwards: 11 in all. A chunk is
# half of the rank's layers, so the 11 take as much memory as 5.5 micro-batches. (With four chunks there are 19 forwards, each through a quarter.)
#
# The memory has bought time: with two chunks, the bubble lasts 4.5 slots instead of 9. In general, with v equal chunks per rank it lasts 1/v as long, if m is a multiple of p and messages take no time.
#
# </details>
#
# The figure shows 1F1B beside two chunks per rank. Chunk 0 is blue, and chunk 1 is beige and brown. How long does rank 0 wait before its first backward?

# %%
from course.lessons.shared.figures.schedules import schedule_grids

one, two = (simulate(schedules[chunks], 1 / chunks, 2 / chunks) for chunks in (1, 2))
schedule_grids({"1F1B": one, "interleaved": two})

# %% [markdown]
# So why not cut into many chunks? Because of the messages: with two chunks per rank, a micro-batch crosses seven boundaries on its way forward, with four it crosses 15. On its way back it crosses them again. Now let each message take a twentieth of a slot, and then half a slot, as on a very slow link. Ranks compute
# meanwhile, if they have something to compute. **Predict** for both links: which is fastest, 1, 2 or 4 chunks per rank? And is 1F1B (one chunk) still as fast as GPipe?


# %%
def slots(schedule, chunks):
    """The slots on the fast link, and on the slow one."""
    links = (simulate(schedule, 1 / chunks, 2 / chunks, transfer=message) for message in (0.05, 0.5))
    return [round(makespan(played), 2) for played in links]


print("GPipe", slots(gpipe(4, 8), chunks=1))
for chunks, schedule in schedules.items():
    print(f"1F1B, {chunks} per rank", slots(schedule, chunks))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (In the figure, rank 0 waited 6 slots with 1F1B, 1.5 with two chunks.) Four on the fast link, two on the slow one. With four chunks, a forward takes a quarter of a slot, but a slow message takes half. The ranks run out of work while they wait.
#
# With one chunk on the slow link, 1F1B waits, too: it takes 8 slots more than with free messages. Each rank begins with so few forwards that it waits for its neighbour's next message again and again.
#
# GPipe waits for messages only while the pipeline fills and drains. Its 36 slots on the slow link are nearly as good as those of two chunks, but rank 0 keeps all 8 micro-batches. The best schedule depends on your links, so measure it.
#
# </details>

# %% [markdown]
# #### And without any bubble?
#
# Some idle slots are left. Why do we accept them at all? Because our 1F1B has a **flush**: in every step, the pipeline runs empty before the weights change, and the next step has to fill it again.
#
# PipeDream, which introduced 1F1B, does without the flush. A stage updates its weights after each backward and goes on, so the pipeline never runs empty. But now the weights change while a micro-batch is between its
# forward and its backward. PipeDream keeps the old weights until that backward, which takes memory. And still the gradient is **stale**: it was computed with the old weights, but it changes the new ones.
# One process would train differently.
#
# Can we fill the idle slots without stale gradients? Remember why a backward takes 2 slots. The previous rank waits for the gradient of the input, but nobody waits for the gradients of the weights before the update.
# *Zero-bubble* schedules (see References) compute these later, in slots that would be idle, and no gradient becomes stale. If its three parts take equal time, and each rank has one stage, a third of the bubble stays with 1F1B's memory; none stays if rank 0 keeps 2p − 1 micro-batches. With two chunks per rank (ZB-V), p are enough. But no stage may wait for the others before its update, as clipping by the global gradient norm requires.
#
# ### Which stage sets the pace?
#
# Until now, all stages were equally expensive. In a real network they often are not. The last stage of a language model, for example, also computes a score for every token of the vocabulary. What does one expensive stage do to
# all the others?

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# We would like to watch such a pipeline, but four stages that compute at the same time need four cores, and you may have fewer. So our stages *sleep* for as long as they would compute, because sleeping needs no core.
# The messages between them are real. We call such times **emulated**.
#
# A forward and a backward together take 3 ms on each of the first three stages (1 + 2), and 9 ms on the last (3 + 6). **Predict:** how many milliseconds do 16 micro-batches take?

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
    print(f"{1e3 * took:.0f} ms emulated")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Begin with the last stage. It works for 16 · 9 = 144 ms, whatever the others do. Before it can start, the first micro-batch passes through three other stages (3 · 1 ms), and after it has ended, the last gradient
# passes back through them (3 · 2 ms). That makes 153 ms. You measure more, because messages take time, waiting ranks use the shared cores, and sleeps last a little too long.
#
# With four equal stages of 4.5 ms, the same work would take (16 + 3) · 4.5 = 85.5 ms on paper.
#
# </details>
#
# So the stages should take equal *time*. But when you cut, you do not know the times yet. You have to guess them from something that you can count: the weights of each layer, perhaps, or its operations. Which is the better guess?
#
# We try both on a CNN. It has five convolutions with 16 channels, followed by a linear layer from 784 to 512 numbers and a small one. `layer_flops` of `course_lib` counts each layer's operations, and `split_layers` cuts
# between layers so that the more expensive of two stages is as cheap as possible. **Predict:** if it counts weights, what share of the operations does the first stage get?

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
# <details><summary>Open after the run</summary>
#
# 95 %. The first linear layer has nearly all weights. So the second stage consists of the linear layers, and the first one gets all convolutions. But a convolution uses its few weights again at every pixel, while a linear layer
# uses each weight once per image. After the cut by weights, the second rank would be idle nearly all the time. Cut by operations, the first stage has 48 %.
#
# Operations are only a first guess, since two layers with equally many operations can differ in time. When your pipeline runs, time its stages on your GPUs, and move a layer where one of them is late, if it still fits: with 1F1B, early stages keep more micro-batches.
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
# - PyTorch, [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html): `ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B` and `ScheduleZBVZeroBubble`.
# - T. Chen and others, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174), 2016: recomputation.
