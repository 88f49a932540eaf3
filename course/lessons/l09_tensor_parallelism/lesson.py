# ---
# title: Tensor parallelism
# goal: Cut a layer, and find out what it costs.
# able:
#   - cut an MLP
#   - find where ranks add up parts
#   - calculate when tensor parallelism sends fewer bytes than data parallelism
# more:
#   - cut attention, by hand or with DTensor
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 21}
# ranks: 4
# warm-up:
#   - ask: Four ranks all-reduce 100 MB in a ring. How much does each rank send?
#     answer: >-
#       150 MB: 2(n−1)/n times 100 MB. The reduce-scatter sends half of it, the all-gather the other half.
#   - ask: In data parallelism, what does every rank hold completely, and what is divided among the ranks?
#     answer: Every rank holds the complete network. The batch is divided.
#   - ask: Let `y = hidden @ down`, and let `d_y` be the gradient of `y`. What is the gradient of `hidden`?
#     answer: <code>d_y @ down.T</code>. (The gradient of <code>down</code> is <code>hidden.T @ d_y</code>.)
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Cut an MLP
#
# What if even one layer is too large for a GPU? **Tensor parallelism** cuts the layer's matrices, and each rank keeps a piece.

# %%
# %%px --save 09_tensor.py
"""Tensor parallelism by hand, on data/digits.npz."""

from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, targets = digits["train_images"].reshape(-1, 64) / 16, np.eye(10)[digits["train_labels"]]
new_images, new_labels = digits["test_images"].reshape(-1, 64) / 16, digits["test_labels"]

# %% [markdown] tags=["subslide"]
# Our network has three matrices. Transformer papers call the last two, with the ReLU between them, an **MLP**. We cut `up` and `down`:
#
# ```
# x      = relu(image @ first)     first:  64 × 54
# hidden = relu(x @ up)            up:     54 × 202
# y      = hidden @ down           down:  202 × 10
# ```
#
# Where do we cut? The rank that keeps a *column* of `up` computes a complete hidden number, so it needs no other rank for ReLU. It also keeps the *row* of `down` that
# multiplies this number:
#
# ```
#             rank 0: up[:, 0:51]    → hidden 0 to 50    → down[0:51]    → a part of y
#      x   →  rank 1: up[:, 51:102]  → hidden 51 to 101  → down[51:102]  → a part of y   →  +  →  y
#             …
# ```
#
# `y` is a sum over *all* hidden numbers, so `mlp_forward` adds up the ranks' parts:

# %% tags=["source: course_lib.parallel.tensor_parallel:mlp_forward"]
# %%px --save 09_tensor.py

# %% [markdown] tags=["subslide"]
# Every rank has all of `y`, so it can compute `d_y`. Our first try runs backward as one process would:


# %%
# %%px
def mlp_backward(comm, x, hidden, up, down, d_y):
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    return d_x, d_up, d_down


# %% [markdown] tags=["subslide"]
# One function computes all gradients:


# %%
# %%px --save 09_tensor.py
def gradients(comm, first, up, down, chosen, batch):
    """The summed gradients of the chosen images, divided by the global `batch`."""
    x = np.maximum(images[chosen] @ first, 0)
    hidden, y = mlp_forward(comm, x, up, down)
    d_y = (y - targets[chosen]) / batch  # loss: half the squared error per image
    d_x, d_up, d_down = mlp_backward(comm, x, hidden, up, down, d_y)
    d_first = images[chosen].T @ (d_x * (x > 0))  # back through the ReLU of x
    return d_first, d_up, d_down


# %% [markdown] tags=["subslide"]
# All ranks draw the same matrices and batches. Each keeps all of `first`, but only its pieces of `up` and `down`:


# %%
# %%px --save 09_tensor.py
def train(comm, batch=100, steps=400):
    draw = np.random.default_rng(0)
    first, up, down = (draw.normal(0, n**-0.5, (n, m)) for n, m in [(64, 54), (54, 202), (202, 10)])
    mine = np.array_split(np.arange(202), comm.size)[comm.rank]
    weights = first, up[:, mine], down[mine]
    for chosen in np.random.default_rng(1).integers(len(images), size=(steps, batch)):
        for weight, gradient in zip(weights, gradients(comm, *weights, chosen, batch), strict=True):
            weight -= 0.1 * gradient
    return weights


# %% [markdown]
# To use the network on one rank, we collect the pieces and one copy of `first`:


# %%
# %%px --save 09_tensor.py
def collected(comm, first, up, down):
    return first, np.hstack(comm.allgather(up)), np.vstack(comm.allgather(down))


def correct(comm, first, up, down):
    """Count the new images read correctly."""
    y = mlp_forward(comm, np.maximum(new_images @ first, 0), up, down)[1]
    return np.count_nonzero(y.argmax(1) == new_labels)


# %% [markdown] tags=["subslide"]
# A team of one rank trains, then a team of four. Each team classifies 297 new images. Then *one* process classifies them with the collected
# matrices.
#
# **Vote:** compared with one rank, does the network of four lose 20 images or more? (a) no, (b) in the team and when collected, (c) only when collected.

# %%
# %%px
for team in MPI.COMM_SELF, comm:
    weights = train(team)
    in_team, alone = correct(team, *weights), correct(MPI.COMM_SELF, *collected(team, *weights))
    if comm.rank == 0:
        print(f"trained on {team.size}: {in_team} right in the team, {alone} when collected")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). The team reads digits well. The network that you would save doesn't.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · Look at every rank
#
# Are the copies of `first` still equal? We print one number of each:

# %%
# %%px
print(f"{weights[0][20, 11]:.3f}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# They have drifted apart. The team reads well, because it trained a larger network: every rank has its own `first`. The collected network
# has only one:
#
# ```
# in the team:      first of rank 0 → columns of rank 0     first of rank 1 → columns of rank 1     …
# when collected:   first of rank 0 → columns of rank 0     first of rank 0 → columns of rank 1     …
# ```
#
# All ranks drew the same batches, so why did the gradients of `first` differ?
#
# </details>

# %% tags=["exercise: 09.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here. The usual slip is to add `d_up` or `d_hidden` as well.

# %% [markdown] tags=["subslide"]
# Four ranks train, then one process. Do they get the same network?

# %%
# %%px --save 09_tensor.py
if __name__ == "__main__":
    full = collected(comm, *train(comm))
    if comm.rank == 0:
        print(f"ranks: {comm.size}, {correct(MPI.COMM_SELF, *full)} right, weight {full[0][20, 11]:.9f}")

# %%
# !mpiexec -n 1 python code/09_tensor.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Yes, up to rounding: nine decimals agree (float64, no dropout).
#
# A rank's columns of `up` give only a part of `d_x`. Its `d_up` and `d_down` are complete: it has all images, complete hidden numbers and all of `d_y`. So this cut needs *two all-reduces*: `y` forward, `d_x` backward.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What does it cost?
#
# Our network fits on every rank, so data parallelism would work, too. Which sends fewer bytes? With the same ranks, global batch and all-reduce algorithm, a step all-reduces:
#
# ```
# data parallelism       all gradients     64 · 54 + 54 · 202 + 202 · 10 = 16,384 numbers at any batch
#
# tensor parallelism     y and d_x         one row of each per image
# ```

# %%
predict("At which batch do both send equally many bytes?", None)


# %%
# %%px
class Counting(MPI.Intracomm):
    nbytes = 0  # all-reduced so far

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        self.nbytes += recvbuf.nbytes
        super().Allreduce(sendbuf, recvbuf, op)


counted = {}
for batch in 32, 64, 128, 256, 512, 1024:
    tensor, data = Counting(comm), Counting(comm)
    train(tensor, batch, steps=1)  # pieces of the matrices, all images
    for gradient in gradients(MPI.COMM_SELF, *full, np.arange(comm.rank, batch, comm.size), batch):
        data.Allreduce(MPI.IN_PLACE, gradient)  # full matrices, every fourth image
    counted[batch] = tensor.nbytes, data.nbytes

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import draw_bytes

tensor, data = cluster[0]["counted"][32]
outcome("At which batch do both send equally many bytes?", data / (tensor / 32), word="they meet at")
draw_bytes(cluster[0]["counted"])

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# ```
# per image    y 10  +  d_x 54 (your line)  +  hidden 0 (each stays on its rank)  =  64 numbers
#
# crossing     16,384 / 64  =  256 images
# ```
#
# Below this crossing, tensor parallelism sends less.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# In a language model, `x` has one row per *token*, and `y` is as wide as `x`. For each MLP, a step all-reduces:
#
# ```
# data parallelism       d_up and d_down     2 · width of x · numbers in hidden     while backward runs
#
# tensor parallelism     y and d_x           2 · width of x · tokens                GPUs wait for y; two sums per MLP
#
#                        (same ranks, all-reduce and precision)
# ```
#
# Usually a step has more tokens than `hidden` has numbers, so tensor parallelism alone sends more. People still use it: it divides a layer's weights and work, and
# needs no larger batch.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - With `up` cut by columns and `down` by rows, an MLP needs one all-reduce forward and one backward per micro-batch (more with recomputation).
# - Tensor parallelism's bytes grow with the batch, data parallelism's with the weights per rank.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model just fits on one machine, its layers cut among eight GPUs. A slower network connects a second machine. A step has more tokens than the
# crossing. Which is faster: to cut layers (a) among sixteen GPUs, or (b) among eight, each machine with half the batch?
#
# <details><summary>What to listen for</summary>(b), if the batch can be halved. In (a), the sums of every MLP cross the slow network while GPUs wait. In (b),
# only gradients cross it, once per step, during backward: an eighth per GPU. So cut layers where links are fastest: usually inside a machine.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Which cuts work, and which pay?
#
# First decide three cases. Then we time a cut MLP.

# %% tags=["exercise: 09.q4"]

# %% tags=["exercise: 09.q3"]

# %% tags=["exercise: 09.2"]

# %% [markdown]
# Are two ranks faster than one? First one rank runs an MLP, forward and backward, on 256 rows of `x`. Then two ranks run the same MLP, each with half of the hidden numbers.
# We try two widths: a row of `x` has 8 numbers, or 512. `hidden` is always four times as wide.
#
# **Vote:** two ranks are at least 1.5 times as fast (a) at both widths, (b) only at 512, (c) at neither width.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2 --timeout 300
from course_lib.measure import measure

pair = comm.Create_group(comm.group.Incl([0, 1]))


def once(team, width):
    ours = 4 * width // team.size  # hidden numbers of this rank
    x, up, down = np.ones((256, width)), np.ones((width, ours)), np.ones((ours, width))
    hidden, y = mlp_forward(team, x, up, down)
    mlp_backward(team, x, hidden, up, down, y)  # any array can be d_y: we only measure time


for width in 8, 512:
    ways = {"one": lambda: comm.rank == 0 and once(MPI.COMM_SELF, width), "two": lambda: once(pair, width)}
    one, two = (1000 * row.low for row in measure(pair, ways))  # the shortest of ten runs
    if comm.rank == 0:
        print(f"width {width}: one rank {one:.2f} ms, two ranks {two:.2f} ms")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), if each rank has a core to itself. If you see no speed-up at 512, your ranks probably share a core.
#
# At both widths, each of two ranks does half the work. Why do they win at only one width? The work that the cut saves grows with the *square* of the width. `y` and
# `d_x` grow only with the width, and each sum has a fixed cost.
#
# This is also why an MLP is rarely cut 64 ways: each rank has less work, but `y` and `d_x` stay as large. (And 64 GPUs usually span slower links.)
#
# Computation can hide part of the sums' time. While `d_x` is summed, Megatron-LM computes `d_up`. In forward this is harder: the next layer needs `y`, so some libraries sum `y` in groups of rows.
#
# </details>

# %% [markdown]
# ### Can we cut attention, too?
#
# Most language models are **Transformers**: stacks of blocks, each with two halves. One half is often an MLP like ours, with **GeLU**, a smooth form of ReLU. The
# other half is *attention*, which mixes the positions of a text. Can we cut it as well?
#
# From `x`, attention computes three matrices: queries, keys and values. Groups of their columns form *heads*, and no head needs another's numbers (unless heads share keys and values). So each rank gets complete heads, as it
# got complete hidden numbers in section 1. The matrix that leads into the heads is cut by columns: it is **column-parallel**. The matrix that leads out of them is cut by
# rows: it is **row-parallel**. Both halves of a block then look alike:
#
# ```
# attention   x → f → [columns of the matrix into the heads] → our heads → [rows of the matrix out of them] → g → y
# MLP         x → f → [columns of up]                        → GeLU      → [rows of down]                   → g → y
# ```
#
# **f** and **g**, named as in Megatron-LM's paper, are our two sums. Autograd runs backward here, and knows nothing of MPI. So we give each sum its own forward and
# backward (`all_reduced` is `Allreduce` for a tensor):
#
# - f (`_CopyTo`) is your line from exercise 09.4: it passes `x` on in forward, and sums the gradient of `x` in backward.
# - g (`_ReduceFrom`) is the sum in `mlp_forward`: it sums `y` in forward, and passes `d_y` on in backward, because every rank has all of `d_y`.

# %% tags=["source: course_lib.comm.regions:_CopyTo"]
# %%px

# %% tags=["source: course_lib.comm.regions:_ReduceFrom"]
# %%px

# %% [markdown]
# A column-parallel layer begins with f, and a row-parallel layer ends with g (`course_lib/parallel/tensor_parallel.py`). **Predict:** one block contains attention and an MLP. How often does it call all-reduce, forward and backward together?

# %%
predict("All-reduces in one block, forward and backward together?", None)

# %%
# %%px
import torch

from course_lib.parallel.tensor_parallel import ParallelBlock
from course_lib.training.transformer import build_transformer

model = build_transformer(vocabulary=37, length=12, width=48, heads=6, layers=2, seed=0).double()
counting = Counting(comm)
block = ParallelBlock(counting, model.blocks[0], sequence=False)
heads = len(block.attention.qkv.weight) // (3 * block.attention.head_width)
x = torch.randn(2, 12, 48, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
block(x).square().sum().backward()
calls = counting.nbytes // x.nbytes  # each sum is as large as `x`

# %%
print("heads per rank:", cluster["heads"])
outcome("All-reduces in one block, forward and backward together?", cluster["calls"][0], word="counted")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# Four: attention and the MLP each have one all-reduce forward and one backward. (Our attention keeps queries, keys and values in one matrix. If backward recomputes the block, sums of forward run again.)
#
# Four does not divide six: the ranks with one head wait for those with two. Megatron-LM refuses such a number of ranks.
#
# Our block has no *dropout*. With dropout, all ranks must draw the same mask for numbers that all of them have, such as `y`. For its own heads and hidden numbers, each
# rank draws its own mask.
#
# </details>
#
# Each rank keeps about a quarter of a block's weights. Does it also keep only a quarter of the **activations**, the numbers that forward keeps for backward? Go through
# a block in your mind: norm, attention, addition, norm, MLP, addition. Which of these did we cut?
#
# **Vote:** the rank that keeps most keeps (a) a quarter of the activations of one process, (b) about half, (c) all.

# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelTransformer
from course_lib.training.kept import kept_bytes

tokens = torch.randint(0, 37, (2, 13), generator=torch.manual_seed(2))


def kept(team, sequence=False):
    """Bytes that this rank's forward keeps for backward."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    return kept_bytes(shard, lambda: shard(tokens[:, :-1]))


nbytes = {"one process": kept(MPI.COMM_SELF), "tensor": kept(comm), "tensor, sequence": kept(comm, True)}

# %%
most = {way: max(of_rank[way] for of_rank in cluster["nbytes"]) for way in cluster["nbytes"][0]}
for way, nbytes in most.items():
    print(f"{way}: {nbytes} bytes, {nbytes / most['one process']:.0%}")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), in this model: every rank computes all norms and additions, and keeps their full outputs.
#
# A layer norm (unlike batch norm) treats each position of the text separately, so each rank could take some of the *positions*. This is Megatron-LM's **sequence parallelism**, the third line of
# the output: 27 % instead of 49 %. (Not 25 %: the rank that keeps most has two of six heads.)
#
# An all-gather then comes before attention and before the MLP, and a reduce-scatter after each. In a ring, both together send as many bytes as one all-reduce (lesson 04). Backward gathers `x`
# once more, because each rank kept only its positions.
#
# Sequence parallelism also needs more sums: each rank now computes the gradients of a norm's weights, and of a row-parallel layer's bias, from its own positions only. Without these sums,
# copies drift apart again, and no error says so.
#
# </details>

# %% [markdown]
# #### Do I have to write this myself?
#
# A forgotten sum raises no error. Could a library find the sums? In PyTorch, a **DTensor** is a tensor that knows its layout on the ranks:
#
# ```
# Shard(0)      cut along the first dimension, Shard(1) along the second
# Replicate()   complete on every rank
# Partial()     each rank has a part of a sum, like our y before the all-reduce
# ```
#
# You write a plan that names the layers to cut. From the layouts, DTensor derives which collectives to call.

# %% tags=["source: course_lib.parallel.dtensor_parallel:dtensor_feed_forward"]
# %%px

# %% [markdown]
# Follow the layouts through this MLP. The input `x` is `Replicate()`. What is the layout of `up`'s output, and of `down`'s? Where must DTensor send?
#
# **Vote:** for an MLP, forward and backward, DTensor calls (a) two collectives, as we do, (b) more than two. We count them, and compare DTensor's gradient of `x` with the gradient in one process.

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
# <details><summary>Open after the run</summary>
#
# (a). The output of `up` is `Shard(-1)`: cut along the last dimension, as `down` needs it. So nothing is sent between the two. The output of `down` is `Partial()`, and so is the gradient of `x` in
# backward: these are our two sums. (`S(0)` for `up` is a cut by rows, although we asked for columns: `nn.Linear` stores its matrix transposed.)
#
# DTensor knows nothing of heads. GPT-2 keeps queries, keys and values side by side in one matrix. If DTensor cut it in four, rank 0 would get only queries and rank 3 only values. So
# DTensor plans cut three separate matrices. In `course_lib`'s plan, backward all-reduces a part of `d_x` for each of the three, so a block calls six collectives. (`PrepareModuleInput` saves two.) The number of ranks must divide the number of
# heads, and the number of key and value heads if the plan cuts these.
#
# </details>

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
