# ---
# title: Pipeline parallelism
# goal: Cut a network into stages, and count how long ranks are idle.
# able:
#   - run a network across ranks
#   - count idle slots
#   - write the schedule 1F1B
# more:
#   - say what recomputing, interleaving and unequal stages cost
# before: >-
#   {01}, {03}, {05}
# minutes: {core: 20, more: 11}
# ranks: 4
# warm-up:
#   - ask: >-
#       You cut a batch into micro-batches and call `backward` for each. Which loss must a micro-batch have, so that
#       `.grad` becomes the gradient of the batch's mean loss?
#     answer: The sum over its samples, divided by the size of the whole batch. Then the gradients add up.
#   - ask: Two ranks call `Send` to each other at the same moment, with 1 MB each. What happens?
#     answer: >-
#       With most MPI libraries the program hangs: each rank waits in Send, and neither reaches its Recv.
#       <code>Isend</code>, which starts to send and returns at once, avoids this.
#   - ask: In data parallelism every rank holds the whole model. What do the ranks send each other in a step?
#     answer: Gradients, which they sum or average.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · A stage per rank
#
# Some networks do not fit on one GPU. In **pipeline parallelism** each rank keeps a few consecutive layers, its **pipeline stage**.

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
# We cut each batch into **micro-batches**. A **schedule** lists what a rank does: `("F", 2)` takes micro-batch 2 forward, `("B", 2)` takes it back.
# Forward keeps what the layers compute, their **activations**, for backward. It sends the stage's output to the next rank.

# %% tags=["source: course_lib.parallel.stages:received"]
# %%px --save 08_pipeline.py

# %% tags=["source: course_lib.parallel.stages:run_stage"]
# %%px --save 08_pipeline.py

# %% [markdown] tags=["subslide"]
# `requires_grad_()` asks autograd for the gradient of the input. Backward sends it to the previous rank.
#
# The simplest schedule is **GPipe**: first all micro-batches go forward, then all go backward.


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
# None: four ranks do the same arithmetic, in the same order.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Who is idle?
#
# First rank 0 trains all layers alone. Then ranks 0 and 1 train half each. We time steps of 1, 2, 4, 8 and 16
# micro-batches.

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
# You pay for two ranks and get about the speed of one! While one rank computes, the other waits.
#
# </details>
#
# Do more micro-batches help? We draw four equal stages. A forward takes 1 slot, a backward 2, a message none.

# %%
from course.lessons.l08_pipeline_parallelism.figures import draw_schedules, draw_speed

draw_schedules(4, cluster[0]["gpipe"])

# %% [markdown]
# The white slots are the **bubble**: each rank is idle for 9 of 21 slots.
# **Vote:** with 16 micro-batches, each rank is idle for (a) fewer, (b) 9, (c) more.

# %%
draw_schedules(16, cluster[0]["gpipe"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). Rank 0 waits while the last micro-batch passes through the three other stages and back. That still takes 9 slots, but of 57.
# With p ranks and m micro-batches, each rank is idle for **(p − 1) / (m + p − 1)** of a step.
#
# </details>
#
# So two ranks should be 2m/(m + 1) times as fast as one: with 16 micro-batches, 1.88 times. **Predict:** how fast were yours?

# %% tags=["nbval-ignore-output"]
draw_speed(cluster[0]["speed"], formula={m: 2 * m / (m + 1) for m in (1, 2, 4, 8, 16)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# The dashed curve is the formula. You measure less: messages take time, and so do other programs on your cores.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · A limit
#
# With two ranks, each forward keeps about 2 MiB of activations. We let a rank allocate 64 MiB.
# **Vote:** with 32 micro-batches, the ranks (a) train, (b) run out of memory.

# %%
from course_lib.effects import runs_within  # runs a job whose ranks may allocate so many MiB

print("GPipe trains:", runs_within(64, 2, "code/08_pipeline.py", "train(comm, gpipe, 32, 1)"))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). GPipe keeps the activations of all 32 before its first backward.
#
# </details>
#
# Must the first backward wait so long?

# %% tags=["exercise: 08.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here, six for the exercise. Let them write the passes of the last rank first (F0 B0 F1 B1), then those of the rank before.

# %% [markdown] tags=["subslide"]
# Does 1F1B train within 64 MiB? On four ranks, 8 micro-batches take 33 slots with GPipe. **Predict:** how many with 1F1B?

# %%
print("1F1B trains:", runs_within(64, 2, "code/08_pipeline.py", "train(comm, one_f_one_b, 32, 1)"))

# %%
draw_schedules(8, cluster[0]["gpipe"], cluster[0]["one_f_one_b"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 1F1B trains. It also takes 33 slots, so it saves memory, not time. Each backward frees a micro-batch's activations before the next forward.
# So a rank keeps at most p.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | m | is limited: all pipelines share one global batch |
# | messages | are few, so a pipeline often spans machines |

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
# <details><summary>What to listen for</summary>(b), if training tolerates a batch four times as large. Ranks are idle for 7/39 of a step, not 7/15.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### What can memory buy?

# %% tags=["exercise: 08.q4"]

# %% [markdown]
# GPipe's authors had a different answer to the memory limit. Their ranks **recompute**: a rank keeps only the input of its stage. When the gradient arrives, the rank goes forward again, and then backward.
# In PyTorch, `torch.utils.checkpoint` does that. Here we use `Recomputed` of `course_lib`, and `SavedBytes` counts the bytes that autograd keeps.
#
# Four ranks run 8 micro-batches in three ways: with GPipe, with 1F1B, and with GPipe that recomputes. **Predict:** which way keeps least on rank 0? And which keeps least on rank 3?

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
# On rank 0, GPipe that recomputes keeps least. On rank 3, 1F1B does. With 1F1B, rank 0 keeps four micro-batches, and rank 3 keeps one.
# A rank that recomputes keeps eight inputs of its stage, and all activations of the one micro-batch that goes backward.
#
# Recomputing costs a second forward: 4 slots per micro-batch instead of 3. It saves more in deep stages, which have many activations for one input. Ours have only two linear layers.
#
# </details>
#
# **Can the bubble shrink without more micro-batches?** Cut the network into eight equal stages, and give two of them to each rank: rank r gets stages r and r + 4. These two are called its **chunks**, and the schedule is called **interleaved**.
# A chunk is half as long as a stage was. So the first micro-batch reaches the last rank sooner, and the bubble shrinks.
# But what about memory? **Predict:** does rank 0 keep more activations than with 1F1B, or fewer?

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
# More, from m = 8 on. Rank 0 runs 11 forwards before its first backward, each through one chunk. A chunk is half of a rank's layers, so the 11 take as much memory as 5.5 micro-batches. With 1F1B, rank 0 keeps 4.
#
# In return, the bubble is half as long: 4.5 slots instead of 9. With v chunks per rank, the bubble is 1/v as long, if m is a multiple of p and messages take no time.
#
# But activations now cross seven boundaries between ranks instead of three. On slow links, that can cost more time than the smaller bubble saves.
#
# </details>
#
# The figure shows both schedules with m = 8. Each rank's second chunk, chunk 1, is brown.

# %%
from course.lessons.shared.figures.schedules import schedule_grids

both = {
    "1F1B": simulate(one_f_one_b(4, 8), 1, 2),
    "interleaved": simulate(interleaved_one_f_one_b(4, 8, chunks=2), 0.5, 1),
}
schedule_grids(both)

# %% [markdown]
# **And without any bubble?** PipeDream, which introduced 1F1B, never lets the pipeline run empty: a stage updates its weights after each backward. So the weights change while a micro-batch is between its forward and
# its backward. PipeDream keeps the old weights for that backward, which takes memory. The resulting gradient is **stale**: it belongs to the old weights but changes the new ones. One process would train differently.
#
# Our 1F1B has a **flush**: the pipeline runs empty before the weights change. So memory can buy time, but only the schedules with a flush train as one process does.
#
# ### Which stage sets the pace?

# %% tags=["exercise: 08.q3"]

# %% [markdown]
# Four stages that compute need four cores. Ours *sleep* instead, for as long as they would compute, because sleeping needs no core. The messages are real. We call such times **emulated**.
#
# A forward and a backward together take 3 ms on each of the first three stages, and 9 ms on the last. **Predict:** how many milliseconds do 16 micro-batches take?

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
# The last stage works for 16 · 9 = 144 ms. Filling and draining the pipeline add 9 ms. The rest comes from messages, other programs, and sleeps that last too long.
#
# </details>
#
# So cut by *time*, not by the number of layers or weights. `layer_flops` of `course_lib` counts each layer's operations, a first guess at its time. `split_layers` cuts between layers so that the most expensive stage is
# as cheap as possible.
#
# We cut a CNN into two stages: once evenly by weights, once evenly by operations. **Predict:** what share of the operations does the first stage have when the cut goes by weights?

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
# 95 %. One linear layer has nearly all weights and fills the second stage, so the first stage gets all convolutions. But a convolution uses its few weights at every pixel, and this linear layer uses each weight once per image.
# Cut by operations, the first stage has 48 %.
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
