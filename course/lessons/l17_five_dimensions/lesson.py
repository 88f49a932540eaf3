# ---
# title: Five dimensions at once
# goal: Put idle ranks and empty memory to work.
# able:
#   - train two replicas on the same ranks, in opposite directions
#   - count what each rank of a pipeline holds
#   - judge a published speed-up
# before: >-
#   {08}. Helpful: {10}
# minutes: {core: 20}
# also: "An elective."
# ranks: 4
# warm-up:
#   - ask: Four stages, one micro-batch. How many ranks compute at the same time?
#     answer: One. The others wait for activations, and on the way back for gradients.
#   - ask: Why does a stage keep activations after it has sent its output?
#     answer: >-
#       Its backward needs them: layers' inputs for the weights' gradients, and ReLU's masks and pooling's
#       indices for the inputs' gradients.
#   - ask: "`comm.Split(color, key)`: which of the ranks with one color becomes rank 0?"
#     answer: The one with the smallest key.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One works, three wait
#
# The activations of one large image can fill a GPU. Then rank 0 cannot begin the next image until this one's backward has freed its memory.
# One stage works at a time: **layer parallelism**, here called *Basic*.
#
# We cut a network into four stages. Stage 0 sees 256 × 256 pixels and pools to 64 × 64.


# %%
# %%px
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.utils import parameters_to_vector

from course_lib.parallel.stages import run_stage
from course_lib.training.kept import SavedBytes

torch.set_default_dtype(torch.float64)
comm = MPI.COMM_WORLD


# %%
# %%px
def cut(n):
    """Stage `n` of four, with the same weights on every rank."""
    torch.manual_seed(n)
    side, maps = (256, 1) if n == 0 else (64, 8)
    conv = nn.Conv2d(maps, 8, 3, padding=1)
    end = {0: [nn.MaxPool2d(4)], 3: [nn.MaxPool2d(8), nn.Flatten(), nn.Linear(512, 10)]}.get(n, [])
    return nn.Sequential(nn.Unflatten(1, (maps, side, side)), conv, nn.ReLU(), *end, nn.Flatten())


# %% [markdown] tags=["subslide"]
# Lesson 08's `run_stage` sends flat rows. `SavedBytes` counts the activations that autograd keeps. **Predict:** how many times as much as rank 1 does rank 0 hold?


# %%
# %%px
torch.manual_seed(1)
images = [(torch.randn(1, 256 * 256), torch.randint(10, (1,))) for _ in range(8)]
loss_fn = nn.CrossEntropyLoss(reduction="sum")


def run(way, *pipelines):
    """Run all images, add up gradients; return the most activations this rank held, as a row to draw."""
    with SavedBytes(*(stage for _, stage in pipelines)) as counter:
        for i, image in enumerate(images):  # forward and backward, then the next image
            ranks, stage = pipelines[i % len(pipelines)]
            run_stage(ranks, stage, [("F", 0), ("B", 0)], [image], loss_fn, width=8 * 64 * 64)
    labels = {"rank": f"rank {comm.rank}", "way": way}
    return {"labels": labels, "value": counter.peak / 2**20, "unit": "MiB", "kind": "counted"}


basic = run("Basic", (comm, cut(comm.rank)))

# %%
show(cluster["basic"], x="rank", y="most activations held")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 9.5 times. Stage 0 keeps the image (0.5 MiB), eight maps of its size (4) and pooling's indices (0.25). Stage 1 keeps sixteen small maps (0.5).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · From the other end
#
# **GEMS** puts a second **replica**, a copy with the same weights, on the same ranks in the opposite direction:
#
# ```
#                           rank 0      rank 1      rank 2      rank 3
# replica 0, even images    stage 0  →  stage 1  →  stage 2  →  stage 3     `stage`
# replica 1, odd images     stage 3  ←  stage 2  ←  stage 1  ←  stage 0     `opposite`
# ```
#
# `run_stage` sends to the next rank, so `mirror` numbers the ranks from the other end.
#
# With several images per replica before each update, this is *MASTER*. Rank 0 now also runs stage 3, which held 0.508 MiB.

# %%
predict("MASTER: how many MiB of activations does rank 0 hold?", None)

# %%
# %%px
mirror = comm.Split(0, -comm.rank)  # sorted by key: the last rank comes first
stage, opposite = cut(comm.rank), cut(mirror.rank)
master = run("MASTER", (comm, stage), (mirror, opposite))

# %%
held = cluster[0]["master"]["value"]
outcome("MASTER: how many MiB of activations does rank 0 hold?", held, word="counted")
show(cluster["basic"] + cluster["master"], x="rank", y="most activations held", by="way")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Still 4.75. Rank 0 finishes image 0's backward, which frees its activations, before it begins image 1. So its peak is the larger of its two stages, not their sum. Rank 3 now holds as much.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Two replicas, one gradient
#
# Each replica saw half of the images. Our loss is a sum, so both replicas' gradients of a stage must be added. To compare, each rank runs all four stages alone.
#
# Ranks 1 and 2, whose stages have equal shapes, try a draft.


# %%
# %%px
def flat(module):
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


whole = nn.Sequential(*map(cut, range(4)))
for pixels, label in images:
    loss_fn(whole(pixels), label).backward()

# %%
# %%px --targets 1:3
theirs = comm.sendrecv(flat(stage), 3 - comm.rank)
print("equal:", np.allclose(flat(stage) + theirs, flat(whole[comm.rank])))

# %% [markdown] tags=["subslide"]
# No error, but wrong sums. This function has the same bug:

# %% tags=["exercise: 17.1", "subslide"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. Let pairs play ranks 0 and 3.

# %%
continue_with("17.1")

# %%
# %%px
ours, theirs = flat(stage), flat(opposite)
sum_replicas(comm, ours, theirs)
print("equal:", np.allclose(ours, flat(whole[comm.rank])), np.allclose(theirs, flat(whole[mirror.rank])))

# %% [markdown]
# Both sums equal one process's, up to rounding.

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# Our ranks may share cores, so we **replay** the schedule instead: four equal stages, one slot per forward, two per backward, free messages. Each rank takes the images in order.

# %% [markdown]
# **Vote:** With four images, is MASTER (a) twice as fast, (b) about a quarter faster, (c) as fast?

# %%
from course.lessons.l17_five_dimensions.figures import draw_directions

draw_directions({"Basic": "→→→→", "MASTER": "→←→←"})  # then find orders that take 45 slots

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 39 slots. Rank 3 starts image 1 when it has finished image 0's backward. Image 1's forward follows that backward, so three of its four passes cost no extra time. Each change of
# direction saves 3 of an image's 12 slots. So in this model, the speed-up stays below 12 / 9 = 1.33.
#
# </details>
#
# The authors' group reported 7.25 hours for Basic and 4.21 for MASTER on four GPUs: a speed-up of 1.72, more than our bound. Their talk does not say why. Something outside our model (equal
# stages, free messages) must have helped.

# %% tags=["exercise: 17.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## 5 · Five at once
#
# In 1F1B, rank 0 would hold four images, and one already fills it. **Tiles** make room: if two ranks share stage 0, each keeps about half of an image's activations, so two micro-batches fit.
#
# **Hy-Fi** combines five [ways to cut](../docs/ways-to-split.md): tiles, stages, micro-batches, two directions and data parallelism.
#
# ```
#              rank 0      rank 1      rank 2      rank 3       ranks 4 to 7
# replica 0   [tile 0      tile 1]  →  stage 1  →  stage 2      the same,
# replica 1    stage 2  ←  stage 1  ← [tile 1      tile 0]      with other images
#
# [ ]  stage 0 on two ranks: each computes half of the image; both send to stage 1
# ```
#
# **Vote:** over how many of these ranks must stage 0's gradients be summed: (a) 2, (b) 4, (c) 8?
#
# A program trains a small network so and compares its weights with one process's. Then it omits the sum between ranks 0–3 and 4–7.

# %%
# !mpiexec -n 8 python -m course.lessons.l17_five_dimensions.strategies "hybrid: Hy-Fi"

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): two tiles, two directions, two groups. The second run sums over four. Nothing hangs, every shape fits: only the comparison finds it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - Where micro-batches fit, prefer 1F1B: it idles less, and keeps model states once.
# - Keep an image's tiles inside one machine: most layers exchange halos.
# - One process with batch norm over the full batch, or with other dropout masks, trains differently.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count memory on every rank: one may be full while others are empty.
# - GEMS adds no activations to the fullest rank, but keeps model states twice.
# - For scaling efficiency, compare a method with itself on fewer GPUs.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# An image needs 60 GB of activations; weights and optimizer take 12 GB. Which gives most images per hour on one machine's eight 40 GB GPUs: (a) GEMS with eight stages, (b) eight tiles,
# (c) two tiles × four stages?
#
# <details><summary>What to listen for</summary>(a) idles most, and fails if one stage needs 40 GB. (b) needs 7.5 + 12 GB, and all compute: it wins unless halos take long. (c) idles unless a second image fits.</details>

# %% [markdown]
# ## References
#
# - A. Jain and others, *GEMS*, SC 2020, and *Hy-Fi*, ISC 2022. The hours: A. Jain's talk, see [Ways to split](../docs/ways-to-split.md).
