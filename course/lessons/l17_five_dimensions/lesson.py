# ---
# title: Five dimensions at once
# goal: Put idle ranks and empty memory to work.
# able:
#   - sum gradients of two replicas in opposite directions
#   - count what each rank of a pipeline holds
#   - replay a schedule, and test a published speed-up with it
# before: >-
#   {08}. Helpful: {10}
# minutes: {core: 20}
# also: "An elective."
# ranks: 4
# warm-up:
#   - ask: Four stages, one micro-batch. How many ranks compute at once?
#     answer: One.
#   - ask: Why does a stage keep activations after sending its output?
#     answer: >-
#       Its backward needs layers' inputs and ReLUs' outputs.
#   - ask: "`comm.Split(color, key)`: which rank of one color becomes rank 0?"
#     answer: The one with the smallest key.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One works, three wait
#
# A pipeline overlaps several micro-batches. Suppose one image's activations nearly fill rank 0's GPU (no recomputing). Then rank 0 must finish each image's backward before the next forward: one stage works at a time. This is **layer parallelism** (*Basic* below).
#
# Stage 0 turns 256 × 256 pixels into eight feature maps, pooled to 64 × 64.


# %%
# %%px
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from course_lib.parallel.stages import run_stage
from course_lib.training.kept import SavedBytes

torch.set_default_dtype(torch.float64)
comm = MPI.COMM_WORLD


# %%
# %%px
def cut(n):
    """Stage `n` of four, flat tensors in and out; same weights on any rank."""
    torch.manual_seed(n)
    side, maps = (256, 1) if n == 0 else (64, 8)
    conv = nn.Conv2d(maps, 8, 3, padding=1)
    end = {0: [nn.MaxPool2d(4)], 3: [nn.MaxPool2d(8), nn.Flatten(), nn.Linear(512, 10)]}.get(n, [])
    return nn.Sequential(nn.Unflatten(1, (maps, side, side)), conv, nn.ReLU(), *end, nn.Flatten())


# %% [markdown] tags=["subslide"]
# For each `→`, `run_stage` (lesson 08) runs an image forward, then backward. `SavedBytes` counts bytes saved for backward; `peak` is their maximum.
# **Predict:** rank 0 holds about 2, 8 or 32 times as much as rank 1?


# %%
# %%px
torch.manual_seed(1)
images = [(torch.randn(1, 256 * 256), torch.randint(10, (1,))) for _ in range(4)]
pipelines = {"→": (comm, cut(comm.rank))}


def run(order):
    """Accumulate gradients; return this rank's activation peak for `show`."""
    with SavedBytes(*(stage for _, stage in pipelines.values())) as counter:  # skips weights
        for arrow, image in zip(order, images, strict=True):
            run_stage(*pipelines[arrow], [("F", 0), ("B", 0)], [image], cross_entropy, width=8 * 64 * 64)
    labels = {"rank": f"rank {comm.rank}", "order": order}
    return {"labels": labels, "value": counter.peak / 2**20, "unit": "MiB", "kind": "counted"}


basic = run("→→→→")

# %%
show(cluster["basic"], x="rank", y="most activations held")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 9.5 times. Stage 0 saves the float64 image (0.5 MiB), ReLU's eight full-size maps (4) and maxima's positions (0.25). Stage 1 saves input and output (0.25 each).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · From the other end
#
# **GEMS** runs a second **replica** on the same ranks in the opposite direction:
#
# ```
#                  rank 0      rank 1      rank 2      rank 3
# → replica 0      stage 0  →  stage 1  →  stage 2  →  stage 3
# ← replica 1      stage 3  ←  stage 2  ←  stage 1  ←  stage 0
# ```
#
# Its *MASTER* schedule alternates replicas: `→←→←`. Rank 0 also runs stage 3 (0.508 MiB).

# %%
predict("MASTER: how many MiB of activations on rank 0?", None)

# %%
# %%px
mirror = comm.Split(0, -comm.rank)  # its rank 0 is our rank 3
pipelines = {"→": (comm, cut(comm.rank)), "←": (mirror, cut(mirror.rank))}
master = run("→←→←")

# %%
outcome("MASTER: how many MiB of activations on rank 0?", cluster[0]["master"]["value"], word="counted")
show(cluster["basic"] + cluster["master"], x="rank", y="most activations held", by="order")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Still 4.75: image 0's backward frees its activations before rank 0 begins image 1. Rank 3 runs replica 1's stage 0: 4.75 too. Each rank keeps two stages' *model states* (weights, gradients, optimizer state).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Two replicas, one gradient
#
# Each stage's two copies see different images. Our loss sums over images, so we add the copies' gradients. For comparison, each rank runs the full model.


# %%
# %%px
def flat(module):
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


whole = nn.Sequential(*map(cut, range(4)))
for pixels, label in images:
    cross_entropy(whole(pixels), label).backward()

# %% tags=["exercise: 17.1", "subslide"]

# %% [markdown] tags=["notes"]
# Seven minutes so far, six for this. Pairs play ranks 0 and 3.

# %%
continue_with("17.1")

# %% [markdown] tags=["subslide"]
# Write **your own order**: give one replica more images. **Predict:** are the sums still one process's gradients?

# %%
# %%px
pipelines = {"→": (comm, cut(comm.rank)), "←": (mirror, cut(mirror.rank))}  # no gradients yet
order = "→→→←"  # yours: four arrows, at least one of each
_ = run(order)
first, second = (flat(stage) for _, stage in pipelines.values())
print("equal before:", np.allclose(first, flat(whole[comm.rank])))
sum_replicas(comm, first, second)
print("after:", np.allclose(first, flat(whole[comm.rank])), np.allclose(second, flat(whole[mirror.rank])))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Yes, up to rounding (no dropout or batch norm). To train, copy sums into `.grad`. In `→→→←`, averaging per replica would weigh one `←` as much as three `→` together.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# `replay` takes images in order: each pass starts once its input is ready and its rank free. A forward takes one *slot*, a backward two. Messages, sums of gradients and updates take none.


# %%
def replay(order, forward=(1, 1, 1, 1), ratio=2, message=0):
    """Passes (rank, start, end). `forward` per stage; backward: `ratio` times that; `message` per send."""
    passes, free = [], [0] * 4  # when each rank is free
    for arrow in order:
        way = [*zip([0, 1, 2, 3] if arrow == "→" else [3, 2, 1, 0], forward)]  # (rank, time)
        here, ready = way[0][0], 0  # where and when the next input is ready
        for rank, time in way + [(rank, ratio * time) for rank, time in reversed(way)]:
            start = max(free[rank], ready + message * (rank != here))
            here, ready = rank, start + time
            free[rank] = ready
            passes.append((rank, start, ready))
    return passes


# %% [markdown]
# **Predict** for four images:

# %%
predict("MASTER's speed-up over Basic?", None)

# %%
from course.lessons.l17_five_dimensions.figures import draw_directions

basic, master, own = (replay(order) for order in ("→→→→", "→←→←", cluster[0]["order"]))
outcome("MASTER's speed-up over Basic?", basic[-1][-1] / master[-1][-1], word="replayed")
draw_directions({"Basic": basic, "MASTER": master, "yours": own})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# One image takes 12 slots. Each change of direction saves three slots: three forwards overlap the previous image's backwards. With many images per update, the speed-up approaches 12 / 9 = 1.33.
#
# </details>
#
# On four GPUs, GEMS's authors report 7.25 hours for Basic, 4.21 for MASTER (speed-up 1.72). **Contest:** reach 1.72 by changing one entry of `assumed` (which?). Restore it; use the others.

# %%
assumed = {"forward": (1, 1, 1, 1), "ratio": 2, "message": 0}
slow, fast = (replay(order * 500, **assumed)[-1][-1] for order in ("→→", "→←"))
print(f"1,000 images: speed-up of MASTER over Basic {slow / fast:.2f}")
draw_directions({"Basic": replay("→→→→", **assumed), "MASTER": replay("→←→←", **assumed)})

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# `forward` alone stays below 1.5: backwards (2/3 of Basic's time) never overlap each other. `ratio` alone: at most 1.6 (at 1). `message` 4.2 gives 1.72 (MASTER waits for half the messages); so does `forward` `(3.1, 1, 1, 1)` with `ratio` 1.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 5 · Five at once
#
# **Hy-Fi** combines [five dimensions](../docs/ways-to-split.md): tiles (image parts), stages, micro-batches, two directions, data parallelism.
#
# ```
#              rank 0      rank 1      rank 2      rank 3       ranks 4 to 7
# replica 0   [tile 0      tile 1]  →  stage 1  →  stage 2      the same,
# replica 1    stage 2  ←  stage 1  ← [tile 1      tile 0]      with other images
#
# [ ]  two ranks share stage 0: each keeps about half the activations,
#      so a second micro-batch may fit.
# ```
#
# The command trains Hy-Fi (no batch norm) with and without one sum: `sum_over_tiles`, `sum_replicas` (directions) or `sum_gradients` (data parallelism). It prints each stage's largest weight change and largest error against one process.
#
# A colleague's stages were off by 0.004, 0.0003 and 0.00003. **Vote:** which sum was missing? Try each.

# %%
# !mpiexec -n 8 python -m course.lessons.l17_five_dimensions.strategies --omit sum_gradients

# %% [markdown]
# <details><summary>Open after your runs</summary>
#
# `sum_over_tiles`: only stage 0 has tiles, so it is off most and misleads the others. Without `sum_replicas` or `sum_gradients`, every copy learns from half the images. Nothing hangs or warns.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# - If two images fit, GPipe takes 15 slots for both (four equal stages, free messages): 7.5 per image. MASTER takes at least 9.
# - Convolutions exchange tiles' edges (halos): keep tiles inside one machine if possible.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count memory on every rank: the fullest must fit.
# - With one image per rank at a time, GEMS doubles model states, not the fullest rank's activations.
# - Different assumptions give the same speed-up. Measure which hold.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# An image's activations need 60 GB, model states 12 GB. Which has the highest throughput on one machine's eight 40 GB GPUs: (a) GEMS with eight stages, (b) eight tiles,
# (c) two tiles × four stages?
#
# <details><summary>What to listen for</summary>(b), unless halos, gradient sums or late layers' small maps cost much. Each GPU holds about 7.5 + 12 GB; all compute at once. (a) idles most, if it fits. (c) needs many micro-batches; with equal stages, 1F1B's four images fit.</details>

# %% [markdown]
# ## References
#
# - A. Jain and others, *GEMS*, SC 2020; *Hy-Fi*, ISC 2022. Bidirectional too: *Chimera* (SC 2021), *DualPipe* (DeepSeek-V3). Hours: A. Jain's talk ([Ways to split](../docs/ways-to-split.md)).
