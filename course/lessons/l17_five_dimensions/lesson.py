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
#     answer: Its backward needs them to compute the gradients of the stage's own weights.
#   - ask: "`comm.Split(color, key)`: which of the ranks with one color becomes rank 0?"
#     answer: The one with the smallest key.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One works, three wait
#
# The activations of one large image can fill a GPU. Then rank 0 cannot begin the next image until this one's backward has freed its memory.
# One stage works at a time: GEMS's authors call this **layer parallelism**, or *Basic*.
#
# What do the ranks hold meanwhile? We cut a network into four stages and count. Stage 0 sees the full image, 256 × 256, and pools it to 64 × 64.


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
# Lesson 08's `run_stage` sends flat rows. `SavedBytes` counts the activations that autograd keeps.


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
# Rank 0 holds 9.5 times as much as rank 1, because stage 0 keeps eight maps of the full image, and the others see a sixteenth of its pixels. They have idle time and nearly empty memory. Who
# could use both?

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
# How do we turn a pipeline around? `run_stage` sends to the next rank, so `mirror` numbers the ranks from the other end.
#
# With several images per replica and update, this is *MASTER*. Rank 0 now also runs stage 3, which held 0.508 MiB on rank 3.

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
# Still 4.75. Rank 0 finishes image 0's backward, which frees its activations, before it begins image 1. So its peak is the larger of its two stages, not their sum. The price: each rank keeps the weights of two stages.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Two replicas, one gradient
#
# Each replica saw half of the images. Our loss is a sum, so both replicas' gradients of a stage must be added. Those of stage 0 lie on ranks 0 and 3.

# %% tags=["exercise: 17.1", "subslide"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. Let pairs play ranks 0 and 3.

# %% [markdown] tags=["subslide"]
# Are the sums right? Each rank also runs all four stages alone.

# %%
continue_with("17.1")


# %%
# %%px
def flat(module):
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


ours, theirs = flat(stage), flat(opposite)
sum_replicas(comm, ours, theirs)
whole = nn.Sequential(*map(cut, range(4)))
for pixels, label in images:
    loss_fn(whole(pixels), label).backward()
print("equal:", np.allclose(ours, flat(whole[comm.rank])), np.allclose(theirs, flat(whole[mirror.rank])))

# %% [markdown]
# Both equal one process's, up to rounding.

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# Our ranks may share cores, so instead of timing, we **replay** the schedule. A forward takes one slot, a backward two, and messages are free. Each rank takes the images in order. A pass starts
# when its input has arrived.

# %% [markdown]
# **Vote:** Basic needs 12 slots per image. With four images, is MASTER (a) twice as fast, (b) about a quarter faster, or (c) as fast?

# %%
from course.lessons.l17_five_dimensions.figures import draw_directions

draw_directions({"Basic": "→→→→", "MASTER": "→←→←"})  # an arrow per image; try others

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 39 slots, not 48. Image 1 starts on rank 3 as soon as image 0's backward has left, and follows it. Three of its four forwards cost no extra time, so each further image adds 9 slots, and the
# speed-up stays below 12 / 9 = 1.33.
#
# </details>
#
# What did the authors measure?

# %% tags=["exercise: 17.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## 5 · Five at once
#
# Why not 1F1B? With four images as micro-batches, it needs (4 + 3) · 3 = 21 slots. But rank 0 then holds four images, and one already fills it.
#
# **Tiles** make room. If two ranks share stage 0, each keeps about half of an image's activations. Then a second image fits, as a micro-batch. **Hy-Fi** combines five
# [ways to cut](../docs/ways-to-split.md): tiles, stages, micro-batches, two directions and data parallelism.
#
# ```
#              rank 0      rank 1      rank 2      rank 3      ranks 4 to 7
# replica 0    tile 0      tile 1   →  stage 1  →  stage 2     the same,
# replica 1    stage 2  ←  stage 1  ←  tile 1      tile 0      with other images
#
# tiles 0 and 1 are the halves of stage 0
# ```
#
# A program trains it on eight ranks and compares all weights with one process's. Then ranks 0 to 3 and 4 to 7 forget to sum their gradients. **Vote:** does this (a) hang, (b) raise an error, or
# (c) run to the end?

# %%
# !mpiexec -n 8 python -m course.lessons.l17_five_dimensions.strategies "hybrid: Hy-Fi"

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c): every message arrives, and every shape fits. Only the comparison finds it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - Wherever micro-batches fit, prefer 1F1B: it idles less, and keeps model states once.
# - With 64 GPUs, keep an image's tiles inside one machine: most layers exchange halos.
# - Batch norm ends the equality, because a tile or a replica sees only its part.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count memory on every rank: one can be full while others are nearly empty.
# - GEMS's fullest rank holds no more activations than Basic's, but model states exist twice.
# - For scaling efficiency, compare a method with itself on fewer GPUs.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# An image needs 60 GB of activations, and a GPU has 40. How do you use eight GPUs: (a) GEMS with eight stages, (b) eight tiles, (c) two tiles × four stages?
#
# <details><summary>What to listen for</summary>(a) fails if one stage needs more than 40 GB. In (b), each GPU holds about 7.5 GB, but all weights. (c) needs at most about 30 GB, but stages wait.</details>

# %% [markdown]
# ## References
#
# - A. Jain and others, *GEMS*, SC 2020, and *Hy-Fi*, ISC 2022. Figures: [Ways to split](../docs/ways-to-split.md).
