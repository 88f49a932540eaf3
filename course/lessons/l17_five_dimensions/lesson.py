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
# Suppose the activations of one image fill a GPU. Then the next image cannot enter the pipeline before a backward has freed the memory, so one stage works while three wait. This is
# **layer parallelism**, or *Basic*. Can we use what lies idle? First we count what each rank holds, with four small images for a large one.


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
comm, width = MPI.COMM_WORLD, 8 * 32 * 32  # so many numbers per image travel between stages


# %%
# %%px
def cut(n):
    """Stage `n` of four; its weights are the same on every rank."""
    torch.manual_seed(n)
    side, maps = (128, 1) if n == 0 else (32, 8)
    conv = nn.Conv2d(maps, 8, 3, padding=1)
    end = {0: [nn.MaxPool2d(4)], 3: [nn.MaxPool2d(8), nn.Flatten(), nn.Linear(128, 10)]}.get(n, [])
    return nn.Sequential(nn.Unflatten(1, (maps, side, side)), conv, nn.ReLU(), *end, nn.Flatten())


# %% [markdown] tags=["subslide"]
# `train` takes each batch through the stages and back; `SavedBytes` counts the activations. Ignore `mirror` and `opposite` until section 2.


# %%
# %%px
torch.manual_seed(1)
batches = [(torch.randn(4, 128 * 128), torch.randint(10, (4,))) for _ in range(8)]
loss_fn = nn.CrossEntropyLoss(reduction="sum")
rows = []


def train(way, replicas):
    """Train on all batches; return the two stages of this rank, with gradients."""
    mirror = comm.Split(0, -comm.rank)  # the same ranks, numbered from the other end
    stage, opposite = cut(comm.rank), cut(mirror.rank)
    with SavedBytes(stage, opposite) as counter:
        for i, batch in enumerate(batches):
            ranks, mine = [(comm, stage), (mirror, opposite)][i % replicas]
            run_stage(ranks, mine, [("F", 0), ("B", 0)], [batch], loss_fn, width)  # one micro-batch
    labels = {"rank": f"rank {comm.rank}", "way": way}
    rows.append({"labels": labels, "value": counter.peak / 2**20, "unit": "MiB", "kind": "counted"})
    return stage, opposite


_ = train("Basic", replicas=1)

# %%
show(sum(cluster["rows"], []), x="rank", y="most activations held")

# %% [markdown]
# Only rank 0's stage sees all pixels, so the others' memory is nearly empty. Who could use it, and their time?

# %% [markdown] tags=["slide"]
# ## 2 · From the other end
#
# **GEMS** puts a second **replica**, a copy with the same weights, on the same ranks in the opposite direction:
#
# ```
#                            rank 0      rank 1      rank 2      rank 3
# replica 0, even batches    stage 0  →  stage 1  →  stage 2  →  stage 3     `stage`
# replica 1, odd batches     stage 3  ←  stage 2  ←  stage 1  ←  stage 0     `opposite`, on `mirror`
#
# two batches per update: MAST                more: MASTER
# ```
#
# Rank 0 now also runs stage 3, which held half a MiB on rank 3.

# %%
predict("MASTER: how many MiB of activations does rank 0 hold?", None)

# %%
# %%px
stage, opposite = train("MASTER", replicas=2)

# %%
held = cluster["rows"][0][1]["value"]
outcome("MASTER: how many MiB of activations does rank 0 hold?", held, word="counted")
show(sum(cluster["rows"], []), x="rank", y="most activations held", by="way")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 4.75, not one byte more: each backward frees rank 0's activations before the next forward gets there. Rank 3's empty memory is now used.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Two replicas, one gradient
#
# Each replica saw half of the batches. Our loss is a sum, so a stage's two gradients must be added, but they lie on different ranks.

# %% tags=["exercise: 17.1", "subslide"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. Let pairs play ranks 0 and 3.

# %% [markdown] tags=["subslide"]
# Does one process get the same sums?

# %%
continue_with("17.1")


# %%
# %%px
def flat(module):
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


whole = nn.Sequential(*map(cut, range(4)))
for images, labels in batches:
    loss_fn(whole(images), labels).backward()
here, there = flat(stage), flat(opposite)
sum_replicas(comm, here, there)
print("equal:", np.allclose(here, flat(whole[comm.rank])), np.allclose(there, flat(whole[3 - comm.rank])))

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# Our ranks may share cores, so instead of timing them we **replay** the schedule. On every stage a forward takes one slot, a backward two; messages are free.


# %%
def replay(count, both):
    """All passes of `count` batches: (rank, "F" or "B", batch, start, slots)."""
    passes, free = [], [0] * 4  # free: when each rank has done what it began
    for i in range(count):
        now = 0
        for kind, n, slots in [("F", n, 1) for n in (0, 1, 2, 3)] + [("B", n, 2) for n in (3, 2, 1, 0)]:
            rank = 3 - n if both and i % 2 else n
            start = max(now, free[rank])
            passes.append((rank, kind, i, start, slots))
            free[rank] = now = start + slots
    return passes


# %% [markdown]
# **Vote:** Basic needs 12 slots per batch. With four batches, is MASTER (a) twice as fast, (b) about a quarter faster, or (c) as fast?

# %%
from course.lessons.l17_five_dimensions.figures import draw_replays

draw_replays({"Basic": replay(4, both=False), "MASTER": replay(4, both=True)})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): 39 slots, not 48. The next batch starts on the rank that a backward leaves first, and follows it. Three of its four forwards run beside that backward, so it adds 9 slots, and MASTER gains at most
# 12/9 = 1.33 here. The authors measured more.
#
# </details>

# %% tags=["exercise: 17.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## 5 · Five at once
#
# Rank 0 is still full. Tiles make room for a second image, and so for micro-batches. **Hy-Fi** combines five [ways to cut](../docs/ways-to-split.md): tiles, stages, micro-batches, two
# directions and data parallelism.
#
# ```
#              rank 0      rank 1      rank 2      rank 3      ranks 4 to 7
# replica 0    tile 0      tile 1   →  stage 1  →  stage 2     the same,
# replica 1    stage 2  ←  stage 1  ←  tile 1      tile 0      with other images
#
# stage 0 is cut into the two tiles
# ```
#
# A program trains MASTER and Hy-Fi, without and with a mistake in a sum of gradients, and compares the weights with one process's.
#
# **Vote:** how many of the two mistakes stop with an error?

# %%
# !mpiexec -n 4 python -m course.lessons.l17_five_dimensions.strategies GEMS-MASTER
# !mpiexec -n 8 python -m course.lessons.l17_five_dimensions.strategies

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# None, because every message arrives and every shape fits. Only comparing with one process finds them.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | links | Keep an image's tiles inside one machine, because most layers exchange halos. |
# | memory | If one layer fills a GPU, no cut between layers helps, but tiles do. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count memory on every rank: one can be full while others are nearly empty.
# - GEMS's fullest rank holds no more activations than Basic's, but model states exist twice.
# - Compare speed with the same method on fewer GPUs, and weights with one process's.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# An image needs 60 GB of activations, and a GPU has 40. How do you use eight GPUs? (a) GEMS with eight stages. (b) Eight tiles. (c) Two tiles × four stages.
#
# <details><summary>What to listen for</summary>(a) fails if the first stage needs most of the 60 GB. In (b), each GPU holds about an eighth, but all weights. (c) pays when eight tiles are too thin.</details>

# %% [markdown]
# ## References
#
# - A. Jain and others, *GEMS*, SC 2020, and *Hy-Fi*, ISC 2022. Figures: [Ways to split](../docs/ways-to-split.md).
