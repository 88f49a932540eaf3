# ---
# title: Spatial and hybrid
# goal: Train on images whose feature maps no rank can hold.
# able:
#   - say which rows a strip needs from its neighbours
#   - send gradients back across a cut
# more:
#   - exchange rows once for several layers
#   - see what a tile lacks if judged alone
# before: >-
#   {04}, {06}; a convolution in PyTorch
# minutes: {core: 20, more: 14}
# ranks: 4
# warm-up:
#   - ask: >-
#       All ranks send an array to the right and receive one from the left. Which call does both, without a deadlock?
#     answer: <code>Sendrecv</code>. MPI can receive while it sends, so the ranks cannot all wait for one another in a circle.
#   - ask: Each rank has a part of a batch. How do their gradients become the gradient of the batch?
#     answer: They are added up, if each rank divided its summed loss by the size of the global batch.
#   - ask: Four ranks call <code>comm.Split(comm.rank // 2)</code>. Which communicator does rank 3 get?
#     answer: The one of ranks 2 and 3, which both passed 1. In it, its rank is 1.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Cut a page
#
# A slide of tissue can have 100,000 × 100,000 pixels. Eight feature maps take 320 GB in float32.
#
# In **spatial parallelism**, each rank keeps one part of an image, its **tile**, here a strip:
#
# ```
# rank 0   rows  0 to 19   ┌──────────────┐
# rank 1   rows 20 to 39   ├──────────────┤   one page of handwritten digits,
# rank 2   rows 40 to 59   ├──────────────┤   80 × 80 pixels
# rank 3   rows 60 to 79   ├──────────────┤
#                          └──────────────┘
# ```

# %%
# %%px --save 10_halo.py
"""Denoise pages cut into strips."""

import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

torch.set_num_threads(1)

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")["train_images"]


def new_page(lines, number=0):  # (1, 1, 8 * lines, 8 * lines), from 0 (ink) to 1 (paper)
    chosen = digits[np.random.default_rng(number).integers(len(digits), size=(lines, lines))]
    return torch.tensor(1 - np.vstack([np.hstack(line) for line in chosen]) / 16)[None, None]


# %% [markdown]
# Our first convolution is a blur: each pixel becomes the mean of the 5 × 5 pixels around it. *Padding* is zero, drawn black.
#
# Each rank blurs its rows alone. How many rows differ from a blur of the uncut page?

# %%
# %%px
page = new_page(lines=10)  # the same on every rank
blur = torch.full((1, 1, 5, 5), 1 / 25, dtype=torch.float64)  # float64, like `page`
mine = page.tensor_split(comm.size, dim=2)[comm.rank].requires_grad_()  # this rank's rows
wanted = torch.conv2d(page, blur, padding=2).tensor_split(comm.size, dim=2)[comm.rank]
blurred = torch.conv2d(mine, blur, padding=2)
wrong = int(((blurred - wanted).abs() > 1e-9).any(dim=3).sum())  # rows that differ

# %%
predict("Of 80 rows, how many come out wrong?", None)

# %%
from course.lessons.l10_spatial_and_hybrid.figures import draw

outcome("Of 80 rows, how many come out wrong?", sum(cluster["wrong"]), word="counted")
draw({"page": cluster["mine"], "blur, uncut": cluster["wanted"], "blur by four ranks": cluster["blurred"]})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# At each cut, two rows are wrong on either side:
#
# ```
# rank 0   … 15 16 17 18 19 │  0  0          row 18 needs rows 16 to 20, but padding stands in for row 20
#                           cut              row 19 needs rows 17 to 21, but padding stands in for rows 20 and 21
# ```
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Ask the neighbours
#
# A pixel copied from a neighbour is a **ghost**, and a tile's ghosts are its **halo**:
#
# ```
#                                              swap(comm, up, down) makes two exchanges:
#
# rank 0   [ … 16 17 18 19 ] 20 21             1. up:    rank 1 sends rows 20 and 21
#                    ↓  ↓    ↑  ↑
# rank 1             18 19 [ 20 21 22 23 … ]   2. down:  rank 0 sends rows 18 and 19
#
# rank 3   has no rank below. Its partner is MPI.PROC_NULL: nothing arrives, so ghosts stay zero, like padding.
# ```

# %% tags=["source: course_lib.comm.halo:swap"]
# %%px --save 10_halo.py

# %% tags=["source: course_lib.comm.halo:with_ghost_rows"]
# %%px --save 10_halo.py

# %% [markdown] tags=["subslide"]
# Blur again, with ghosts:

# %%
# %%px
blurred = torch.conv2d(with_ghost_rows(comm, mine, 2), blur, padding=(0, 2))  # pad left and right only

# %%
draw({"blur, uncut": cluster["wanted"], "blur by four ranks": cluster["blurred"]})

# %% [markdown] tags=["slide"]
# ## 3 · And backward?
#
# Our loss is the sum of all blurred pixels:
#
# ```
# 25 outputs read each pixel, with weight 1/25           →   its gradient is 25 × 1/25 = 1, drawn white
# near the page's edge, fewer outputs read it            →   smaller, drawn grey
# ```
#
# **Vote:** beside the cuts, are the gradients (a) also 1, (b) smaller, (c) larger?

# %%
# %%px
(gradients,) = torch.autograd.grad(blurred.sum(), mine)

# %%
draw({"blur by four ranks": cluster["blurred"], "gradients of the pixels": cluster["gradients"]})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), and no error. A pixel's gradient is the *sum* of both ranks' parts:
#
# ```
# away from the sides  read on rank 0            read on rank 1, as a ghost
# a pixel of row 19    by 15 outputs: 0.6        by 10 outputs: 0.4
# a pixel of row 18    by 20 outputs: 0.8        by  5 outputs: 0.2
#
#                      kept, and drawn grey      missing: autograd cannot follow a message.
#                                                Received ghosts are constants to it.
# ```
#
# </details>
#
# A `torch.autograd.Function` has its own `backward`. Ours calls `return_ghost_rows`, your exercise:


# %%
# %%px --save 10_halo.py
class GhostRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, x, width):  # `apply` calls this on the way to the loss
        ctx.comm, ctx.width = comm, width  # ctx keeps them for backward
        return with_ghost_rows(comm, x, width)

    @staticmethod
    def backward(ctx, gradient):  # autograd, on the way back; `gradient`: d loss / d output of forward
        return None, return_ghost_rows(ctx.comm, gradient, ctx.width), None  # one per input


def convolve(comm, x, kernel):  # 5 × 5, across the cuts
    return torch.conv2d(GhostRows.apply(comm, x, 2), kernel, padding=(0, 2))


# %% tags=["exercise: 10.3", "subslide"]

# %% [markdown]
# Are the seams gone?

# %%
# %%px
(gradients,) = torch.autograd.grad(convolve(comm, mine, blur).sum(), mine)

# %%
draw({"blur by four ranks": cluster["blurred"], "gradients of the pixels": cluster["gradients"]})

# %% [markdown] tags=["notes"]
# Nine minutes up to the exercise, five for it. The usual slips: rows from above are added to the last rows, or they replace this rank's own gradients.

# %% [markdown] tags=["slide"]
# ## 4 · Train, and cut the batch as well
#
# Two convolutions learn to remove noise from two pages. Four ranks can cut both pages, or cut the batch as well (**hybrid parallelism**):
#
# ```
#           four tiles per page                 two replicas (lesson 06), each of two tiles
#
#           page 0   page 1                     page 0   page 1
#           rank 0   rank 0                     rank 0   rank 2
#           rank 1   rank 1                     rank 1   rank 3
#           rank 2   rank 2
#           rank 3   rank 3
#
# halos     among all 4 ranks                   in each replica: ranks 0 and 1, ranks 2 and 3
# ```


# %%
# %%px --save 10_halo.py
def train(comm, tiles=comm.size, lines=12, pages=2, steps=40, dtype=torch.float64):
    torch.manual_seed(2)  # the same pages, noise and kernels on every rank
    clean = torch.cat([new_page(lines, number) for number in range(pages)]).to(dtype)
    noisy = clean + 0.4 * torch.randn_like(clean)  # in full; on a cluster, each rank reads its tile
    kernels = [torch.nn.Conv2d(*shape, 5, dtype=dtype).weight for shape in ((1, 8), (8, 1))]
    optimizer = torch.optim.Adam(kernels, lr=0.01)
    replica, replicas = comm.rank // tiles, comm.size // tiles  # tiles must divide comm.size
    team = comm.Split(replica)  # this replica's ranks; below: its pages, this rank's rows
    x, wanted = (each[replica::replicas].tensor_split(tiles, dim=2)[team.rank] for each in (noisy, clean))
    for _ in range(steps):
        cleaned = x - convolve(team, convolve(team, x, kernels[0]).relu(), kernels[1])
        loss = (cleaned - wanted).square().sum() / clean.numel()  # all pixels: so gradients add up
        optimizer.zero_grad()
        loss.backward()
        for kernel in kernels:
            comm.Allreduce(MPI.IN_PLACE, kernel.grad)  # over tiles and replicas
        optimizer.step()
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"tiles: {tiles}, replicas: {replicas}, last loss {loss:.6f}")
    return wanted, x, cleaned.detach()  # this rank's strips


# %%
# %%px --save 10_halo.py
if __name__ == "__main__":
    clean, noisy, cleaned = train(comm, *(int(n) for n in sys.argv if n.isdigit()))  # an argument: tiles

# %%
draw({"noisy": cluster["noisy"], "cleaned": cluster["cleaned"]})

# %% [markdown]
# Would the loss show a wrong gradient? **Vote:** if backward drops the ghosts' gradients, the last loss is (a) higher, (b) the same, (c) lower.

# %%
# %%px
right, return_ghost_rows = return_ghost_rows, lambda comm, gradient, width: gradient[:, :, width:-width]
train(comm)
return_ghost_rows = right

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c), by 0.3 %. (After 120 steps, it would be 0.7 % *higher*.) So a low loss does not prove right gradients. Compare with one process. (Adam hides constant factors.)
#
# </details>
#
# Which loss will one rank print? And two replicas?

# %%
# !mpiexec -n 1 python code/10_halo.py
# !mpiexec -n 4 python code/10_halo.py 2

# %% [markdown] tags=["subslide"]
# A page of 1024 × 1024 pixels takes 4 MiB in float32. `runs_within` lets each rank allocate 128 MiB more (Linux only). **Vote:** who can train on this page? (a) One rank suffices. (b) It takes two. (c) Two fail, too: each holds all weights.

# %%
from course_lib.effects import runs_within

for ranks in 1, 2:
    large = "train(comm, lines=128, pages=1, steps=2, dtype=torch.float32)"
    print(ranks, "can train:", runs_within(128, ranks, "code/10_halo.py", large, first="train(comm)"))

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). There are only 400 weights. But eight maps take 32 MiB, and training keeps several such arrays. Each of two ranks holds half.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# ```
# 64 GPUs share a square image, with one rank per GPU:
#
# 64 strips:     an inner strip sends 2 borders, each as wide as the image      ────────  ────────
# 8 × 8 tiles:   an inner tile sends 4 borders, each an eighth as wide          ─ ─ ─ ─
#
# ```
#
# Inner tiles send about a quarter of the pixels, but in more messages. They pay if bandwidth limits, not latency. After pooling, a strip must still have as many rows as a halo. Compute inner pixels while halos travel. On GPUs, `swap` needs CUDA-aware MPI, and `torch.cuda.synchronize()` before it sends.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Forward copies pixels across a cut, so backward adds each copy's gradient to the original's.
# - Divide a loss per pixel by *all* pixels, and add gradients over *all* ranks. Then tiles and replicas train like one process, up to rounding. (Batch norm
#   needs statistics of all ranks, dropout one process's masks. Gradients equal on all tiles, such as a classifier's, are added over replicas only.)

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A network has twenty 3 × 3 convolutions, and a tile has 64 × 64 pixels. Do you exchange halos (a) before each, or (b) once, twenty pixels wide?
#
# <details><summary>What to listen for</summary>In (b), several ranks compute and store
# the pixels near a cut. That pays if it costs less than 19 exchanges, and memory suffices.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Must every layer ask its neighbours?
#
# First, which rows does it ask for if the stride is 2?

# %% tags=["exercise: 10.q4"]

# %% [markdown]
# How often must ranks exchange rows? Each of our two convolutions needs two rows from each neighbour. A rank that received *four* could compute both without a second exchange. One wide exchange for several layers is a **fused halo**. Try it on a signal, which is one row of numbers:

# %% tags=["exercise: 10.2"]

# %% [markdown]
# What does it save? Four ranks share an image as 2 × 2 tiles and run four 3 × 3 convolutions. `tile_model` exchanges before each, and `FusedHalos` only once. We count what rank 0 sends.

# %%
# %%px
from course_lib.comm.counting import counted
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, tile_model, tile_of

layers = [layer for _ in range(4) for layer in (torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Tanh())]
stack, picture = torch.nn.Sequential(*layers), torch.randn(1, 8, 64, 64)
made = make_tiles(comm, 2, 2)
for name, cut in (("layer by layer", tile_model), ("fused", FusedHalos)):
    tiles = Tiles(comm, counted(made.height), counted(made.width))  # each counts what it sends
    cut(tiles, stack)(tile_of(tiles, picture))
    sent = tiles.height.sent + tiles.width.sent
    if comm.rank == 0:
        print(f"{name}: messages {sent.messages}, bytes {sent.nbytes}")

# %% [markdown]
# Fused, rank 0 sends a quarter of the messages. As all layers have eight channels, the bytes grow by 9 %: wider halos have larger corners.
#
# And what does it cost? Take a tile of 64 × 64 pixels with neighbours on all sides. Unfused, each layer computes just these pixels. Fused, all but the last compute more. **Predict:** how many times as many pixels do twenty fused layers compute?

# %%
predict("Twenty fused layers compute how many times as many pixels?", None)

# %%
for layers in (1, 4, 20):
    computed = sum((64 + 2 * later) ** 2 for later in range(layers))  # `later` layers follow
    times = computed / (layers * 64**2)
    print(f"fused layers: {layers:2}, pixels computed: {times:.2f} times as many")
outcome("Twenty fused layers compute how many times as many pixels?", times, word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# After the first of twenty layers come 19 more, and each uses up one pixel on every side. So the first computes 102 × 102 pixels for a tile of 64 × 64. Forward keeps these pixels, too, for backward.
#
# **Remember: fuse few layers at a time, and only where ranks wait for latency. Batch norm ends a fused block.**
#
# </details>
#
# ### Must tiles talk at all?
#
# Could we treat each tile as an image, and take the mean of the tiles' scores? We choose a task on which that should be hard. An image of 32 × 32 pixels has two marks, each bright or dark. The label says whether they match. Guessing is right half of the time.
#
# Each rank trains a network of its own:
#
# - Rank 0 judges whole images.
# - Rank 1 judges each tile of 16 × 16 pixels alone, and rank 2 each tile of 8 × 8. Both take the mean of the scores.
# - Rank 3 is a *control*: it has rank 1's tiles, without halos. But it adds up the features of all tiles, and makes *one* judgement per image.
#
# If rank 1 fails because halos are missing, rank 3 must fail, too. **Predict** the accuracy of rank 3.

# %%
predict("Tiles of 16, no halos, one judgement: how many % are right?", None)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 300
from course.lessons.l10_spatial_and_hybrid.distant_marks import accuracy_with_tiles
from course_lib.rows import Row

sees, tile, together = (
    ("whole image", 32, False),
    ("tiles of 16, a judgement each", 16, False),
    ("tiles of 8, a judgement each", 8, False),
    ("tiles of 16, one judgement", 16, True),
)[comm.rank]
percent = 100 * accuracy_with_tiles(tile, images=768, epochs=40, rate=0.003, together=together)
row = Row({"judges": sees}, percent, percent, percent, "%")

# %% tags=["nbval-ignore-output"]
outcome("Tiles of 16, no halos, one judgement: how many % are right?", cluster["percent"][3])
show(cluster["row"], x="judges", y="right")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Rank 3 is right on all unseen images, without halos. So missing halos do not hold rank 1 back. (Rank 2 only guesses.) In most images, no tile has both marks. A mean of scores that each depend on one mark cannot be right for all four pairs of signs (++, +−, −+, −−).
#
# **Remember: halos let tiles compute what the uncut image computes. If the label depends on several tiles together, combine their features, not their scores (across ranks: an all-reduce, here of eight numbers per image).**
#
# </details>
#
# Not only images can be cut. If a network has parallel branches, each rank can take one: **sub-graph parallelism**. Lesson 17 combines up to five ways to cut, and [a page](../docs/ways-to-split.md) shows all of them as a tree.

# %% [markdown]
# ## References
#
# - N. Dryden and others, [Improving strong-scaling of CNN training by exploiting finer-grained
#   parallelism](https://arxiv.org/abs/1903.06681), 2019: spatial parallelism.
# - R. Hewett and T. Grady, [A linear algebraic approach to model parallelism in deep
#   learning](https://arxiv.org/abs/2006.03108), 2020: backward as the transpose of an exchange.
# - A. Jain and others, *Hy-Fi: Hybrid five-dimensional parallel DNN training on high-performance GPU clusters*, ISC 2022: fused halos.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
