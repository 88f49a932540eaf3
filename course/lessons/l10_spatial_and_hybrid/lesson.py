# ---
# title: Spatial and hybrid
# goal: Cut every image into strips, one per rank, and train on them.
# able:
#   - say which rows a strip needs from its neighbours
#   - send gradients back across a cut
# more:
#   - say how gradients add up in a hybrid
#   - exchange rows once for several layers
#   - see what a tile lacks if judged alone
# before: >-
#   {04}, {06}; a convolution in PyTorch
# minutes: {core: 20, more: 18}
# ranks: 4
# warm-up:
#   - ask: >-
#       All ranks send an array to the right and receive one from the left. Which call does both, without a deadlock?
#     answer: <code>Sendrecv</code>.
#   - ask: Each rank has a part of a batch. How do their gradients become the gradient of the batch?
#     answer: They are added up, if each loss was divided by the size of the global batch.
#   - ask: What does <code>MPI.PROC_NULL</code> send?
#     answer: Nothing. Messages to it and from it end at once, and the array that should receive stays as it was.
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Cut a page
#
# A scanned slide of tissue can have 100,000 × 100,000 pixels, too many to train on with one GPU. In **spatial parallelism**, each rank gets a
# part of *every* image, a **tile**. Our tiles are strips of rows, cut from pages of handwritten digits.

# %%
# %%px --save 10_halo.py
"""Remove noise from pages that are cut into strips, one per rank."""

import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")["train_images"]


def new_page(lines, number=0):  # (1, 1, rows, columns)
    """Lines of digits, from 0 (ink) to 1 (paper)."""
    chosen = digits[np.random.default_rng(number).integers(len(digits), size=(lines, lines))]
    return torch.tensor(1 - np.vstack([np.hstack(line) for line in chosen]) / 16)[None, None]


# %% [markdown]
# Our blur is a convolution: each pixel becomes the mean of the 5 × 5 pixels around it. Beyond an edge, *padding* puts zeros, which are black.
# Each rank blurs 20 rows:

# %%
# %%px
page = new_page(lines=10)  # 80 × 80 pixels
blur = torch.full((1, 1, 5, 5), 1 / 25, dtype=torch.float64)
mine = page.tensor_split(comm.size, dim=2)[comm.rank]  # this rank's rows
wanted = F.conv2d(page, blur, padding=2).tensor_split(comm.size, dim=2)[comm.rank]  # in one piece
blurred = F.conv2d(mine, blur, padding=2)
wrong = int(((blurred - wanted).abs() > 1e-9).any(dim=3).sum())  # rows with a pixel that differs

# %%
predict("Of 80 rows, how many come out wrong?", None)

# %%
from course.lessons.l10_spatial_and_hybrid.figures import draw

draw({"page": cluster["mine"], "in one piece": cluster["wanted"], "by four ranks": cluster["blurred"]})

# %% [markdown]
# Count them:

# %%
outcome("Of 80 rows, how many come out wrong?", sum(cluster["wrong"]), word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Two rows are wrong on each side of the three cuts. Their means contain padding.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Ask the neighbours
#
# Each rank needs two rows from each neighbour. A copy of a neighbour's row is a **ghost**. The ghosts of a tile are its **halo**.
#
# First everybody sends up and receives from below, then the other way. At the page's edge, nobody sends: the zeros stay, and are the padding.

# %% tags=["source: course_lib.comm.halo:swap"]
# %%px --save 10_halo.py

# %% tags=["source: course_lib.comm.halo:with_ghost_rows"]
# %%px --save 10_halo.py

# %% [markdown] tags=["subslide"]
# How many rows are wrong now?

# %%
# %%px
blurred = F.conv2d(with_ghost_rows(comm, mine, 2), blur, padding=(0, 2))  # pad left and right only
wrong = int(((blurred - wanted).abs() > 1e-9).any(dim=3).sum())

# %%
sum(cluster["wrong"])

# %% [markdown] tags=["slide"]
# ## 3 · And backward?
#
# PyTorch does not see what MPI sends. To autograd, ghosts are constants, so it would keep only the gradients of a rank's own rows. Let us try that:


# %%
# %%px
def return_ghost_rows(comm, gradient, width):
    return gradient[:, :, width:-width]


# %% [markdown] tags=["subslide"]
# PyTorch calls our backward through this class:


# %%
# %%px --save 10_halo.py
class GhostRows(torch.autograd.Function):
    """`with_ghost_rows` forward, `return_ghost_rows` backward."""

    @staticmethod
    def forward(ctx, comm, x, width):
        ctx.comm, ctx.width = comm, width  # backward needs them
        return with_ghost_rows(comm, x, width)

    @staticmethod
    def backward(ctx, gradient):
        return None, return_ghost_rows(ctx.comm, gradient, ctx.width), None  # one per argument of forward


def convolve(comm, x, kernel):  # 5 × 5, across the cuts
    return F.conv2d(GhostRows.apply(comm, x, 2), kernel, padding=(0, 2))


# %% [markdown] tags=["subslide"]
# Our loss is the sum of all blurred pixels of the page. Each pixel counts 1/25 in 25 means, so its gradient should be 1: white in the picture, except at
# the page's edge.
#
# **Vote:** beside the cuts, the gradients are (a) 1, (b) smaller, (c) larger.

# %%
# %%px
pixels = mine.clone().requires_grad_()
(gradients,) = torch.autograd.grad(convolve(comm, pixels, blur).sum(), pixels)

# %%
draw({"blur by four ranks": cluster["blurred"], "gradients of the pixels": cluster["gradients"]})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), and no error. Forward *copied* the rows at a cut, so two ranks use them. Their gradient is the *sum* over both uses.
#
# </details>

# %% tags=["exercise: 10.3", "subslide"]

# %% [markdown]
# Draw the gradients again. Are the seams gone?

# %%
# %%px
(gradients,) = torch.autograd.grad(convolve(comm, pixels, blur).sum(), pixels)

# %%
draw({"gradients of the pixels": cluster["gradients"]})

# %% [markdown] tags=["notes"]
# Nine minutes up to the exercise, five for it. The usual slips: rows from above are added to the last rows, or they replace the own gradients.

# %% [markdown] tags=["slide"]
# ## 4 · Train, and cut the batch as well
#
# We add noise to two pages. Two convolutions learn to predict it, and we subtract what they predict.
#
# Four ranks can cut each page into four tiles. Or they form two **replicas** (lesson 06), and each cuts one page into two tiles. This is
# **hybrid parallelism**.


# %%
# %%px --save 10_halo.py
def train(comm, tiles=comm.size, lines=12, pages=2, steps=40, dtype=torch.float64):
    """Train; return this rank's noisy and cleaned strips."""
    torch.manual_seed(2)  # the same pages, noise and kernels on every rank
    clean = torch.cat([new_page(lines, number) for number in range(pages)]).to(dtype)
    noisy = clean + 0.4 * torch.randn_like(clean)
    kernels = [nn.Conv2d(1, 8, 5, dtype=dtype).weight, nn.Conv2d(8, 1, 5, dtype=dtype).weight]
    optimizer = torch.optim.Adam(kernels, lr=0.01)
    replica, replicas = comm.rank // tiles, comm.size // tiles
    team = comm.Split(replica)  # halos travel in a team …
    x, wanted = (each[replica::replicas].tensor_split(tiles, dim=2)[team.rank] for each in (noisy, clean))
    for _ in range(steps):
        cleaned = x - convolve(team, convolve(team, x, kernels[0]).relu(), kernels[1])
        loss = (cleaned - wanted).square().sum() / clean.numel()  # divided by all pixels of all ranks
        optimizer.zero_grad()
        loss.backward()
        for kernel in kernels:
            comm.Allreduce(MPI.IN_PLACE, kernel.grad)  # … and gradients between all ranks
        optimizer.step()
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"tiles: {tiles}, replicas: {replicas}, last loss {loss:.6f}")
    return x, cleaned.detach()


# %%
# %%px --save 10_halo.py
if __name__ == "__main__":
    noisy, cleaned = train(comm, *(int(word) for word in sys.argv[1:] if word.isdigit()))

# %% [markdown]
# **Vote:** one rank trains, then two replicas of two tiles. Their last losses are (a) equal, (b) a few per cent apart, (c) far apart.

# %%
# !mpiexec -n 1 python code/10_halo.py
# !mpiexec -n 4 python code/10_halo.py 2

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a): loss and gradients are sums over all pixels. It does not matter which rank adds which pixels.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | strips | Strips get thinner. Their halos do not. |
# | links | Keep a replica's tiles inside one machine: halos travel in every layer. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - A tile needs its halo, the rows beyond the cut that its kernels read.
# - Forward copies pixels. Backward adds the copies' gradients at the owner.
# - Divide losses by *all* pixels, and add gradients over *all* ranks. Then tiles and replicas train like one process, up to rounding. (Batch norm
#   would not: it would use a tile's statistics.)

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A network has twenty 3 × 3 convolutions. Each tile has 64 × 64 pixels. Exchange halos (a) twenty times, or (b) once, twenty pixels wide?
#
# <details><summary>What to listen for</summary>In (b), neighbours both compute the pixels around each cut. This pays where latency decides: one wide exchange
# must then cost less than twenty thin ones.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Would you notice the first try?
#
# The first try of section 3 dropped the ghosts' gradients. **Vote:** trained with it, the last loss is (a) near 0.16, as for noisy pages,
# (b) a little different, (c) equal in every digit shown.


# %%
# %%px
def return_ghost_rows(comm, gradient, width):
    return gradient[:, :, width:-width]


_, careless = train(comm)  # `GhostRows` finds the function by its name; 10.3, run again, brings yours back

# %%
draw({"noisy": cluster["noisy"], "cleaned": cluster["cleaned"], "by the first try": cluster["careless"]})

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b): the loss is 0.3 % lower. That is chance: with other seeds, it is sometimes higher. No seam shows. To find the error, draw the
# gradients as in section 3, or compare with one process.
#
# </details>

# %% tags=["exercise: 10.q2"]

# %% [markdown]
# Two more questions: a convolution with a stride, then replicas that divide the loss differently.

# %% tags=["exercise: 10.q4"]

# %% tags=["exercise: 10.q3"]

# %% [markdown]
# ### Who trains on a large page?
#
# A page of 1024 × 1024 pixels takes 4 MiB in float32. Each rank may allocate 128 MiB. **Vote:** who can train on this page? (a) One rank can, since 128 MiB hold 32
# pages. (b) Two ranks can, one cannot. (c) Neither can, since every rank holds all weights. (The cell runs on Linux only.)

# %%
from course_lib.effects import runs_within  # a job whose ranks may allocate so many MiB

for ranks in (1, 2):
    small = "train(comm, steps=1, dtype=torch.float32)"  # first, unlimited: libraries take memory once
    large = "train(comm, lines=128, pages=1, steps=2, dtype=torch.float32)"
    trained = runs_within(128, ranks, "code/10_halo.py", large, first=small)
    print("ranks:", ranks, "trained" if trained else "out of memory")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b). The weights are only 400 numbers. **Activations** fill most of the memory: backward needs many maps, each as large as the page.
#
# With two tiles, each rank keeps half of every map, and a few ghosts. Two replicas would not help, since a replica without tiles takes a page in full.
#
# </details>

# %% [markdown]
# ### Must every layer ask its neighbours?
#
# Our network exchanges two rows before each of its two convolutions. It could exchange four rows once, since each convolution uses up two rows on each side. This is a
# **fused halo**. It has a trap. We look for the trap in a signal, which is one row of numbers.

# %% tags=["exercise: 10.2"]

# %% [markdown]
# First we count what rank 0 sends. It has one of 2 × 2 tiles of an image. It runs four 3 × 3 convolutions, layer by layer, then fused.
#
# Then we count what fusing costs. Take a tile of 64 × 64 pixels with neighbours on all sides. With an exchange per layer, twenty layers compute
# 20 · 64 · 64 pixels. A fused tile also computes pixels of its neighbours, near the cuts. **Predict:** how many times as many pixels does it compute?
#
# In the cell, `tile_model` exchanges before each convolution, and `FusedHalos` once. `Tiles` holds the communicators of a rank's column and row of tiles.
# `counted` returns a communicator that counts what it sends.

# %%
predict("Twenty fused layers compute how many times as many pixels?", None)

# %%
# %%px
from course_lib.comm.counting import counted
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, tile_model, tile_of

torch.manual_seed(0)
stack = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())])
stack, picture = stack.double(), torch.randn(1, 8, 64, 64, dtype=torch.float64)
made, lines = make_tiles(comm, 2, 2), []
for name, cut in (("layer by layer", tile_model), ("fused", FusedHalos)):
    tiles = Tiles(comm, counted(made.height), counted(made.width))
    close = torch.allclose(cut(tiles, stack)(tile_of(tiles, picture)), tile_of(tiles, stack(picture)))
    sent = tiles.height.sent + tiles.width.sent
    lines.append(f"{name}: messages {sent.messages}, bytes {sent.nbytes}, as in one piece: {close}")

# %%
print(*cluster[0]["lines"], sep="\n")
for layers in (1, 2, 4, 8, 20):
    computed = sum((64 + 2 * later) ** 2 for later in range(layers))  # by layers with so many later ones
    times = computed / (layers * 64**2)
    print(f"fused layers: {layers:2}, pixels computed: {times:.2f} times as many")
outcome("Twenty fused layers compute how many times as many pixels?", times, word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Fused, rank 0 sends a quarter of the messages, and only 9 % more bytes. One exchange, four pixels wide, replaces four exchanges.
#
# But the extra work grows faster than the number of layers: 10 % for four layers, 71 % for twenty. Of the twenty, the first computes 102 × 102 pixels for a tile of
# 64 × 64, since the 19 layers after it use up one pixel each on every side.
#
# </details>
#
# ### Why not judge the tiles one by one?
#
# We could train on tiles as if they were images, without messages. The judgement of an image is then the mean of its tiles' judgements. To try
# this, each rank trains a network of its own. Our images now have 32 × 32 pixels and two marks each. The label says whether the two marks are
# alike. Guessing is right for 50 %.
#
# - Rank 0 judges whole images.
# - Rank 1 judges each tile of 16 × 16 pixels, rank 2 each tile of 8 × 8.
# - Rank 3 is a *control*. It has tiles of 16 × 16, also without halos. But it adds up the features (what the convolutions compute) of all tiles, then makes *one* judgement per image.
#
# **Predict** the accuracy of rank 3.

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
percent = 100 * accuracy_with_tiles(tile, images=768, epochs=40, together=together)
row = Row({"judges": sees}, percent, percent, percent, "%")

# %% tags=["nbval-ignore-output"]
show(cluster["row"], x="judges", y="right")

# %% [markdown]
# Compare your guess:

# %% tags=["nbval-ignore-output"]
outcome("Tiles of 16, no halos, one judgement: how many % are right?", cluster["percent"][3])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# 100 %, although rank 3 has no halos either! A tile that is judged alone usually lacks one of the two marks. A judgement needs the features of all tiles. So ranks 1 and 2
# did not fail for want of halos. Halos serve a different purpose: with halos, the tiles compute the network of one process.
#
# </details>
#
# ### What else can be cut?
#
# Each rank can take one of a network's parallel branches: **sub-graph parallelism**. In a pipeline, idle ranks can run a second replica in the opposite direction: **GEMS**. We combine
# up to five ways to cut in lesson 17. [A page](../docs/ways-to-split.md) shows all ways to cut as a tree, with the published figures.

# %% [markdown]
# ## References
#
# - N. Dryden and others, [Improving strong-scaling of CNN training by exploiting finer-grained
#   parallelism](https://arxiv.org/abs/1903.06681), 2019: spatial parallelism.
# - R. Hewett and T. Grady, [A linear algebraic approach to model parallelism in deep
#   learning](https://arxiv.org/abs/2006.03108), 2020: backward as the transpose of an exchange.
# - A. Jain and others, *GEMS: GPU-enabled memory-aware model-parallelism system for distributed DNN training*, SC 2020.
# - A. Jain and others, *Hy-Fi: Hybrid five-dimensional parallel DNN training on high-performance GPU clusters*, ISC 2022: fused halos.
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
