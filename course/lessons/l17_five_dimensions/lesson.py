# ---
# title: Five dimensions at once
# goal: Put idle ranks and empty memory to work, and find out what a table of speed-ups proves.
# able:
#   - train two replicas on the same ranks, in opposite directions
#   - count what each rank of a pipeline holds
#   - judge a published speed-up
# before: >-
#   {08}. Helpful: {10}
# minutes: {core: 20}
# also: "An elective: no other lesson needs it."
# ranks: 4
# warm-up:
#   - ask: Four stages, one micro-batch. How many ranks compute at the same time?
#     answer: One. The others wait for activations, then for gradients.
#   - ask: Why does a stage keep activations after it has sent its output?
#     answer: Backward needs them for the gradients of the stage's own weights.
#   - ask: "`comm.Split(color, key)`: which of the ranks with one color becomes rank 0?"
#     answer: The one with the smallest key.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · One works, three wait
#
# Some images are so large that one fills a rank's memory. One image cannot be cut into micro-batches, so only one of four stages works at a time. This is
# **layer parallelism**, in our plots *Basic*. Here, four small images stand for a large one.


# %%
# %%px
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.utils import parameters_to_vector

from course_lib.parallel.stages import run_stage
from course_lib.training.kept import SavedBytes

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)
comm, width = MPI.COMM_WORLD, 8 * 32 * 32  # so many numbers per image travel between stages


# %%
# %%px
def piece(side, maps, *end):
    conv = nn.Conv2d(maps, 8, 3, padding=1)
    return nn.Sequential(nn.Unflatten(1, (maps, side, side)), conv, nn.ReLU(), *end, nn.Flatten())


def cut(team, rank):
    """The stage of `rank`; the weights are the same for any number of ranks."""
    torch.manual_seed(0)
    end = nn.MaxPool2d(8), nn.Flatten(), nn.Linear(128, 10)
    pieces = [piece(128, 1, nn.MaxPool2d(4)), piece(32, 8), piece(32, 8), piece(32, 8, *end)]
    return nn.Sequential(*(pieces[n] for n in np.array_split(range(4), team.size)[rank]))


# %% [markdown] tags=["subslide"]
# `run_stage` is lesson 08's. `SavedBytes` counts saved activations. With `replicas=1`, only `team` and `stage` are used; section 2 explains `mirror`.


# %%
# %%px
torch.manual_seed(1)
batches = [(torch.randn(4, 128 * 128), torch.randint(10, (4,))) for _ in range(8)]
loss_fn = nn.CrossEntropyLoss(reduction="sum")
rows = []


def train(way, team, batches, replicas=2):
    """Train on all batches, note what this rank held; return its two stages, with gradients."""
    mirror = team.Split(0, -team.rank)  # the same ranks, numbered from the other end
    stage, opposite = cut(team, team.rank), cut(team, mirror.rank)
    with SavedBytes(stage, opposite) as counter:
        for i, batch in enumerate(batches):
            ranks, mine = [(team, stage), (mirror, opposite)][i % replicas]
            run_stage(ranks, mine, [("F", 0), ("B", 0)], [batch], loss_fn, width)  # one micro-batch
    labels = {"rank": f"rank {comm.rank}", "way": way}
    rows.append({"labels": labels, "value": counter.peak / 2**20, "unit": "MiB", "kind": "counted"})
    return stage, opposite


_ = train("Basic", comm, batches, replicas=1)

# %%
show(sum(cluster["rows"], []), x="rank", y="most activations held")

# %% [markdown]
# Rank 0 holds over nine times as much as any other rank, as its piece sees the most pixels. The others stay nearly empty.

# %% [markdown] tags=["slide"]
# ## 2 · From the other end
#
# **GEMS** puts a second **replica**, a copy with the same weights, on the same ranks in the opposite direction: its *first* stage is on rank 3 (`mirror`). Even batches
# go to one replica, odd ones to the other.
#
# *MAST* trains on two batches before an update, *MASTER* on more, here eight. *Hybrid* adds data parallelism: two groups of two ranks train on four batches each.

# %%
predict("MASTER: how many MiB of activations does rank 0 hold?", None)

# %%
# %%px
group, share = comm.Split(comm.rank // 2), batches[comm.rank // 2 :: 2]
for way, team, part in (("MAST", comm, batches[:2]), ("Hybrid", group, share), ("MASTER", comm, batches)):
    stage, opposite = train(way, team, part)  # in the end MASTER's: section 3 uses them

# %%
held = cluster["rows"][0][3]["value"]
outcome("MASTER: how many MiB of activations does rank 0 hold?", held, word="counted")
show(sum(cluster["rows"], []), x="rank", y="most activations held", by="way")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# Not one byte more than Basic. On rank 0, a replica's forward begins only after the other's backward has freed the memory. Rank 3 now holds 4.75 MiB, too. (A stage of Hybrid is two
# pieces: 4.75 + 0.5.)
#
# The price: weights, gradients and optimizer state exist twice.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · Two replicas, one gradient
#
# Each of MASTER's replicas saw half of the batches. Before the update, the replicas' gradients must be added.

# %% tags=["exercise: 17.1", "subslide"]

# %% [markdown] tags=["notes"]
# Seven minutes up to here, six for the exercise. Let pairs play ranks 0 and 3.

# %% [markdown] tags=["subslide"]
# Now your function adds MASTER's gradients. Does one process with all batches get the same sums?

# %%
continue_with("17.1")


# %%
# %%px
def flat(module):
    return parameters_to_vector([parameter.grad for parameter in module.parameters()]).numpy()


whole = cut(MPI.COMM_SELF, 0)
for images, labels in batches:
    loss_fn(whole(images), labels).backward()
right = np.concatenate([flat(whole[comm.rank]), flat(whole[3 - comm.rank])])
here, there = flat(stage), flat(opposite)
for name, exchange in (("not added", lambda *_: None), ("added", sum_replicas)):
    exchange(comm, here, there)
    same = comm.allreduce(np.allclose(np.concatenate([here, there]), right), MPI.LAND)
    if comm.rank == 0:
        print(f"{name}: as in one process? {same}")

# %% [markdown] tags=["slide"]
# ## 4 · How much faster?
#
# Our ranks may share cores, so we **replay** the schedule on paper: messages are free, and a backward takes two forwards' time.

# %%
forward, backward = [1, 1, 1, 1], [2, 2, 2, 2]  # slots per stage


def replay(count, both):
    """All passes of `count` batches: (rank, "F" or "B", batch, start, seconds)."""
    passes, free = [], [0] * 4  # free: when each rank has done what it began
    for i in range(count):
        now = 0
        for kind, stage in [("F", n) for n in (0, 1, 2, 3)] + [("B", n) for n in (3, 2, 1, 0)]:
            rank = 3 - stage if both and i % 2 else stage
            start = max(now, free[rank])
            seconds = forward[stage] if kind == "F" else backward[stage]
            passes.append((rank, kind, i, start, seconds))
            free[rank] = now = start + seconds
    return passes


# %% [markdown]
# **Vote:** with four batches, MASTER is (a) twice as fast as Basic, (b) about a quarter faster, (c) as fast, since it saves no work.

# %%
from course.lessons.l17_five_dimensions.figures import draw_replays

draw_replays({"Basic": replay(4, both=False), "MASTER": replay(4, both=True)})

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b): 39 slots instead of 48. While one batch goes backward, the next goes forward through three free ranks.
#
# </details>
#
# **And in the field?** GEMS's authors report, for images of 1024² on 4 GPUs, 7.25 hours for Basic, 6.28 for MAST and 4.21 for MASTER. We scale our replay to
# Basic's hours. **Vote:** the replay comes near (a) MAST and MASTER, (b) MAST alone, (c) neither.


# %%
def seconds(count, both):
    return max(start + length for *_, start, length in replay(count, both))


for way, count in (("MAST", 2), ("MASTER, endless batches", 1000)):
    print(f"{way}: {7.25 * seconds(count, True) / seconds(count, False):.2f} hours on paper")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (b): 6.34 beside 6.28, but 5.44 beside 4.21. Change `forward` and `backward` until MASTER fits. `[3, 1, 1, 1]` for both gives it 4.23 hours, but then MAST has 5.74.
# A model bent until it fits explains nothing.
#
# </details>

# %% tags=["exercise: 17.q1", "subslide"]

# %% [markdown] tags=["slide"]
# ## 5 · Five at once
#
# Ways to cut can be combined ([their tree](../docs/ways-to-split.md)). A program trains 18 strategies, each without and with a mistake, and compares
# the weights with one process's. First one strategy:

# %%
# !mpiexec -n 4 python -m course.lessons.l17_five_dimensions.strategies GEMS-MASTER

# %% [markdown]
# Now all 18. The last is **Hy-Fi** on eight ranks: tiles, stages, micro-batches, two directions and data parallelism. **Vote:** how many of the mistakes stop with an
# error? (a) Most. (b) About half. (c) None.

# %%
# !mpiexec -n 4 python -m course.lessons.l17_five_dimensions.strategies
# !mpiexec -n 8 python -m course.lessons.l17_five_dimensions.strategies

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Only the comparison finds them. That is why "equal" proves something.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | memory | if one image fills a GPU: tiles, or stages with GEMS; if the model does: stages with 1F1B |
# | links | tiles inside a machine, data parallelism across machines |


# %% [markdown] tags=["slide"]
# ## Key points
#
# - Count memory on every rank: one can be full, others nearly empty.
# - GEMS's fullest rank holds no more activations than Basic's, but model states exist twice.
# - Compare speed with the same method on fewer GPUs, and weights with one process, which finds silent mistakes.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# An image needs 60 GB of activations, a GPU has 40. How do you use eight GPUs? (a) GEMS with eight stages. (b) Eight tiles. (c) Two tiles × four stages.
#
# <details><summary>What to listen for</summary>In (a), the first stage may need most of the 60 GB. In (b), each GPU needs about an eighth, and all work at once. (c) pays when
# eight tiles are too thin, but without micro-batches its stages idle.</details>

# %% [markdown]
# ## References
#
# - A. Jain and others, *GEMS* ("GPU-enabled memory-aware model-parallelism system"), SC 2020, and *Hy-Fi*, ISC 2022. All published figures: [Ways to split](../docs/ways-to-split.md).
