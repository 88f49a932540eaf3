# ---
# title: Pipeline parallelism
# goal: Cut a network into stages, and find out who waits.
# able:
#   - run a network across ranks
#   - count idle slots
#   - write the schedule 1F1B
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
# Some networks do not fit on one GPU. In **pipeline parallelism**, each rank keeps a few consecutive layers, its **pipeline stage**. How long
# do ranks wait for each other?
#
# ```
#             rank 0           rank 1           rank 2           rank 3
# images →  layers 1, 2  →   layers 3, 4  →   layers 5, 6  →   layers 7, 8  → loss     forward
#                        ←                ←                ←                ←          backward
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
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: what the cell is saved to
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()


# %%
# %%px --save 08_pipeline.py
def cut(team):
    """This rank's layers."""
    torch.manual_seed(0)
    layers = [x for size in pairwise([64, *7 * [128], 10]) for x in (nn.ReLU(), nn.Linear(*size))]
    return nn.Sequential(*np.array_split(layers, team.size)[team.rank])


# %% [markdown] tags=["subslide"]
# We cut each batch into **micro-batches**. A **schedule** lists what a rank does, in order:
#
# ```
# ("F", 2)   micro-batch 2 forward:    receive the stage's input, run its layers, send the output to the next rank
# ("B", 2)   micro-batch 2 backward:   receive the output's gradient, run backward, send the input's gradient back
# ```
#
# A forward also keeps what the layers computed, their **activations**, for backward.

# %% tags=["source: course_lib.parallel.stages:received"]
# %%px --save 08_pipeline.py

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# With `requires_grad_()`, backward also computes the gradient of the input. The previous rank is waiting for it.
#
# The simplest schedule is **GPipe**: all micro-batches go forward, then all go backward.


# %%
# %%px --save 08_pipeline.py
def gpipe(stage, stages, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def train(team, schedule=gpipe, m=2, steps=40):
    """Return the last loss."""
    stage, order = cut(team), schedule(team.rank, team.size, m)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)
    for batch in np.random.default_rng(0).integers(len(images), size=(steps, m, 512)):  # 512 images each
        parts = [(images[row], labels[row]) for row in batch]
        optimizer.zero_grad()
        loss = run_stage(team, stage, order, parts, lambda y, t: F.cross_entropy(y, t) / m, 128)
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

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# None: each layer does the same arithmetic in the same order, only elsewhere.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Who is idle?
#
# Is it faster? We time rank 0 with all layers, then ranks 0 and 1 with half of them each, for 1 to 16 micro-batches.

# %%
predict("One micro-batch: how many times as fast are two ranks?", None)

# %%
# %%px --targets 0:2 --timeout 300
from course_lib.measure import timed

pair = comm.Create_group(comm.group.Incl([0, 1]))
speed = {}
for m in 1, 2, 4, 8, 16:
    alone = timed(pair, lambda: comm.rank == 0 and train(MPI.COMM_SELF, m=m, steps=1))
    speed[m] = alone / timed(pair, lambda: train(pair, m=m, steps=1))

# %% tags=["nbval-ignore-output"]
outcome("One micro-batch: how many times as fast are two ranks?", cluster[0]["speed"][1])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# You pay for two ranks and get about the speed of one. Rank 1 waits for rank 0's output, then rank 0 for rank 1's gradient.
#
# </details>
#
# Do more micro-batches help? We draw four equal stages. A forward takes 1 slot of time, a backward 2, a message none.

# %%
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules, draw_speed

draw_schedules(4, cluster[0]["gpipe"])

# %% [markdown]
# The white slots are the **bubble**: each rank is idle for 9 of 21 slots.
# **Vote:** with 16 micro-batches, each rank is idle for (a) fewer slots, (b) 9, (c) more.

# %%
draw_schedules(16, cluster[0]["gpipe"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Rank 0 waits while the last micro-batch visits the three other stages and returns, however many came before. Only the
# *share* of the step shrinks:
#
# ```
#                             idle           busy           idle share of a step
# 4 ranks, 16 micro-batches   3 · 3 = 9      16 · 3 = 48    9 / 57
# p ranks,  m micro-batches   (p − 1) · 3    m · 3          (p − 1) / (m + p − 1)
# ```
#
# </details>
#
# So two ranks should be 2m/(m + 1) times as fast as one: with 16 micro-batches, 1.88 times. **Predict:** how fast were yours?

# %% tags=["nbval-ignore-output"]
draw_speed(cluster[0]["speed"], formula={m: 2 * m / (m + 1) for m in (1, 2, 4, 8, 16)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# If yours is below the formula (dashed), messages and other programs took time, and our stages are not quite equal.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# So why not take many micro-batches? With two ranks, each forward keeps about 2 MiB of activations. We let a rank allocate 64 MiB in all.
# **Vote:** with 32 micro-batches, the ranks (a) train, (b) run out of memory.

# %%
from course_lib.effects import runs_within  # runs a job whose ranks may allocate so many MiB

job = 64, 2, "code/08_pipeline.py"
print("GPipe trains:", runs_within(*job, "train(comm, gpipe, 32, 1)", first="train(comm)"))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Before its first backward, GPipe keeps the activations of all 32, about 64 MiB. Weights need room, too.
#
# </details>
#
# Must the first backward wait so long?

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown] tags=["subslide"]
# Does 1F1B train within 64 MiB, and is it faster? On four ranks, 8 micro-batches take 33 slots with GPipe. **Predict:** how many with 1F1B?

# %%
print("1F1B trains:", runs_within(*job, "train(comm, one_f_one_b, 32, 1)", first="train(comm)"))

# %%
draw_schedules(8, cluster[0]["gpipe"], cluster[0]["one_f_one_b"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 1F1B trains, but in 33 slots again: the pipeline fills and drains as before. What shrinks is memory. Each backward frees a micro-batch's
# activations before the next forward, so a rank keeps at most p micro-batches.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# With 64 GPUs, several pipelines share one global batch, which limits m. Stages send little (outputs and their gradients), so a pipeline often spans machines.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - With equal stages and free messages, each rank is idle for (p − 1) / (m + p − 1) of a step.
# - GPipe keeps the activations of all m micro-batches, 1F1B those of at most p.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# Your GPipe has 8 stages and 8 micro-batches. Which gives more images per second: (a) 1F1B, (b) 32
# micro-batches of the same size?
#
# <details><summary>What to listen for</summary>(b), if training tolerates a batch four times as large: ranks are then idle for 7/39 of a step, not 7/15. 1F1B makes room for it.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?
#
# A pipeline has two budgets, time and memory, and a schedule can often pay for one with the other. How far can you take this trade? We begin with a rank that has
# nothing left to pay with.

# %% tags=["exercise: 08.q4"]

# %% [markdown]
# GPipe's authors had an answer of their own to the memory limit: save memory, and pay with time. Their ranks **recompute**. In a forward, a rank keeps only the input of its stage and drops
# the activations. When the gradient arrives, the rank runs the same forward again, which brings the activations back, and then runs backward.
#
# PyTorch calls this activation checkpointing (`torch.utils.checkpoint`), although no file is written. We use `Recomputed` of `course_lib`, and `SavedBytes` counts the bytes that autograd keeps.
#
# Four ranks run 8 micro-batches in three ways: with GPipe, with 1F1B, and with GPipe that recomputes. On rank 0, the activations of one micro-batch take 0.75 MiB, and its input takes 0.25 MiB.
# On rank 3 they take 1.04 and 0.5 MiB. **Predict:** which way keeps least on rank 0? And which keeps least on rank 3?

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
# On rank 0, GPipe that recomputes keeps least, and on rank 3, 1F1B does. A recomputing rank keeps eight inputs, and all activations of the one micro-batch that is going backward: on rank 0, that makes
# 8 · 0.25 + 0.75 = 2.75 MiB. With 1F1B, it depends on the stage. Rank 0 starts four micro-batches before its first backward, so it keeps four. Rank 3 has no later stages to feed, so it keeps only one.
#
# What does recomputing cost? Each micro-batch needs a second forward, so it takes 4 slots instead of 3. In return, it saves far more in deep stages than in ours: we have two linear layers per stage, while a deep stage
# has many activations for one input. You can also combine the two. Then a rank keeps at most p inputs, and the activations of one micro-batch.
#
# </details>
#
# #### Can the bubble shrink without more micro-batches?
#
# Now we trade in the other direction, and try to gain time. Cut the network into eight equal stages instead of four, and give two of them to each rank: rank r gets stages r and r + 4. These two are its **chunks**,
# and the schedule is called **interleaved**. A rank needs only half as long for a chunk as for a whole stage, so the first micro-batch reaches the last rank in half the time, and the bubble shrinks.
#
# What does this cost in memory? A micro-batch now visits rank 0 twice before its first gradient can come back. **Predict:** does rank 0 keep more activations than with 1F1B, or fewer?

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
# <details><summary>Open after the run</summary>
#
# More, from m = 8 on. The first gradient comes back to rank 0 only after its micro-batch has gone round all ranks twice. To keep the other ranks supplied until then, rank 0 runs 11 forwards, each through one chunk.
# A chunk is half of the rank's layers, so the 11 take as much memory as 5.5 micro-batches. With 1F1B, rank 0 keeps 4. (With m = 4 there are only 8 forwards to run, which is why both keep 4.)
#
# The memory has bought time: the bubble lasts 4.5 slots instead of 9. In general, with v chunks per rank it lasts 1/v as long, if m is a multiple of p and messages take no time.
#
# That last condition matters. Activations now cross seven boundaries between ranks instead of three, and on slow links this can cost more time than the smaller bubble saves.
#
# </details>
#
# Where did the idle slots go? The figure shows both schedules with m = 8. Each rank's second chunk, chunk 1, is brown.

# %%
from course.lessons.shared.figures.schedules import schedule_grids

both = {
    "1F1B": simulate(one_f_one_b(4, 8), 1, 2),
    "interleaved": simulate(interleaved_one_f_one_b(4, 8, chunks=2), 0.5, 1),
}
schedule_grids(both)

# %% [markdown]
# #### And without any bubble?
#
# Some idle slots are left. Why do we accept them at all? Because our 1F1B has a **flush**: in every step, the pipeline runs empty before the weights change, and the next step has to fill it again.
#
# PipeDream, which introduced 1F1B, does without the flush. A stage updates its weights after each backward and goes on, so the pipeline never runs empty. But now the weights change while a micro-batch is between its
# forward and its backward. PipeDream keeps the old weights until that backward, which takes memory. And still the gradient is **stale**: it was computed with the old weights, but it changes the new ones.
# One process would train differently.
#
# So memory can buy time, up to a point. To remove the last of the bubble, PipeDream also pays with the result: only a schedule with a flush trains as one process does. (The zero-bubble schedules in the References keep
# a flush in one form, and fill idle slots with the gradients of the weights, which no other rank waits for.)
#
# ### Which stage sets the pace?
#
# Until now, all stages were equally expensive. Real networks are not so polite: a language model's last stage, for example, also has to compute a score for every word that it knows. What does one expensive stage do to
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
# passes back through them (3 · 2 ms). That makes 153 ms. You measure more, because messages take time, other programs run, and sleeps last a little too long.
#
# With four equal stages of 4.5 ms, the same work would take (16 + 3) · 4.5 = 85.5 ms on paper.
#
# </details>
#
# So the stages should take equal *time*. But when you cut, you do not know the times yet, and have to guess them from something that you can count. Are weights good enough, or should you count operations? `layer_flops` of `course_lib`
# counts each layer's operations, and `split_layers` cuts between layers so that the most expensive stage is as cheap as possible.
#
# We let it cut a CNN into two stages: once evenly by weights, once evenly by operations. The CNN has five convolutions with 16 channels, followed by a linear layer from 784 to 512 numbers and a small one. **Predict:** what
# share of the operations does the first stage have when the cut goes by weights?

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
# 95 %. The first linear layer has nearly all weights, so the second stage is full with it, and the first stage gets all convolutions. But a convolution uses its few weights again at every pixel, while a linear layer
# uses each weight once per image. After the cut by weights, the second rank would be idle nearly all the time. Cut by operations, the first stage has 48 %.
#
# Operations are only a first guess, since two layers with equally many operations can differ in time. When your pipeline runs, time its stages on your GPUs, and move a layer where one of them is late.
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
