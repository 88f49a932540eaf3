# ---
# title: Spatial and hybrid
# goal: Cut an image into tiles, one per rank, and train as if it were whole; in More, cut the batch as well.
# able:
#   - say which pixels a tile needs from its neighbours
#   - return the gradients of a halo to their owners
#   - sum gradients over tiles
# more:
#   - combine two ways to split on one grid of ranks
#   - exchange one halo for several layers, and count what it costs
#   - read the speed-up of two replicas in opposite directions
#   - say which parts of a model a rank holds in five dimensions
# before: >-
#   {04}, {06}; a convolution in PyTorch; for More also 08 and 09
# minutes: {core: 20, more: 35}
# ranks: 4
# warm-up:
#   - ask: >-
#       All ranks send an array to the right and receive one from the left. Which call does both, and cannot hang?
#     answer: <code>Sendrecv</code>.
#   - ask: Each rank has a part of a batch. How do their gradients become the gradient of the batch?
#     answer: They are added up, if each loss was divided by the size of the global batch.
#   - ask: Ten rows are distributed over 4 ranks as evenly as possible. How many rows does each rank get?
#     answer: 3, 3, 2 and 2.
# ---

# %%
# %%px --setup
import numpy as np
import torch
from mpi4py import MPI
from torch.nn import functional as F

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
torch.set_num_threads(1)

# %% [markdown] tags=["slide"]
# ## 1 · Cut an image
#
# A scanned slide of tissue has 100 000 × 100 000 pixels, and training keeps the output of every layer. No rank has that much memory. **Spatial
# parallelism** gives each rank one part of every image, a **tile**. We start small: an image of 12 rows, cut into four strips of three. Every rank
# knows all weights of the convolution, 3 × 3 with padding 1.

# %%
# %%px
torch.manual_seed(10)
image = torch.randn(1, 1, 12, 8, dtype=torch.float64)  # the whole image, to compare with
weight = torch.randn(1, 1, 3, 3, dtype=torch.float64)
rows = slice(3 * rank, 3 * rank + 3)
strip = image[:, :, rows].clone()
whole = F.conv2d(image, weight, padding=1)

# %% [markdown]
# What if each rank simply convolves its own strip?

# %%
predict("Of 12 rows, how many are wrong?", None)

# %%
# %%px
alone, right = F.conv2d(strip, weight, padding=1)[0, 0], whole[0, 0, rows]
wrong = [3 * rank + row for row in range(3) if not torch.allclose(alone[row], right[row])]

# %%
wrong = sum(cluster["wrong"], [])
outcome("Of 12 rows, how many are wrong?", len(wrong), word="counted", because=f"They are rows {wrong}.")

# %% [markdown]
# The two rows at every cut are wrong. Each needs the row on the other side of the cut. The convolution put zeros there, but the neighbour has
# pixels.

# %% [markdown] tags=["slide"]
# ## 2 · The halo, forward
#
# So each rank receives one row from each neighbour. These copies are **ghosts**, and all ghosts around a tile are its **halo**. For a kernel of k
# rows, with k odd and stride 1, the halo is (k−1)/2 rows wide. At the top and the bottom of the image there is no neighbour, and the partner is
# `MPI.PROC_NULL`: nothing is sent or received. So these ghosts stay zero: that is exactly the padding. In the code, `as_bytes` gives MPI the memory
# of a tensor.

# %% tags=["source: course_lib.comm.halo:with_ghost_rows"]
# %%px

# %%
# %%px
ghosts = with_ghost_rows(comm, strip, 1)  # 3 rows and 2 ghosts
tiled = F.conv2d(ghosts, weight, padding=(0, 1))  # the padding of rows is there already
print(f"rank {rank}: equal to the whole image's rows: {torch.allclose(tiled, whole[:, :, rows])}")

# %% tags=["exercise: 10.q1"]

# %% [markdown] tags=["notes"]
# Six minutes up to here. Ask before section 3: "Forward is right now. Can we train?"

# %% [markdown] tags=["slide"]
# ## 3 · The halo, backward
#
# The outputs are right. Are the gradients? Take the simplest convolution: all nine weights are 1, and the loss is the sum of all
# outputs. Then the gradient of a pixel is the number of outputs that used it. Away from the image's left and right edges that is 9, and 6 in the first
# and the last row.

# %%
# %%px
ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
pixels = strip.clone().requires_grad_()
with_ghosts = torch.cat([ghosts[:, :, :1], pixels, ghosts[:, :, -1:]], dim=2)
F.conv2d(with_ghosts, ones, padding=(0, 1)).sum().backward()
print(f"rank {rank}: gradients down a column: {pixels.grad[0, 0, :, 4].tolist()}")

# %% [markdown] tags=["subslide"]
# Beside every cut we see a 6 where a 9 should be, and no error was raised. A pixel beside a cut is used on two ranks: by its owner, and as
# a ghost by the neighbour. There, the ghost is an array that arrived in a message. Autograd knows no history of it, so the ghost's part of
# the gradient never reaches the owner.

# %% tags=["nbval-ignore-output", "subslide"]
from course.lessons.l10_spatial_and_hybrid.figures import halo_arrows

halo_arrows([3, 3, 3, 3])

# %% [markdown] tags=["fragment"]
# In the backward pass every arrow is reversed: each rank sends the gradients of its ghosts to the owners of those pixels, and the owners **add**
# them to their own.

# %% tags=["exercise: 10.1", "subslide"]

# %% [markdown] tags=["notes"]
# Six minutes with the exercise. Two slips: what was received replaces the rank's own rows instead of being
# added, and what comes from below is added to the first row. Ask: "On which ranks was this pixel used?"
# The ranks at the edges need no special case: nothing comes from MPI.PROC_NULL, so the zeros stay.

# %%
continue_with("10.1")

# %% [markdown] tags=["slide"]
# ## 4 · The gradient of the weights
#
# `differentiable` makes one function for autograd: the exchange forward, `return_ghosts` backward. (More shows how.) With it we build a network of
# two convolutions that share one weight, the same on every rank.

# %%
# %%px
from course.lessons.l10_spatial_and_hybrid.exchange import differentiable

exchange = differentiable(with_ghost_rows, return_ghosts)


def network_loss(team, strip, weight):
    """Two convolutions with halos from `team`, and the sum of the squared outputs."""
    hidden = torch.tanh(F.conv2d(exchange(team, strip), weight, padding=(0, 1)))
    return F.conv2d(exchange(team, hidden), weight, padding=(0, 1)).square().sum()


def whole_loss(image, weight):
    """The same network on a whole image."""
    return F.conv2d(torch.tanh(F.conv2d(image, weight, padding=1)), weight, padding=1).square().sum()


# %% [markdown]
# Each rank computes the loss of its own tile, so the gradients differ. We take the mean of the four. What fraction of the image's gradient is this
# mean?

# %% [markdown] tags=["notes"]
# Collect guesses before the cell runs. Many say 1, because data parallelism averages. Listen for "a
# quarter, there are four tiles", and let that person explain it. Three minutes.

# %%
predict("The mean, as a share of the image's gradient?", None)

# %%
# %%px
w, expected = (weight.clone().requires_grad_() for _ in range(2))
network_loss(comm, strip, w).backward()
whole_loss(image, expected).backward()
comm.Allreduce(MPI.IN_PLACE, w.grad.numpy())
same = torch.allclose(w.grad, expected.grad)
share = (w.grad / size / expected.grad).mean().item()

# %%
share, sums_agree = round(cluster["share"][0], 6), all(cluster["same"])
outcome("The mean, as a share of the image's gradient?", share, word="computed")
print("The sum over the tiles is the gradient of the image, on every rank:", sums_agree)

# %% [markdown]
# Our loss is a sum over the image, so each tile's gradient is a part of the image's, and the parts add up. If you want a mean, divide each rank's
# loss by the pixels of the *whole* image, and still add. Average the gradients only if each rank's loss is the mean over its own tile and all tiles
# have the same size.

# %% [markdown] tags=["slide"]
# ## 5 · An image that one rank cannot train on
#
# Our slide has 1024 × 1024 pixels: nuclei in noise, drawn for this lesson. A network of four convolutions learns to mark the pixels of nuclei. We
# start two jobs beside the cluster. In both, a rank may allocate **96 MiB**: first one rank with the whole image, then four ranks with a strip each.
# (On Linux only.)

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.large_image import train_limited

alone = train_limited(1)
print(f"1 rank, at most {alone.limit_mib} MiB: {alone.story}")

# %% tags=["nbval-ignore-output"]
together = train_limited(4)
print(f"4 ranks, at most {together.limit_mib} MiB each: {together.story}")

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import loss_by_step

loss_by_step(together.losses, ranks=4)

# %% [markdown]
# What fills the memory? The layers' outputs, which backward needs. A strip has about a quarter of them.

# %% [markdown] tags=["notes"]
# Let the room guess how many ranks a slide with 100 000 pixels per side needs, if 1024 pixels need four.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A tile needs (k−1)/2 rows from each neighbour: its halo (k odd, stride 1).
# - Forward copies pixels. Backward sends the ghosts' gradients to the owners, who add them.
# - For a mean loss, each rank divides its sum by the pixels of the whole image. Then the gradients are summed over the tiles.
# - Memory is split with the pixels: ranks together can train on an image that is too large for one.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A network has twenty convolutions, 3 × 3 each, on tiles of 64 × 64 pixels. Each layer uses up one pixel of halo. Would you exchange halos twenty
# times, or once, with a halo of 20 pixels? Vote, talk to your neighbour, vote again: (a) twenty times; (b) once; (c) something in between.
#
# <details><summary>What to listen for</summary>(c): with one exchange, the first layer computes 102 × 102 outputs instead of 64 × 64, and all twenty
# together 1.71 times as many (More counts them). A few layers at a time save most messages. (b) is right where messages are very slow, (a) where
# they are nearly free.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Two axes of one grid
#
# With more ranks than one image needs, we cut the batch as well. Splitting in several ways at once is **hybrid parallelism**. The
# four ranks form a grid:
#
# | | tile 0 | tile 1 |
# |---|---|---|
# | **image 0** | rank 0 | rank 1 |
# | **image 1** | rank 2 | rank 3 |
#
# `make_grid` gives each rank one communicator per axis: `grid["tile"]` joins the ranks of a row, `grid["data"]` those of a column. Halos
# travel only along `tile`, between the two tiles of one image. The ranks of a column hold different images and exchange no pixels. But all four ranks
# hold a part of the gradient. So we sum along both axes, one after the other:

# %%
# %%px
from course_lib.comm.grid import make_grid

grid = make_grid(comm, data=2, tile=2)
i, j = grid["data"].rank, grid["tile"].rank
two_images = torch.randn(2, 1, 12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
mine = two_images[i : i + 1, :, 6 * j : 6 * j + 6].clone()

# %%
# %%px
w = weight.clone().requires_grad_()
(network_loss(grid["tile"], mine, w) / 2).backward()  # the mean over two images
for axis in ("tile", "data"):
    grid[axis].Allreduce(MPI.IN_PLACE, w.grad.numpy())

expected = weight.clone().requires_grad_()
(whole_loss(two_images, expected) / 2).backward()
print(f"rank {rank}: the gradient of both images: {torch.allclose(w.grad, expected.grad)}")

# %% [markdown]
# We divided the loss by 2, the number of images, and not by the number of ranks.

# %% tags=["exercise: 10.q3"]

# %% [markdown]
# ### What fills the memory
#
# In section 5, one rank had no memory left where four could train. The memory goes into the layers' outputs, which backward needs. We count them for
# three sizes of image.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
from course.lessons.l10_spatial_and_hybrid.large_image import kept_mib

kept = {side: kept_mib(comm, side) for side in (256, 512, 1024)}

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import memory_by_side

whole = {side: one for side, (one, _) in cluster["kept"][0].items()}
strips = {side: max(kept[side][1] for kept in cluster["kept"]) for side in whole}
memory_by_side(whole, strips, ranks=4)

# %% [markdown]
# Twice the side means four times the pixels and about four times the memory, on any number of ranks. A strip keeps slightly more than a quarter of
# the image's outputs, because it also keeps ghosts.
#
# Why did one rank run out with a limit of 96 MiB, when it keeps only 52? The limit also counts what exists for a moment, such as the gradients of the
# layers' outputs.

# %% [markdown]
# ### All ways to split, and one process
#
# The picture shows what each way to split a training cuts. In **sub-graph parallelism**, which no lesson has shown yet, each rank computes some of the
# parallel branches of a layer.

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import ways_to_split

ways_to_split()

# %% [markdown]
# Which of them give the result of one process? We run them all. Each strategy trains a small network in float64 for three steps, beside one process that
# does the same: on 1, 2, 3 and 4 ranks where that is possible.

# %%
# %%px --timeout 110
from course.lessons.l10_spatial_and_hybrid.strategies import STRATEGIES, measure

differences = {strategy.name: measure(comm, strategy) for strategy in STRATEGIES[:8]}

# %%
# %%px --timeout 110
differences |= {strategy.name: measure(comm, strategy) for strategy in STRATEGIES[8:15]}

# %% [markdown]
# These split the batch or the layers. The next ones split inside a layer or split tokens; the last ones split images, or split along several axes.

# %%
# %%px --timeout 110
differences |= {strategy.name: measure(comm, strategy) for strategy in STRATEGIES[15:23]}

# %%
# %%px --timeout 110
differences |= {strategy.name: measure(comm, strategy) for strategy in STRATEGIES[23:]}

# %% [markdown]
# The table shows the largest difference of any weight on any number of ranks. (Ring attention has no weights: there we compare outputs and
# gradients.) The column of what is sent leaves out two things. Backward, the gradients of the activations return the same way. And the gradients of
# a few small weights that every rank holds are summed, such as those of the experts' router.

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.strategies import ROUNDING, STRATEGIES

differences = cluster["differences"][0]
print(f"{'strategy':27}{'what is split':34}{'sent forward, and per step':31}{'ranks':9}off by")
for strategy in STRATEGIES:
    found = differences[strategy.name]
    ranks = ", ".join(str(n) for n in found) if len(found) < 4 else "1 to 4"
    print(f"{strategy.name:27}{strategy.splits:34}{strategy.sends:31}{ranks:9}{max(found.values()):.0e}")

# %%
equal = [name for name, found in differences.items() if max(found.values()) < ROUNDING]
print(f"equal to one process within rounding: {len(equal)} of {len(differences)}")

# %% [markdown]
# One row is missing: five dimensions at once, which need 8 ranks. It comes below, where GEMS and Hy-Fi are explained, too. ZeRO stage 0 shards
# nothing, stages 1 to 3 shard the optimizer state and more; lesson 11 is about them.

# %% [markdown]
# ### A test for the halo
#
# Section 4 joined the exchange and its way back for autograd. Here is how:

# %% tags=["source: course.lessons.l10_spatial_and_hybrid.exchange:differentiable"]
# %%px

# %% [markdown]
# A halo without backward raises no error (section 3). How would you find it? There is a test that needs no network. The exchange H is linear, and backward must be its transpose Hᵀ. So for any x and
# y, **⟨Hx, y⟩ = ⟨x, Hᵀy⟩**: multiply, and add up over all pixels of all ranks.

# %%
# %%px
from course_lib.comm.halo import ghost_rows


def is_adjoint(exchange):
    """Whether backward of `exchange`, from a strip to a strip with ghosts, is the transpose of forward."""
    x = strip.clone().requires_grad_()
    Hx = exchange(comm, x)
    y = torch.sin(Hx.detach() + rank)  # any numbers will do
    Hx.backward(y)
    return abs(comm.allreduce((Hx * y).sum().item() - (x * x.grad).sum().item())) < 1e-10


ours, library = is_adjoint(exchange), is_adjoint(lambda team, x: ghost_rows(team, x, 1))
if rank == 0:
    print(f"⟨Hx, y⟩ = ⟨x, Hᵀy⟩: {ours} for section 4, {library} for the library's ghost_rows")

# %% tags=["exercise: 10.q2"]

# %% [markdown]
# ### One halo for several layers
#
# How much is sent? A strip sends whole rows to two neighbours; a square tile has short edges, but more neighbours. We count for an image of 2048²
# pixels with 16 channels in float32. We print the bytes of the rank that sends most.

# %%
from course_lib.theory.tiles import halo_nbytes

for tiles in (4, 16, 64):
    side = int(tiles**0.5)
    shapes = (tiles, 1), (side, side)
    strips, squares = (max(halo_nbytes((2048, 2048), shape, 1, channels=16)) / 1000 for shape in shapes)
    print(f"{tiles:3} tiles: a strip sends {strips:.0f} kB per layer, a square tile {squares:.0f} kB")

# %% [markdown]
# Two consecutive convolutions need two exchanges of one row each. A **fused halo** is *one* exchange of two rows that serves both. Then both
# neighbours compute the rows at the cut: a little more work, half the messages. There is one trap.

# %% tags=["exercise: 10.2"]

# %% [markdown]
# `FusedHalos` does this for a stack of layers, on rows and columns. From the last layer to the first, the halo grows:
# h ← s·h + (k−1)/2, with the stride s of the layer. We run four convolutions both ways on 2 × 2 tiles. Then we count what rank 0 sent, and what deeper
# stacks would cost on a tile that has neighbours on all sides.

# %%
# %%px
from torch import nn

from course_lib.comm.counting import counted
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, tile_model, tile_of

torch.manual_seed(0)
stack = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())])
stack, picture = stack.double(), torch.randn(1, 8, 64, 64, dtype=torch.float64)
made, sent = make_tiles(comm, 2, 2), {}
for name, make in (("layer by layer", tile_model), ("fused", FusedHalos)):
    tiles = Tiles(comm, counted(made.height), counted(made.width))
    outputs = make(tiles, stack)(tile_of(tiles, picture))
    traffic = tiles.height.sent + tiles.width.sent
    close = torch.allclose(outputs, tile_of(tiles, stack(picture)))
    sent[name] = (traffic.messages, traffic.nbytes, comm.allreduce(close, MPI.LAND))

# %%
from course_lib.theory.tiles import Window, extra_pixels, fused_halo

for name in ("layer by layer", "fused"):
    messages, nbytes, close = cluster["sent"][0][name]
    print(f"{name:15} {messages} messages, {nbytes} bytes from rank 0; equal to the whole image: {close}")
for layers in (1, 2, 4, 8, 20):
    layer_windows = [Window(3, before=1, after=1)] * layers
    rows, extra = fused_halo(layer_windows), extra_pixels(layer_windows, (64, 64))
    more = f"{extra:.1%} more to compute on a tile of 64²"
    print(f"layers fused: {layers:2}; rows of halo: {rows:2}; {more}")
(many, apart, _), (few, joined, _) = (cluster["sent"][0][name] for name in ("layer by layer", "fused"))
print(f"Fused, {few / many:.0%} of the messages carry {joined / apart - 1:.0%} more bytes.")

# %% [markdown]
# ### GEMS and five dimensions
#
# If only one micro-batch fits into memory, a pipeline has nothing to overlap, and one rank works at a time (lesson 08). **GEMS** puts a second replica of the
# model on the same ranks in the opposite direction. As soon as a rank has finished the first replica's backward, the second replica starts its
# forward there, in the memory that was freed. Take four stages, and a backward that lasts as long as two forwards. In the picture, a prime marks the second replica.

# %%
predict("What is the speed-up of GEMS, with two batches?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import gems_basic, gems_mast, makespan, simulate

one_way, both_ways = (simulate(schedule, 1, 2) for schedule in (gems_basic(4, 2), gems_mast(4)))
schedule_grids({"one replica": one_way, "GEMS": both_ways})

# %%
speedup = makespan(one_way) / makespan(both_ways)
hidden = makespan(one_way) - makespan(both_ways)  # a forward lasts one unit
why = f"{hidden:g} of the second replica's 4 forwards hide behind the first replica's backward: "
why += f"{makespan(both_ways):g} units instead of {makespan(one_way):g}."
outcome("What is the speed-up of GEMS, with two batches?", round(speedup, 3), word="replayed", because=why)

# %% [markdown]
# The paper has four variants. *Basic* is the baseline, one replica. *MAST* is the picture above. *MASTER* repeats it before each update, here for
# eight batches. *Hybrid* adds data parallelism: two groups of two ranks; each rank has two of the four stages and runs MASTER on four
# batches. We run all four variants with real messages. The stages sleep instead of computing, so four ranks need no four cores: the compute is **emulated**.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
from course.lessons.l10_spatial_and_hybrid.gems_runs import VARIANTS, emulated_seconds

seconds = {name: min(emulated_seconds(comm, name) for _ in range(2)) for name in VARIANTS}

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.gems_runs import VARIANTS, predicted_seconds

seconds = cluster["seconds"][0]
print("seconds per batch   predicted  measured with emulated compute")
for name in VARIANTS:
    print(f"{name:19} {predicted_seconds(name):9.3f}  {seconds[name]:.3f}")

# %% [markdown]
# Now everything at once, on 8 ranks. Two groups of four ranks each get half of the batch (**data**). In each group, two **replicas** of a two-stage
# **pipeline** run in opposite directions. The first stage has 2 **tiles**, the second 2 **tensor** shards (lesson 09). Hy-Fi, by Jain and others,
# combines five dimensions as well: data, model (by layers), spatial, pipeline and both directions.

# %%
predict("Of 8 ranks in five dimensions, how many hold a part of the first stage?", None)

# %%
from course_lib.theory.hybrid import HybridShape, StageShape

shape = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
print("position ", *(f"{position:22}" for position in range(4)), sep="  ")
for replica in range(2):
    held = [shape.coordinates(replica, position) for position in range(4)]
    parts = [f"stage {h.stage} tile {h.tile} shard {h.tensor}" for h in held]
    print(f"replica {replica}", *parts, sep="  ")
holders = [p for p in range(4) if any(shape.coordinates(r, p).stage == 0 for r in range(2))]
outcome(
    "Of 8 ranks in five dimensions, how many hold a part of the first stage?",
    shape.data * len(holders),
    word="counted",
    because="The second replica runs the other way.",
)

# %% [markdown]
# Gradients are summed over the tiles of a stage, over the two replicas, and over the data ranks. Tensor shards are different weights, so over them
# nothing is summed. Here is the missing row of the table, as a job of 8 ranks that share your cores:

# %% tags=["nbval-ignore-output"]
from subprocess import TimeoutExpired

from mpi_classroom.launch import run_ranks

try:
    job = run_ranks(8, ["-m", "course.lessons.l10_spatial_and_hybrid.five_dimensions"], timeout=100)
    print(job.stdout or job.stderr)
except TimeoutExpired:
    print("not done after 100 s: this machine is too busy for 8 more ranks")

# %% [markdown]
# What was **published** on GPUs, beside what our models predict? The figures are from a talk by the authors' group. The models' assumptions are
# ours: the published figures come without them. Below, f and b are the times that one stage needs for a forward and a backward, and p is the number
# of stages.

# %%
from course.lessons.l10_spatial_and_hybrid.published import rows as published_rows

print(f"{'what':35}{'published':11}{'predicted':11}assuming")
for row in published_rows():
    print(f"{row.what:35}{row.published:11}{row.predicted:11}{row.assumes}")

# %% [markdown]
# MAST fits the model. MASTER's 1.72 does not: with b = 2f and four stages, no number of batches takes this schedule beyond
# (f + b)/(b + f/p) = 1.33, so something else must have helped, such as the larger batch that the freed memory allows. For the Hybrid, the talk gives
# 7.25 h and 27 minutes, a ratio of 16.1; the paper's abstract says seven hours and 28 minutes, which is 15. In the talk, the Hybrid uses 32 times as
# many GPUs as the baseline. And two directions alone cannot explain the ratio of 2.26.

# %% [markdown]
# ### Judging tiles one by one
#
# Why not simply train on tiles as if they were images? Each of these images has two marks at random places, seldom both inside one small tile. The
# label says whether the marks are alike. A network judges each tile by itself, and the image gets the mean of the judgements. Ranks 0 to 2 train one
# network each, with tiles of 32 (the whole image), 16 and 8 pixels.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course_lib.training.distant_marks import accuracy_with_tiles

tile = {0: 32, 1: 16, 2: 8}.get(rank)
accuracy = accuracy_with_tiles(tile, images=768, epochs=12) if tile else None

# %% [markdown]
# Then all four ranks train one network together, on tiles of 16 pixels that exchange halos. Each rank adds up its features, and one all-reduce
# joins the sums before the judgement.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course.lessons.l10_spatial_and_hybrid.whole_from_tiles import accuracy_on_tiles

with_halos = accuracy_on_tiles(comm, images=768, epochs=12)

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import accuracy_by_tile

measured = {tile: value for tile, value in zip(cluster["tile"], cluster["accuracy"], strict=True) if tile}
accuracy_by_tile(measured, side=32, with_halos=cluster["with_halos"][0])

# %% [markdown]
# A tile that holds only one mark cannot know the other, and the mean of such judgements does not show whether the two are alike. The sum of features
# over all tiles brings the two marks together before the judgement, and the halos make the features the same as on the whole image. Then cutting is
# only a matter of memory.

# %% [markdown]
# ## On GPUs
#
# The same code paths apply, with halos from GPU to GPU. There the exchange of a few rows costs mostly latency, so fusing pays. We have measured this
# on the CPUs of the reference machine only: two strips of a 2048² image, with the fast form of `tile_model`. A ratio above 1 means that the strips
# need less time, or less memory per rank, than the run named after "beside".

# %%
from course.lessons.shared.reference import rows as reference_rows

for row in reference_rows("spatial"):
    print(f"{row['case']}, {row['ranks']} ranks, beside {row['peer_name']}: ratio {row['ratio']:.2f}")

# %% [markdown]
# ## Pitfalls
#
# - A halo without backward: no error, right outputs, wrong gradients in all layers but the last.
# - Batch-norm with the statistics of one tile: another layer than on the whole image. `SpatialBatchNorm` sums over all tiles.
# - The mean over tiles of gradients of a sum: the effective learning rate of SGD then depends on the number of ranks.
# - Two replicas whose gradients are summed in a different order on each side: both sides wait forever.

# %% [markdown]
# ## References
#
# - N. Dryden and others, [Improving strong-scaling of CNN training by exploiting finer-grained
#   parallelism](https://arxiv.org/abs/1903.06681), 2019: spatial parallelism.
# - R. Hewett and T. Grady, [A linear algebraic approach to model parallelism in deep
#   learning](https://arxiv.org/abs/2006.03108), 2020: adjoints of exchanges.
# - A. Jain and others, *GEMS: GPU-enabled memory-aware model-parallelism system for distributed DNN training*, SC 2020.
# - A. Jain and others, *Hy-Fi: Hybrid five-dimensional parallel DNN training on high-performance GPU clusters*, ISC 2022.
# - A. Jain, *High-Performance Deep Learning*, slides of a talk at The Ohio State University: the published figures of GEMS and Hy-Fi.

# %% [markdown]
# ## Stretch
#
# `with_ghost_rows` waits for its rows before anything is computed. Which outputs do not need them? Compute those first, while the
# messages are on their way (`Isend`, `Irecv`), and the others afterwards. (`course_lib/fast/spatial_parallel.py` does.)
