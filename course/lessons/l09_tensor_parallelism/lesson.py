# ---
# title: Tensor parallelism
# goal: Cut a layer's matrices into pieces, and find out what that costs.
# able:
#   - cut a pair of layers
#   - find where ranks add up parts
#   - calculate when tensor parallelism sends fewer bytes than data parallelism
# more:
#   - cut attention, by hand or with DTensor
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 18}
# ranks: 4
# warm-up:
#   - ask: Four ranks all-reduce 100 MB in a ring. How much does each rank send?
#     answer: >-
#       150 MB: 2(n−1)/n times 100 MB. The reduce-scatter sends half of it, the all-gather the other half.
#   - ask: In data parallelism, what does every rank hold completely, and what is divided among the ranks?
#     answer: Every rank holds the complete network. The batch is divided.
#   - ask: Let `y = x @ down`, and let `d_y` be the gradient of `y`. What is the gradient of `x`?
#     answer: <code>d_y @ down.T</code>. (The gradient of <code>down</code> is <code>x.T @ d_y</code>.)
# ---

# %% [markdown] tags=["slide"]
# ## 1 · Cut a pair of layers
#
# A model may not fit on one GPU. **Tensor parallelism** cuts its matrices. Take a pair of layers: `hidden = relu(x @ up)`, then `y = hidden @ down`.
# Each rank keeps some *columns* of `up` and the matching *rows* of `down`:
#
# ```
#             rank 0: up[:, 0:51]    → hidden 0 to 50    → down[0:51]
#      x   →  rank 1: up[:, 51:102]  → hidden 51 to 101  → down[51:102]  →  +  →  y
#             …
# ```
#
# A hidden number needs only its own column of `up`, and a ReLU works on one number at a time. But each number of `y` is a sum over *all* hidden numbers. So `mlp_forward` adds up
# all ranks' parts.

# %%
# %%px --save 09_tensor.py
"""Tensor parallelism by hand: trains a network on data/digits.npz."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: what the cell is saved to
images, new_images = (digits[f"{part}_images"].reshape(-1, 64) / 16 for part in ("train", "test"))
targets = np.eye(10)[digits["train_labels"]]  # 1 for the right digit, 0 for the others

# %% tags=["source: course_lib.parallel.tensor_parallel:mlp_forward"]
# %%px --save 09_tensor.py

# %% [markdown] tags=["subslide"]
# Backward starts with `d_y`, the gradient of `y`. In our first try, each rank computes the gradients of `x` and of its own columns and rows.


# %%
# %%px
def mlp_backward(comm, x, hidden, up, down, d_y):
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    return d_x, d_up, d_down


# %% [markdown] tags=["subslide"]
# Our network reads digits. A third matrix, `first`, makes `x` from 64 pixels. Every rank has all of `first`.


# %%
# %%px --save 09_tensor.py
def network(comm, weights, pixels):
    """Forward: `x`, `hidden` and `y`."""
    first, up, down = weights
    x = np.maximum(pixels @ first, 0)
    return x, *mlp_forward(comm, x, up, down)


def gradients(comm, weights, pixels, targets):
    """Backward: gradients of half the squared error per image, averaged."""
    _, up, down = weights
    x, hidden, y = network(comm, weights, pixels)
    d_x, d_up, d_down = mlp_backward(comm, x, hidden, up, down, (y - targets) / len(pixels))
    return pixels.T @ (d_x * (x > 0)), d_up, d_down


# %% [markdown]
# All ranks draw the same matrices and batches. Each keeps its own columns and rows.


# %%
# %%px --save 09_tensor.py
def new_weights(comm):
    """The matrix `first`, this rank's columns of `up`, and its rows of `down`."""
    draw = np.random.default_rng(0)
    first, up, down = (draw.normal(0, n**-0.5, (n, m)) for n, m in pairwise([64, 54, 202, 10]))
    mine = np.array_split(np.arange(202), comm.size)[comm.rank]
    return first, up[:, mine], down[mine]


def train(comm):
    """Train; return this rank's weights."""
    weights = new_weights(comm)
    for batch in np.random.default_rng(1).integers(len(images), size=(400, 100)):
        for weight, gradient in zip(weights, gradients(comm, weights, images[batch], targets[batch])):
            weight -= 0.1 * gradient
    return weights


# %% [markdown]
# To save the model, we collect the pieces. Every rank has a copy of `first`, so one is enough.


# %%
# %%px --save 09_tensor.py
def right(comm, weights):
    """How many new images the network reads correctly."""
    return np.count_nonzero(network(comm, weights, new_images)[-1].argmax(1) == digits["test_labels"])


def collected(comm, weights):
    """The complete matrices."""
    return weights[0], np.hstack(comm.allgather(weights[1])), np.vstack(comm.allgather(weights[2]))


# %% [markdown] tags=["subslide"]
# One process trains, then a team of four ranks. The team reads 297 new images. Then *one* process reads them with the collected matrices.
# **Vote:** compared with one process's network, the team's is (a) about as good, (b) worse, (c) worse only when collected.

# %%
# %%px
for team in MPI.COMM_SELF, comm:
    weights = train(team)
    in_team, in_one = right(team, weights), right(MPI.COMM_SELF, collected(team, weights))
    if comm.rank == 0:
        print(f"trained on {team.size}: {in_team} right in the team, {in_one} when collected")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (c). Nothing raised an error, but the model that you would save is much worse. Each rank has trained a `first` of its own. The four together are a correct network, which the team
# uses, and you save only rank 0's.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 2 · What is missing?

# %% tags=["exercise: 09.4"]

# %% [markdown] tags=["notes"]
# Eight minutes up to here. The usual slip is to add `d_up` or `d_hidden` as well.

# %% [markdown] tags=["subslide"]
# Four ranks train, then one process. Both print a weight of `first` with nine decimals. **Vote:** (a) all nine agree, (b) two or three, (c) none.

# %%
# %%px --save 09_tensor.py
weights = collected(comm, train(comm))
if comm.rank == 0:
    print(f"ranks: {comm.size}, {right(MPI.COMM_SELF, weights)} right, a weight: {weights[0][20, 0]:.9f}")

# %%
# !mpiexec -n 1 python code/09_tensor.py

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (a), with the 64 bits of NumPy. (In a GPU's 16 bits, two or three may agree: compare losses there.) A rank's columns of `up` give only a part of `d_x`. Without the sum, the
# copies of `first` drifted apart. So a pair needs *two all-reduces*: one in forward, one in backward.
#
# </details>

# %% [markdown] tags=["slide"]
# ## 3 · What does it cost?
#
# Data parallelism all-reduces the gradients of all matrices: 64 · 54 + 54 · 202 + 202 · 10 = 16,384 numbers per step, at any batch.
#
# Tensor parallelism all-reduces `y` and `d_x`. At which batch do `y` and `d_x` together have 16,384 numbers, too?

# %%
predict("At which batch do both send equally many bytes?", None)

# %% [markdown]
# Now we count.


# %%
# %%px
class Counting(MPI.Intracomm):
    nbytes = 0  # that its all-reduces add up

    def Allreduce(self, sendbuf, recvbuf):
        self.nbytes += recvbuf.nbytes
        super().Allreduce(sendbuf, recvbuf)


tensor = {}
for batch in 32, 64, 128, 256, 512, 1024:
    counting = Counting(comm)
    gradients(counting, new_weights(comm), images[:batch], targets[:batch])
    tensor[batch] = counting.nbytes
met = [batch for batch in tensor if tensor[batch] == 16_384 * 8]  # 8 bytes per number

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import draw_bytes

draw_bytes(tensor=cluster[0]["tensor"], data=16_384 * 8)

# %%
outcome("At which batch do both send equally many bytes?", cluster[0]["met"][0], word="they met at")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# `y` has 10 numbers per image and `d_x` has 54, together 64. And 16,384 / 64 = 256.
#
# </details>

# %% [markdown] tags=["slide"]
# ## On a cluster
#
# | | with 64 GPUs |
# |---|---|
# | batch | Sixteen texts of 2,048 tokens count as a batch of 32,768. So tensor parallelism sends more. |
# | waiting | Forward waits for the sum of `y`. Gradients of data parallelism can travel during backward. |
# | links | So often the 8 GPUs of a machine share a layer, with data parallelism between machines. |

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Cut `up` by columns and `down` by rows. Then a pair needs one all-reduce forward and one backward.
# - The bytes of tensor parallelism grow with the batch, those of data parallelism with the weights.
# - Each of n ranks keeps and computes 1/n of a pair, for the full batch.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model that is cut eight ways just fits on a machine's eight GPUs. You get a second machine, over an ordinary
# network. Do you (a) cut sixteen ways, or (b) cut eight ways on each machine, with half the batch each?
#
# <details><summary>What to listen for</summary>(b), unless the batch cannot be halved. In (a), GPUs wait while every pair's sums cross the
# slow network. In (b), gradients cross it once per step, during backward.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### Which cuts work, and which pay?

# %% tags=["exercise: 09.q4"]

# %% tags=["exercise: 09.q3"]

# %% tags=["exercise: 09.2"]

# %% [markdown]
# How much time does the cut save? One rank runs a pair, forward and backward. Then two ranks run it. The width of `x` is first 32, then 512.
# **Vote:** two ranks are at least 1.5 times as fast (a) at both widths, (b) only at 512, (c) at neither width.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0:2 --timeout 300
from course_lib.measure import measure

pair = comm.Create_group(comm.group.Incl([0, 1]))


def once(team, width):
    x, up = np.ones((256, width)), np.ones((width, 4 * width // team.size))
    mlp_backward(team, x, mlp_forward(team, x, up, up.T)[0], up, up.T, x)


for width in 32, 512:
    ways = {"one": lambda: comm.rank == 0 and once(MPI.COMM_SELF, width), "two": lambda: once(pair, width)}
    one, two = (1000 * row.low for row in measure(pair, ways))  # the shortest of ten runs
    if comm.rank == 0:
        print(f"width {width}: one rank {one:.1f} ms, two ranks {two:.1f} ms")

# %% [markdown]
# <details><summary>Open after the run</summary>
#
# (b), if each rank has a core to itself. If you see no speed-up at 512, your ranks share a core.
#
# The work of the matrix products grows with the square of the width. The bytes of the sums grow only with the width. At 32, the sums take about as long as the cut saves. With more ranks, each has less work, but the sums stay as large. So a pair is rarely cut 64 ways.
#
# </details>

# %% [markdown]
# ### Can we cut attention, too?
#
# Most language models are **Transformers**. A Transformer's block is *attention*, which mixes the positions of a text, and then a pair like ours. In the middle of the pair is **GeLU**, a smooth ReLU.
# Attention has several *heads* side by side. No head needs the numbers of another head, so each rank gets complete heads. (The rank with the most sets the pace.) The matrix that leads into the heads is cut by columns: it is
# **column-parallel**. The matrix that leads out of them is cut by rows: it is **row-parallel**.
#
# PyTorch's autograd derives the backward pass, but it does not know MPI. So we write two functions. One sums in backward only, the other in forward only. Megatron-LM, where these cuts come from, calls them **f** and **g**:
#
# - f (`_CopyTo`) passes `x` on unchanged in forward. In backward, it adds up the ranks' gradients of `x`.
# - g (`_ReduceFrom`) adds up the ranks' parts in forward. In backward, it passes the gradient on unchanged.

# %% tags=["source: course_lib.comm.regions:_CopyTo"]
# %%px

# %% tags=["source: course_lib.comm.regions:_ReduceFrom"]
# %%px

# %% [markdown]
# A column-parallel layer begins with f, and a row-parallel layer ends with g (`course_lib/parallel/tensor_parallel.py`). **Predict:** how often does one block call all-reduce, forward and backward together?

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
# Attention is a pair, too, and each pair has one all-reduce forward and one backward. Six heads on four ranks are 2, 2, 1 and 1.
#
# Weights are not all that fills memory. Forward also keeps **activations**, the numbers between layers, for backward. One process keeps all of them. Now four ranks share the model.
# **Vote:** the rank that keeps most keeps (a) a quarter of the activations, (b) about half, (c) all.

# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelTransformer
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
# <details><summary>Open after the run</summary>
#
# (b), in this model. Inside a pair, each rank keeps only its part of the activations. Between the pairs, at norms and additions, every rank keeps all of them.
#
# The third line of the output is Megatron-LM's **sequence parallelism**: between the pairs, each rank keeps only some *positions* of the text. An all-gather leads into each pair, and a reduce-scatter leads out of it.
# These are the two halves of an all-reduce (lesson 04), so forward sends as many bytes as before. Here a rank then keeps 27 % instead of 49 %. But each rank has kept only its positions of `x`, so backward gathers `x` once more.
# And a norm's weights see only these positions, so their gradients must be added up: another place where a line can be missing.
#
# </details>

# %% [markdown]
# ### Do I have to write this myself?
#
# PyTorch's **DTensor** is a tensor that knows its layout on the ranks. `Shard(0)` is cut along the first dimension, `Shard(1)` along the second. `Replicate()` is complete on every rank, and `Partial()` is a part of a
# sum. A plan names the layers to cut, and DTensor derives what the ranks must send. **Vote:** for a pair, forward and backward, DTensor calls (a) two collectives, as we do, (b) more than two.

# %% tags=["source: course_lib.parallel.dtensor_parallel:dtensor_feed_forward"]
# %%px

# %% [markdown]
# We count DTensor's collectives, and compare its gradient of `x` with the gradient in one process.

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
# (a). `S(0)` is short for `Shard(0)`. `nn.Linear` stores its matrix transposed, so `S(0)` cuts the columns of our `up`, and `S(1)` cuts the rows of our `down`.
#
# But DTensor cuts rows, not heads. Where one matrix has the rows of all queries, then all keys, then all values, as in our model, an equal cut gives no rank whole heads. So plans for DTensor use three matrices.
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
