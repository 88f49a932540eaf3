# ---
# title: Tensor parallelism
# goal: Cut the matrices of a layer into pieces, one per rank, and find out what that costs.
# able:
#   - cut a pair of layers over any number of ranks
#   - find where the ranks have to add, forward and backward
#   - calculate when tensor parallelism sends fewer bytes than data parallelism
# more:
#   - cut attention, by hand or with DTensor, and say what cutting the sequence saves
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 20}
# ranks: 4
# warm-up:
#   - ask: Four ranks all-reduce 100 MB in a ring. How much does each rank send?
#     answer: >-
#       150 MB: 2(n−1)/n times 100 MB. The reduce-scatter sends half of it, the all-gather the other half.
#   - ask: In data parallelism, what does every rank hold completely, and what is divided among the ranks?
#     answer: Every rank holds the complete network. The batch is divided.
#   - ask: For `y = x @ down`, what is the gradient of `x`, if `d_y` is that of `y`?
#     answer: <code>d_y @ down.T</code>. (And that of <code>down</code> is <code>x.T @ d_y</code>.)
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Cut a pair of layers
#
# In a pair of layers, the matrix `up` makes many *hidden* numbers from `x`, ReLU sets negative ones to 0, and `down` makes `y` from them. In
# **tensor parallelism**, each rank keeps some *columns* of `up` and the matching *rows* of `down`, and all work on the same images.
#
# ```
#             rank 0: up[:, 0:51]    → hidden 0 to 50    → down[0:51]
#      x   →  rank 1: up[:, 51:102]  → hidden 51 to 101  → down[51:102]  →  +  →  y
#             …
# ```
#
# Rank 0's 51 of 202 hidden numbers are complete. Its product with rows of `down` is only a *part of a sum*.

# %%
# %%px --save 09_tensor.py
"""Tensor parallelism by hand: trains on data/digits.npz a network whose middle is cut over the ranks."""

from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (digits[f"{part}_images"].reshape(-1, 64) / 16 for part in ("train", "test"))
targets = np.eye(10)[digits["train_labels"]]  # 1 for the right digit, 0 for the others

# %% tags=["source: course_lib.parallel.tensor_parallel:mlp_forward"]
# %%px --save 09_tensor.py

# %% [markdown] tags=["subslide"]
# Backward starts with `d_y`, the gradient of `y`. Each rank needs gradients only for its own columns and rows:


# %%
# %%px
def mlp_backward(comm, x, hidden, up, down, d_y):
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    return d_x, d_up, d_down


# %% [markdown] tags=["subslide"]
# The network is a matrix `first`, complete on every rank, then the pair, with ten outputs.


# %%
# %%px --save 09_tensor.py
def network(comm, weights, pixels):
    """Forward: what goes into the pair, its hidden numbers, and ten outputs per image."""
    x = np.maximum(pixels @ weights[0], 0)
    return x, *mlp_forward(comm, x, *weights[1:])


def gradients(comm, weights, pixels, targets):
    """Backward: the gradients of half the mean squared error."""
    x, hidden, y = network(comm, weights, pixels)
    d_x, *own = mlp_backward(comm, x, hidden, *weights[1:], (y - targets) / len(pixels))
    return pixels.T @ (d_x * (x > 0)), *own


# %% [markdown]
# All ranks draw the same matrices and the same batches, and each keeps its columns and rows.


# %%
# %%px --save 09_tensor.py
def new_weights(comm):
    """The matrix `first`, this rank's columns of `up`, and its rows of `down`."""
    draw, mine = np.random.default_rng(0), np.array_split(np.arange(202), comm.size)[comm.rank]
    first, up, down = (draw.normal(0, n**-0.5, (n, m)) for n, m in ((64, 54), (54, 202), (202, 10)))
    return first, up[:, mine], down[mine]


def train(comm):
    """Train on 400 batches of 100 images; return this rank's weights."""
    draw, weights = np.random.default_rng(1), new_weights(comm)
    for _ in range(400):
        batch = draw.integers(len(images), size=100)
        for weight, gradient in zip(weights, gradients(comm, weights, images[batch], targets[batch])):
            weight -= 0.1 * gradient
    return weights


# %% [markdown]
# At the end we count the images read correctly, and collect the pieces, as for saving the model.


# %%
# %%px --save 09_tensor.py
def right(comm, weights):
    """How many new images the network reads correctly."""
    return np.count_nonzero(network(comm, weights, new_images)[-1].argmax(1) == digits["test_labels"])


def collected(comm, weights):
    """The complete matrices, as one saves them."""
    return weights[0], np.hstack(comm.allgather(weights[1])), np.vstack(comm.allgather(weights[2]))


# %% [markdown] tags=["subslide"]
# One process trains, then four ranks. Each team reads 297 new images; then *one* process does, with the collected matrices. **Vote:** four ranks get (a) about as
# many right as one, both times; (b) far fewer, both times; (c) about as many on four ranks, far fewer in one process.

# %%
# %%px
for team in MPI.COMM_SELF, comm:
    weights = train(team)
    there, alone = right(team, weights), right(MPI.COMM_SELF, collected(team, weights))
    if comm.rank == 0:
        print(f"trained on {team.size}: {there} right there, {alone} right in one process")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (c). Nothing looked wrong on four ranks, but the collected model is much worse. It has rank 0's `first`; the other ranks' copies
# drifted away from it. Why, if all began equal?
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What is missing?

# %% tags=["exercise: 09.4"]

# %% [markdown] tags=["notes"]
# Nine minutes up to here. The usual slip is to add `d_up` or `d_hidden` as well.

# %% [markdown] tags=["subslide"]
# Three ranks have 68, 67 and 67 hidden numbers. **Vote:** they get (a) the weights of one process, up to rounding, (b) slightly
# different ones, (c) very different ones, as good.

# %%
# %%px --save 09_tensor.py
weights = collected(comm, train(comm))
if comm.rank == 0:
    count, one = right(MPI.COMM_SELF, weights), weights[0][20, 0]
    print(f"ranks: {comm.size}, a weight of `first`: {one:.9f}, {count} of 297 new images right")

# %%
# !mpiexec -n 1 python code/09_tensor.py
# !mpiexec -n 3 python code/09_tensor.py

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# (a): all nine decimals agree. Every column of `up` adds to `d_x`, and a rank knows only its own columns: `d_x` is a part of a sum, like `y`.
# `d_up` and `d_down` belong to this rank's piece and are complete. So a pair costs *two all-reduces*, one forward, one backward.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What does it cost?
#
# Data parallelism (lesson 06) adds up the gradients of all matrices: 64 · 54 + 54 · 202 + 202 · 10 numbers. How many does tensor parallelism add
# up per step of B images? Set both equal, and put your formula for B in place of `None`.

# %%
predict("At which batch do both send equally many bytes?", None)

# %% [markdown]
# Count, while the batch doubles.


# %%
# %%px
from course_lib.rows import count


class Counting(MPI.Intracomm):
    """A communicator that counts the bytes of its all-reduces."""

    def Allreduce(self, out, array):
        sums.append(array.nbytes)
        super().Allreduce(out, array)


rows = []
for batch in 32, 64, 128, 256, 512, 1024:
    sums = []
    gradients(Counting(comm), new_weights(comm), images[:batch], targets[:batch])
    tensor, sums, mine = sum(sums), [], slice(comm.rank, batch, comm.size)  # mine: in data parallelism
    for gradient in gradients(MPI.COMM_SELF, new_weights(MPI.COMM_SELF), images[mine], targets[mine]):
        Counting(comm).Allreduce(MPI.IN_PLACE, gradient)
    ways = {"tensor": tensor, "data": sum(sums)}
    rows += [count(ways[way], unit="bytes", batch=batch, parallelism=way) for way in ways]
met = [one["batch"] for one, other in zip(rows[::2], rows[1::2]) if one.value == other.value]

# %% tags=["nbval-ignore-output"]
show(cluster[0]["rows"], x="batch", y="all-reduced per step", by="parallelism")

# %% [markdown]
# Were you right?

# %%
outcome("At which batch do both send equally many bytes?", cluster["met"][0][0], word="they met at")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# Tensor parallelism adds up `y` and `d_x`, B · (10 + 54) numbers: twice the batch, twice the bytes. Data parallelism adds up 16,384 at any batch;
# 16,384 / 64 = 256. For the pair alone, they meet where B is the number of *hidden numbers*: B · (54 + 10) = 202 · (54 + 10).
#
# </details>

# %% [markdown] tags=["slide"]
# ## 4 · Does it pay?
#
# Two ranks, a core each, against one, for a pair's forward and backward. **Vote**, at a width of 32, and at 1,024: slower, a bit faster, nearly twice as fast?


# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2
from course_lib.measure import timed

pair = comm.Create_group(comm.group.Incl([0, 1]))


def once(comm, width):
    x, up = np.ones((256, width)), np.ones((width, 4 * width // comm.size))
    mlp_backward(comm, x, mlp_forward(comm, x, up, up.T)[0], up, up.T, x)


for width in 32, 1024:
    one, two = (1000 * timed(team, lambda: once(team, width)) for team in (MPI.COMM_SELF, pair))
    if comm.rank == 0:
        print(f"width {width}: one rank {one:.1f} ms, two ranks {two:.1f} ms")

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# Products grow with the square of the width, sums only with the width: wide pairs gain most, narrow ones may lose. The next layer waits for `y`: nothing is left
# to compute meanwhile.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | batch | in a language model, B counts *tokens* (pieces of words), not texts |
# | ring | multiplies both by 2(n−1)/n: in equal precision, the crossing stays |
# | overlap | gradients of weights travel during backward (lesson 06); the sum of `y` is hardest to hide |
# | links | so tensor parallelism usually stays inside a machine: two to eight GPUs |
# | dropout | each rank's mask differs on hidden numbers; on `y` all are equal |

# %% tags=["exercise: 09.q4", "subslide"]

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Columns, then rows: one all-reduce forward (`y`) and one backward (`d_x`).
# - Ask of each array: complete, a piece, or a part of a sum? A sum forgotten in backward raises no error.
# - Tensor parallelism sends `y` and `d_x`, which grow with the batch; data parallelism sends gradients of weights.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model just fits on a machine with eight GPUs, cut eight ways. You get a second machine, over an ordinary
# network. (a) Cut sixteen ways. (b) Cut eight ways on each machine; each takes half the batch. Which?
#
# <details><summary>What to listen for</summary>(b), unless the batch cannot be halved. In (a), every pair sends its sums over the
# slow network while all GPUs wait. In (b), the network carries gradients of weights, once per step, during backward. Two pipeline stages
# are also good.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# First, the two cuts in somebody else's program.

# %% tags=["exercise: 09.2"]

# %% [markdown]
# ### Does attention cut as well?
#
# In PyTorch, autograd derives the backward pass. So both sums become functions with a backward of their own: Megatron-LM, where these cuts come from, calls them **f** and
# **g**. f copies `x` forward and adds up gradients backward; g adds up forward and copies backward.

# %% tags=["source: course_lib.comm.regions:_CopyTo"]
# %%px

# %% tags=["source: course_lib.comm.regions:_ReduceFrom"]
# %%px

# %% [markdown]
# A **column-parallel** layer begins with f, a **row-parallel** one ends with g. (PyTorch stores matrices transposed: columns of `up` are rows of `up.weight`.)

# %% tags=["source: course_lib.parallel.tensor_parallel:ColumnLinear"]
# %%px

# %% tags=["source: course_lib.parallel.tensor_parallel:RowLinear"]
# %%px

# %% [markdown]
# Most language models are **Transformers**: each block is attention, which mixes the positions of a text, then a pair as in the core, with **GeLU**, a smooth ReLU. In attention, several *heads*
# work side by side, and none needs another. So each rank gets complete heads: the matrices that make a head's inputs (query, key and value) are cut by columns, the projection after them by
# rows. **Predict** the all-reduces of a block, forward and backward together.

# %%
predict("All-reduces in one block, forward and backward together?", None)

# %%
# %%px
import torch

from course_lib.parallel.tensor_parallel import ParallelBlock
from course_lib.training.transformer import build_transformer

model = build_transformer(vocabulary=37, length=12, width=48, heads=6, layers=2, seed=0).double()
block = ParallelBlock(Counting(comm), model.blocks[0], sequence=False)
heads, sums = len(block.attention.qkv.weight) // (3 * block.attention.head_width), []
x = torch.randn(2, 12, 48, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
block(x).square().sum().backward()
calls = len(sums)

# %%
print("heads per rank:", cluster["heads"])
outcome("All-reduces in one block, forward and backward together?", cluster["calls"][0], word="counted")

# %% [markdown]
# Attention is a pair too, and each pair has one all-reduce per direction. Weights are not all that fills memory: forward keeps **activations** for backward. **Vote:** of one
# process's activations, the fullest of four ranks keeps (a) a quarter, (b) about half, (c) all.

# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelTransformer, vocabulary_cross_entropy
from course_lib.training.kept import kept_bytes

tokens = torch.randint(0, 37, (2, 13), generator=torch.manual_seed(2))


def kept(team, sequence=False):
    """Bytes that a forward pass of this rank's shard keeps."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    return kept_bytes(shard, lambda: shard(tokens[:, :-1]))


nbytes = {"one process": kept(MPI.COMM_SELF), "tensor": kept(comm), "tensor, sequence": kept(comm, True)}

# %%
most = {way: max(of_rank[way] for of_rank in cluster["nbytes"]) for way in cluster["nbytes"][0]}
for way, kept in most.items():
    print(f"{way}: {kept} bytes, {kept / most['one process']:.0%}")

# %% [markdown]
# <details><summary>Open after you have run the cells</summary>
#
# (b), in this model. Inside a pair, activations are cut. Between the pairs, at norms and additions, every rank keeps all of them. In the third line, each rank keeps only
# some *positions* of the text there: **sequence parallelism**. An all-gather leads into each pair and a reduce-scatter out of it: the two halves of an
# all-reduce (lesson 04), so forward sends equally many bytes. Backward gathers `x` once more, because only a piece was kept.
#
# </details>
#
# Is it still the same training? The columns: one process, tensor, tensor with sequence.


# %%
# %%px
def losses(team, sequence=False):
    """Thirty steps on the same tokens."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    optimizer, found = torch.optim.SGD(shard.parameters(), lr=0.5), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = vocabulary_cross_entropy(team, shard(tokens[:, :-1]), tokens[:, 1:], 37).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


trained = losses(MPI.COMM_SELF), losses(comm), losses(comm, sequence=True)

# %%
for step in (0, 1, 29):
    print(f"step {step:2}:", *(f"{found[step]:.6f}" for found in cluster["trained"][0]))

# %% tags=["exercise: 09.q3"]

# %% [markdown]
# ### Do I have to write this myself?
#
# PyTorch's **DTensor** is a tensor that knows its layout on the ranks: `Shard(0)`, `Shard(1)`, `Replicate()`, or `Partial()`, a part of a
# sum. A plan names the layers to cut, and DTensor derives from the layouts what has to be sent. A pair:

# %% tags=["source: course_lib.parallel.dtensor_parallel:dtensor_feed_forward"]
# %%px

# %% [markdown]
# We count the collectives that it calls, forward and backward, and compare the gradient of `x` with that of one process.

# %%
# %%px --timeout 120
import copy

from torch.distributed.device_mesh import init_device_mesh

from course_lib.parallel.ddp import end_group, start_group
from course_lib.parallel.dtensor_parallel import collectives_of

start_group(comm, "mpi4py")
whole = model.blocks[0].mlp
theirs = dtensor_feed_forward(init_device_mesh("cpu", (comm.size,)), copy.deepcopy(whole))
layouts = [str(layer.weight.placements[0]) for layer in (theirs.up, theirs.down)]
gradient, expected = (torch.autograd.grad(net(x).square().sum(), x)[0] for net in (theirs, whole))
calls = collectives_of(lambda: theirs(x).square().sum().backward())
end_group()
if comm.rank == 0:
    print(f"{layouts}, collectives: {calls}, gradients equal: {torch.allclose(gradient, expected)}")

# %% [markdown]
# `S(0)`, short for `Shard(0)`, cuts `up.weight` along its outputs, the columns of `up`; `S(1)` cuts `down.weight` along its inputs, the rows of `down`: our cuts, and our two sums. DTensor does not know
# heads: it can cut through one if their number is not divisible by that of the ranks.

# %% [markdown]
# ## References
#
# - M. Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019: columns, rows, f and g.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: exercise 09.2 tests one of its sentences.
# - V. Korthikanti and others, [Reducing activation recomputation in large Transformer
#   models](https://arxiv.org/abs/2205.05198), 2022: sequence parallelism.
# - PyTorch, [Tensor parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html): plans.
# - Other cuts, each in a file of `course_lib/parallel` that you can read: the channels of a convolution (`ColumnConv` in `tensor_parallel.py`;
#   [Dryden and others](https://doi.org/10.1145/3295500.3356207), 2019), long texts (`context_parallel.py`;
#   [ring attention](https://arxiv.org/abs/2310.01889), 2023), experts (`expert_parallel.py`;
#   [Switch Transformers](https://arxiv.org/abs/2101.03961), 2022).
# - E. Alpaydin and C. Kaynak, [Optical Recognition of Handwritten Digits](https://doi.org/10.24432/C50P49), 1998 (CC BY 4.0): the digits.
