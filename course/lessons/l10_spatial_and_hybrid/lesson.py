# %% [markdown]
# # 10 · Spatial and hybrid
#
# *Cut an image into tiles, one per rank, and train as if it were whole; then combine all ways to cut a training.*
#
# | | |
# |---|---|
# | **You will be able to** | say which pixels a tile needs of its neighbours; return the gradients of a halo to their owners, and test that nothing was lost; sum gradients over tiles; exchange one halo for several layers; read the speed-up of two replicas in opposite directions; say which parts of a model a rank holds in five dimensions |
# | **Before this** | [04 · Collectives](04_collectives.ipynb), [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb); for More also 08 and 09; a convolution in PyTorch |
# | **Time** | core 20 min · more 28 min |
# | **Ranks** | 4 |
#
# [← 09 · Tensor parallelism](09_tensor_parallelism.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course) · [11 · ZeRO from scratch →](11_zero_from_scratch.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. All ranks send an array to the right and receive one from the left. Which call does both, and cannot hang?
#    <details><summary>Answer</summary><code>Sendrecv</code>. To <code>MPI.PROC_NULL</code> it sends nothing, and receives nothing.</details>
# 2. Ranks have parts of a batch. How do their gradients become that of the batch?
#    <details><summary>Answer</summary>By a sum, if each loss is divided by the size of the whole batch.</details>
# 3. An array of 10 rows is distributed over 4 ranks. How many rows does each get?
#    <details><summary>Answer</summary>3, 3, 2 and 2.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import torch
from mpi4py import MPI
from torch.nn import functional as F

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · An image too large for one rank
#
# A scan of a tissue has 100 000 pixels a side, and training keeps what every layer makes of it. **Spatial parallelism**
# gives each rank a part of every image, a **tile**. Ours are strips of a tiny image: 12 rows, three on each rank.
# Every rank knows the weights of the convolution, 3 × 3 with padding 1.

# %%
# %%px
torch.manual_seed(10)
image = torch.randn(1, 1, 12, 8, dtype=torch.float64)  # all of it, to compare with
weight = torch.randn(1, 1, 3, 3, dtype=torch.float64)
rows = slice(3 * rank, 3 * rank + 3)
strip = image[:, :, rows].clone()
whole = F.conv2d(image, weight, padding=1)

# %% [markdown]
# What if each rank simply convolves its strip, as if that were an image?

# %%
predict("Of 12 rows, how many are wrong without the neighbours' pixels?", None)

# %%
# %%px
alone, right = F.conv2d(strip, weight, padding=1)[0, 0], whole[0, 0, rows]
wrong = [3 * rank + row for row in range(3) if not torch.allclose(alone[row], right[row])]

# %%
wrong = sum(cluster["wrong"], [])
outcome("Of 12 rows, how many are wrong without the neighbours' pixels?", len(wrong), word="counted")
print("wrong rows:", wrong)

# %% [markdown]
# Both rows at every cut are wrong. An output looks one row beyond its own, and found padding where the neighbour has
# pixels.

# %% [markdown]
# ## 2 · The halo, forward
#
# So a strip gets a row of each neighbour: its **halo**, made of **ghost** rows. With a kernel of k rows it is (k−1)/2
# rows wide. At the ends of the image there is no neighbour, `PROC_NULL`; the ghosts stay zero, as padding is.

# %% tags=["source: course_lib.comm.halo:with_ghost_rows"]
# %%px

# %%
# %%px
ghosts = with_ghost_rows(comm, strip, 1)  # 3 rows and 2 ghosts
tiled = F.conv2d(ghosts, weight, padding=(0, 1))  # the padding of rows is there already
print(f"rank {rank}: equal to the whole image's rows: {torch.allclose(tiled, whole[:, :, rows])}")

# %% [markdown]
# ## 3 · The halo, backward
#
# Now train through it. A pixel beside a cut was used twice: by its own rank, and as a ghost next door. So it has
# two gradients, on two ranks. The ghost's gradient has to return to the pixel's owner, and be **added** there.

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import halo_arrows

halo_arrows([3, 3, 3])

# %% [markdown]
# Autograd does not know that: what came by a message has no history. Here is what it finds by itself, for the sum of
# nine neighbours in the middle of the image:

# %%
# %%px
ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
pixels = strip.clone().requires_grad_()
with_ghosts = torch.cat([ghosts[:, :, :1], pixels, ghosts[:, :, -1:]], dim=2)
F.conv2d(with_ghosts, ones, padding=(0, 1)).sum().backward()
print(f"rank {rank}: gradients down a column: {pixels.grad[0, 0, :, 4].tolist()}")

# %% [markdown]
# Each pixel is in nine sums, and should have a 9 (6 at the first and last row of the image). Beside every cut, three
# are lost. Nothing failed, and the outputs were right.

# %% tags=["exercise: 10.1"]

# %% [markdown]
# The library's `ghost_rows` has both directions. There is a test for such pairs. The exchange H is linear, and what gradients
# take is its transpose Hᵀ, so for any x and y, **⟨Hx, y⟩ = ⟨x, Hᵀy⟩**: multiply and add up, over all ranks.

# %%
# %%px
from course_lib.comm.halo import ghost_rows

x = strip.clone().requires_grad_()
Hx = ghost_rows(comm, x, 1)
y = torch.randn(Hx.shape, dtype=torch.float64)
Hx.backward(y)
left, right = comm.allreduce((Hx * y).sum().item()), comm.allreduce((x * x.grad).sum().item())
if rank == 0:
    print("⟨Hx, y⟩ = ⟨x, Hᵀy⟩:", abs(left - right) < 1e-10)

# %% [markdown]
# ## 4 · Sum over the tiles
#
# The weights work at every pixel, and their gradient adds up over all pixels. A rank sees those of its tile. Is the
# gradient of the image the mean over the tiles, or the sum?

# %%
predict("The mean of the tiles' gradients, as a share of the gradient of the image?", None)

# %%
# %%px
w = weight.clone().requires_grad_()
F.conv2d(ghost_rows(comm, strip, 1), w, padding=(0, 1)).square().sum().backward()
expected = weight.clone().requires_grad_()
F.conv2d(image, expected, padding=1).square().sum().backward()
comm.Allreduce(MPI.IN_PLACE, w.grad.numpy())
same = torch.allclose(w.grad, expected.grad)
share = (w.grad / size / expected.grad).mean().item()

# %%
share = round(cluster["share"][0], 6)
outcome(
    "The mean of the tiles' gradients, as a share of the gradient of the image?",
    share,
    word="computed",
    because="Nothing is to be divided by the tiles.",
)
print("The sum is the gradient of the image, on every rank:", all(cluster["same"]))

# %% [markdown]
# The loss was divided once, by what it is a mean of. Tiles are parts of one image: another division makes the
# learning rate depend on the number of ranks.

# %% tags=["exercise: 10.q1"]

# %% [markdown]
# ## Key points
#
# - A tile needs (k−1)/2 rows of each neighbour: the halo.
# - Forward copies; backward sends back to the owner and adds. Test it with ⟨Hx, y⟩ = ⟨x, Hᵀy⟩.
# - Gradients of weights are summed over tiles, and divided by nothing.
# - One wide halo can serve several layers; what is outside the image is masked to zero between them.
# - Five ways to cut a training combine on one grid; each has its own communicator, and its own sum.

# %% [markdown]
# ## Discuss
#
# A network has twenty convolutions, 3 × 3 each, on tiles of 64² pixels. Would you exchange a halo twenty times, or once,
# of twenty rows? Vote, talk to your neighbour for two minutes, vote again: (a) twenty times; (b) once; (c) something
# in between.
#
# <details><summary>What to listen for</summary>(c): a halo of 20 around 64 pixels makes (104/64)² = 2.6 times the first layer's work. A few
# layers at a time save most messages and cost little. (b) is right where messages are very slow, (a) where they are nearly free.</details>

# %% [markdown]
# **Stop here in a short workshop.** More: whole networks on tiles, one halo for several layers, two replicas in opposite
# directions, five dimensions, and what happens to an image whose tiles are judged one by one.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 10.q2"]

# %% tags=["exercise: 10.q3"]

# %% [markdown]
# ### A whole network on tiles
#
# `tile_model` turns a network into one for tiles: strips, or rows and columns of them. Kernels of any size, strides and
# dilation need other halos on both sides; corners come along when columns are exchanged first, and then rows with
# their ghosts. **Batch-norm** needs the mean over all tiles: with that of a tile, it would be another layer.

# %%
# %%px
from torch import nn

from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_model, tile_of

torch.manual_seed(0)
network = nn.Sequential(
    *[nn.Conv2d(1, 6, 5, stride=2, padding=2), nn.BatchNorm2d(6), nn.ReLU()],
    *[nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, padding=2, dilation=2)],
).double()
picture = torch.randn(2, 1, 45, 38, dtype=torch.float64)
network(picture).square().sum().backward()

# %%
# %%px
for shape in [(4, 1), (1, 4), (2, 2)]:
    tiles = make_tiles(comm, *shape)
    tiled_network = tile_model(tiles, network)
    tiled_network(tile_of(tiles, picture)).square().sum().backward()
    sum_over_tiles(tiles, [tiled_network])
    pairs = zip(tiled_network.parameters(), network.parameters(), strict=True)
    same = all(torch.allclose(ours.grad, theirs.grad) for ours, theirs in pairs)
    if rank == 0:
        print(f"{shape[0]} × {shape[1]} tiles, all gradients as those of the whole image: {same}")

# %% [markdown]
# What do tiles save? Not time alone: the memory kept for backward is distributed, too. And what is sent is little. A strip sends
# two rows, however many strips there are; a square tile sends less, the more tiles there are. For 2048² pixels and 16
# channels:

# %%
from course_lib.theory.tiles import halo_nbytes

for tiles in (4, 16, 64):
    side = 2048 // int(tiles**0.5)
    strips = halo_nbytes((2048 // tiles, 2048), 1, channels=16, shape="horizontal") / 1000
    squares = halo_nbytes((side, side), 1, channels=16) / 1000
    print(f"{tiles:3} tiles: a strip sends {strips:.0f} kB per layer, a square {squares:.0f} kB")

# %% [markdown]
# ### One halo for several layers
#
# Two convolutions in a row need two exchanges of one row, or *one* of two rows. The neighbours then both compute the rows
# at the cut: a little more work, half the messages. But outside the image, the first layer has made something of the
# zeros. They must be **masked** to zero again, as the second layer's padding.

# %% tags=["exercise: 10.2"]

# %% [markdown]
# The library's `FusedHalos` does it for a stack of layers. From the last layer to the first, the halo grows:
# h ← s·h + (k−1)/2, with the layer's stride s. For tiles of 256² pixels:

# %%
from course_lib.theory.tiles import Window, extra_pixels, fused_halo

for layers in (1, 2, 4, 8):
    stack = [Window(3, before=1, after=1)] * layers
    rows, extra = fused_halo(stack), extra_pixels(stack, (256, 256))
    print(f"layers: {layers}, rows of halo: {rows}, more to compute: {extra:.1%}")

# %% [markdown]
# ### GEMS: two replicas in opposite directions
#
# A pipeline with one batch keeps one rank busy at a time (lesson 08). **GEMS** puts a second replica of the model on the same
# ranks, in the opposite direction: its first stage stands where the other's last one is. When the first replica's backward has
# left a rank, the second goes forward there, in the memory that was freed. Take four stages, and a backward that lasts as
# long as two forwards. In the picture, 1′ is the second batch, on the second replica.

# %%
predict("What is the speed-up of GEMS, with two batches?", None)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.schedules import schedule_grids
from course_lib.theory.schedules import gems_basic, gems_mast, makespan, simulate

one_way, both_ways = (simulate(schedule, 1, 2) for schedule in (gems_basic(4, 2), gems_mast(4)))
schedule_grids({"one replica": one_way, "GEMS": both_ways})

# %%
speedup = makespan(one_way) / makespan(both_ways)
why = "Only a forward hides behind a backward."
outcome("What is the speed-up of GEMS, with two batches?", round(speedup, 3), word="replayed", because=why)

# %% [markdown]
# That is **replayed** from the schedule: 24 units against 21, or 1.143. Jain and others **published** 1.154 for this variant, MAST, on
# GPUs. For MASTER, with more batches before an update, they give 1.72. We cannot reproduce that: the speed-up of such a schedule is at
# most (f + b)/(b + f/p), however many batches; with b = 2f and four stages, that is 1.33. Something else
# must have helped there: the larger batch, which the freed memory allows.
#
# Now with real messages. The stages sleep in place of computing, so that four ranks need no four cores: time is
# **emulated**.

# %%
# %%px
from course_lib.parallel.gems import place_replicas, sum_replicas
from course_lib.parallel.pipeline import run_schedule, split_batch
from course_lib.theory.schedules import gems_basic, gems_mast
from course_lib.training.layers import Sleep
from course_lib.training.loop import Batch

stages = [Sleep(0.02, 0.04) for _ in range(4)]
halves = split_batch(Batch(torch.ones(2, 1), torch.zeros(2, dtype=torch.long), 2), 2)
replicas = place_replicas(comm, stages)
seconds = {}
for name, schedule in {"one replica": gems_basic(4, 2), "GEMS": gems_mast(4)}.items():
    comm.Barrier()
    start = MPI.Wtime()
    run_schedule(comm, schedule, replicas, lambda outputs, _: outputs.sum(), halves)
    seconds[name] = comm.allreduce(MPI.Wtime() - start, MPI.MAX)
sum_replicas(comm, replicas)  # ranks r and 3 − r have the same two stages

# %% tags=["nbval-ignore-output"]
seconds = cluster["seconds"][0]
print({name: f"{value:.3f} s" for name, value in seconds.items()})
print(f"speed-up, measured with emulated compute: {seconds['one replica'] / seconds['GEMS']:.2f}")

# %% [markdown]
# ### Five dimensions
#
# All ways to cut a training, at once, on 8 ranks: 2 **data** ranks; on each four ranks with two **replicas** in opposite
# directions, of a **pipeline** of two stages; the first stage on 2 **tiles**, the second on 2 **tensor** shards (lesson 09).
# This is **hybrid parallelism**, after Hy-Fi.

# %%
predict("Of 8 ranks in five dimensions, how many hold a part of the first stage?", None)

# %%
from course_lib.theory.hybrid import HybridShape, StageShape

shape = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
print("position", *(f"{position:22}" for position in range(4)))
for replica in range(2):
    held = [shape.coordinates(replica, position) for position in range(4)]
    print(f"replica {replica}", *(f"   stage {h.stage} tile {h.tile} shard {h.tensor}" for h in held))
holders = [p for p in range(4) if any(shape.coordinates(r, p).stage == 0 for r in range(2))]
count, why = shape.data * len(holders), "The second replica runs the other way."
outcome(
    "Of 8 ranks in five dimensions, how many hold a part of the first stage?",
    count,
    word="counted",
    because=why,
)

# %% [markdown]
# Gradients are summed over the tiles of a stage, over the two replicas, and over the data ranks; over tensor shards
# nothing is summed, as they are different weights. Does it equal one process? The 8 ranks are a job of their own, beside
# this cluster, and share your cores.

# %% tags=["nbval-ignore-output"]
from subprocess import TimeoutExpired

from mpi_classroom.launch import run_ranks

try:
    job = run_ranks(8, ["-m", "course.lessons.l10_spatial_and_hybrid.five_dimensions"], timeout=90)
    print(job.stdout or job.stderr)
except TimeoutExpired:
    print("not done after 90 s: this machine is too busy for 8 more ranks")

# %% [markdown]
# ### Judging tiles one by one
#
# Why not simply train on tiles as if they were images? In these, two marks are somewhere; the label says whether they are
# alike. A network judges each tile, and the image gets the mean of the judgements. Each rank trains one, with another
# size of tiles; the whole image is 32 pixels wide.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 200
from course_lib.training.distant_marks import accuracy_with_tiles

tile = {0: 32, 1: 16, 2: 8}.get(rank)
accuracy = accuracy_with_tiles(tile, images=768, epochs=16) if tile else None

# %% tags=["nbval-ignore-output"]
from course.lessons.l10_spatial_and_hybrid.figures import accuracy_by_tile

measured = {tile: value for tile, value in zip(cluster["tile"], cluster["accuracy"], strict=True) if tile}
accuracy_by_tile(measured, side=32)

# %% [markdown]
# A tile with one mark knows nothing of the other, and no mean of such judgements shows the answer. With halos, tiles are a matter
# of memory only: the network sees the whole image, and gives what one process would.

# %% [markdown]
# ### The reference machine
#
# `python -m benchmarks.spatial` times a stack of convolutions on an image of 2048² pixels: two ranks with a strip
# each, beside one rank. The ranks use the fast form of `tile_model` (`course_lib.fast.spatial_parallel`), which saves
# no padded copy of a tile. `ratio` above 1 means that tiles are better.

# %% tags=["nbval-ignore-output"]
import json

from course.paths import ROOT

results = ROOT / "benchmarks" / "results" / "spatial.json"
rows = json.loads(results.read_text()) if results.exists() else []
for row in rows:
    print(f"{row['case']}, {row['ranks']} ranks, beside {row['peer_name']}: ratio {row['ratio']:.2f}")
print("" if rows else "not measured yet")

# %% [markdown]
# ## On GPUs
#
# The same, with halos from GPU to GPU; there the exchange of small rows costs latency, and fusing pays. Hy-Fi reports
# 2.67 times the speed of pipelines, and 94.5 % efficiency on 2 048 GPUs: **published**, not measured here.

# %% [markdown]
# ## Pitfalls
#
# - A halo without backward: no error, right outputs, wrong gradients in all layers but the last.
# - Batch-norm with the statistics of a tile.
# - The mean over tiles: a learning rate that depends on the number of ranks.
# - Two replicas whose gradients are summed in another order on each side: both wait for ever.

# %% [markdown]
# ## References
#
# - N. Dryden and others, [Improving strong-scaling of CNN training by exploiting finer-grained
#   parallelism](https://arxiv.org/abs/1903.06681), 2019: spatial parallelism.
# - R. Hewett and T. Grady, [A linear algebraic approach to model parallelism in deep
#   learning](https://arxiv.org/abs/2006.03108), 2020: adjoints of exchanges.
# - A. Jain and others, *GEMS: GPU-enabled memory-aware model-parallelism system for distributed DNN training*, SC 2020.
# - A. Jain and others, *Hy-Fi: Hybrid five-dimensional parallel DNN training on high-performance GPU clusters*, ISC 2022.

# %% [markdown]
# ## Stretch
#
# `ghost_rows` waits for its rows before anything is computed. Which outputs do not need them? Compute those first, while the
# messages are on their way (`Isend`, `Irecv`), and the others afterwards. (`course_lib/fast/spatial_parallel.py` does.)

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
