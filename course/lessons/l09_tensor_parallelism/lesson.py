# ---
# title: Tensor parallelism
# goal: Split the matrices inside a layer among the ranks, and find out where the ranks have to meet.
# able:
#   - split a matrix product by columns or by rows, and say which of the two needs a sum
#   - find where a pair of layers communicates, forward and backward
#   - test split layers against one process
# more:
#   - distribute attention heads and a vocabulary over ranks
#   - say what splitting the sequence saves
#   - recognise the same splits in PyTorch's DTensor, in convolutions, in long texts and in mixtures of experts
# before: >-
#   {04}, {06}
# minutes: {core: 20, more: 55}
# ranks: 4
# warm-up:
#   - ask: Four ranks all-reduce 100 MB in a ring. How much does each rank send?
#     answer: >-
#       150 MB: 2(n−1)/n times 100 MB. The reduce-scatter sends half of it, the all-gather the other half.
#   - ask: In data parallelism, what does every rank hold completely, and what is divided among the ranks?
#     answer: Every rank holds the complete network. The batch is divided.
#   - ask: Which test shows that data-parallel training on four ranks is right?
#     answer: After a few steps, it ends with the weights of one process, up to rounding.
# ---

# %%
# %%px --setup
import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown] tags=["slide"]
# ## 1 · One product, split in two ways
#
# A linear layer multiplies its input `x` by a matrix of weights: `y = x @ A`. Suppose the matrix is too large for one rank. In
# **tensor parallelism** each rank holds a part of it, and all ranks work on the same samples. Here are two samples and a small matrix:

# %%
# %%px
x = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
A = np.array([[8, 9], [10, 11], [12, 13], [14, 15]])
if rank == 0:
    print(x @ A)

# %% [markdown]
# We may split `A` by **columns**. There are two, so two ranks have work. Each needs all of `x`.

# %%
# %%px
if rank < 2:
    print(f"rank {rank} holds the column {A[:, rank]} and gets {x @ A[:, rank]}")

# %% [markdown]
# Rank 0 has the first column of `y` and rank 1 the second. Each number is complete.
#
# Or we split `A` by **rows**: rank 0 holds the first two, rank 1 the last two. The first two rows of `A` meet only the first two columns of `x`,
# so a rank needs only its columns of `x`. Before you run the cell: which of the four numbers will rank 0 get right?

# %%
# %%px
two = comm.Split(0 if rank < 2 else MPI.UNDEFINED, rank)  # ranks 0 and 1
if rank < 2:
    mine = slice(2 * rank, 2 * rank + 2)
    part = x[:, mine] @ A[mine]
    print(f"rank {rank} holds the rows {A[mine].tolist()} and gets\n{part}")

# %% [markdown]
# None. Each rank has a number in all four places, but each is only a part of a sum: 10 on rank 0 and 66 on rank 1 make 76. So the ranks
# have to add.

# %%
# %%px
if rank < 2:
    y = np.zeros_like(part)
    two.Allreduce(part, y)
    print(f"rank {rank} now has\n{y}")

# %% [markdown]
# | layer | input | output | communication, forward |
# |---|---|---|---|
# | **column-parallel** | all of x, on every rank | a shard of y, complete | nothing |
# | **row-parallel** | a shard of x | parts of y, to be summed | an all-reduce |

# %% [markdown] tags=["notes"]
# Five minutes up to here. Ask the room what rank 0 gets by rows before the cell runs. Many say "the first row of y". Let somebody
# compute 0·8 + 1·10 aloud: it is a part of 76.

# %% [markdown] tags=["slide"]
# ## 2 · Two layers, one after the other
#
# Most language models are **Transformers**, networks that contain many pairs of linear layers. In a pair, `A` turns the numbers of a sample
# into more numbers, the hidden layer. The number of inputs is the *width*. **GeLU** (a smooth ReLU) is applied to each hidden number, and
# `B` leads back to the width. We split `A` by columns and `B` by rows. How many times do the ranks have to communicate?
#
# Our pair has a width of 8 and 32 hidden numbers, eight per rank. All ranks draw the same weights and the same `x` from one seed. Each keeps all of
# `x` and its shard of the weights. In the code, A is `up` and B is `down`; `Counting` counts a communicator's all-reduces.

# %%
predict("All-reduces in the forward pass?", None)

# %%
# %%px
from course.lessons.l09_tensor_parallelism.runs import Counting
from course_lib.parallel.tensor_parallel import parallel_feed_forward
from course_lib.training.transformer import FeedForward

torch.manual_seed(0)
whole, counting = FeedForward(8).double(), Counting(comm)
x = torch.randn(5, 8, dtype=torch.float64).requires_grad_()
pair = parallel_feed_forward(counting, whole)  # this rank's shard of both layers
y = pair(x)
forward = counting.count
columns = len(pair[0].weight)  # PyTorch stores A transposed: the rows of `weight` are columns of A

# %%
why = "Only the parts of y need a sum. A rank's hidden numbers are exactly the inputs of its rows of B."
outcome("All-reduces in the forward pass?", cluster["forward"][0], word="counted", because=why)

# %% [markdown]
# Each hidden number is complete on one rank, so that rank can apply GeLU to it. If the first layer were row-parallel, the ranks
# would have to sum before GeLU, because GeLU(a) + GeLU(b) is not GeLU(a + b).

# %% tags=["exercise: 09.q1"]

# %% [markdown] tags=["slide"]
# ## 3 · The backward pass
#
# Gradients go through the same layers from right to left. Every rank holds all of y, so it knows the full gradient of y. With it, the rank computes
# the gradients of its rows of B, then of its hidden numbers, then of its columns of A. The gradient of `x` comes last; the layers before this pair
# need it.

# %%
predict("All-reduces in the backward pass?", None)

# %%
# %%px
y.square().sum().backward()
backward = counting.count - forward

# %%
why = "Every column of A contributes to the gradient of x. "
why += "Each rank has only the contribution of its own columns."
outcome("All-reduces in the backward pass?", cluster["backward"][0], word="counted", because=why)

# %% [markdown]
# Both all-reduces in one picture:

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import cut_layers

cut_layers(cluster["columns"], forward=cluster["forward"][0], backward=cluster["backward"][0])

# %% [markdown]
# The gradients of A and B need no message: each rank computes those of its own shard, completely. So each rank holds a quarter of A and B, and no
# weight is ever sent.

# %% tags=["exercise: 09.1"]

# %%
continue_with("09.1")

# %% [markdown] tags=["notes"]
# Seven minutes with the exercise. Most people sum `hidden` first: on two ranks it has the right shape, and the numbers are nonsense.
# Ask: "Does anybody else hold a part of your hidden number?"

# %% [markdown] tags=["slide"]
# ## 4 · Test every gradient
#
# **On 1, 2, 3 and 4 ranks, the output and all gradients must equal those of one process up to rounding (1e-12).** `by_autograd` computes the
# expected values from the full matrices.

# %%
# %%px
from course.lessons.l09_tensor_parallelism.runs import all_equal, by_autograd

draw = np.random.default_rng(0)
points = draw.uniform(-1, 1, (100, 3))
points[:, 2] = 1  # a constant input, in place of a bias
target = points[:, :1] * points[:, 1:2]  # what More trains the layers to return
A, B = draw.normal(size=(3, 32)), draw.normal(size=(32, 1)) / 6
full_y, d_x, d_A, d_B = by_autograd(points, A, B, target)

# %% [markdown]
# A team of n ranks passes if all of its ranks have the right numbers.


# %%
# %%px
def shards(team):
    """This rank's columns of A, its rows of B, and their numbers."""
    mine = np.array_split(np.arange(32), team.size)[team.rank]
    return A[:, mine].copy(), B[mine].copy(), mine


for n in (1, 2, 3, 4):
    team = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        up, down, mine = shards(team)
        got = mlp_step(team, points, up, down, target)  # yours, if 09.1 is right
        y_right, *right = all_equal(team, got, [full_y, d_x, d_A[:, mine], d_B[mine]])
        if rank == 0:
            print(f"{n} rank{'s' * (n > 1)}: y {y_right}; gradients of x, A and B {right}")

# %% [markdown]
# A forgotten sum raises no error; only such a test shows it. If you solved 09.1, put a `#` before one of your two lines, and run that cell and the
# test again: it prints False on several ranks. Then remove the `#`, and run both again.
#
# The ranks send the outputs of layers (*activations*) and their gradients. Both grow with the batch, and the next layer waits for each sum. Data
# parallelism sums gradients of weights, and nothing waits for them until the optimizer's step. So tensor parallelism needs fast links, such as those
# between the GPUs of one machine.

# %% [markdown] tags=["notes"]
# Four minutes. Let somebody remove the first line and then the second, and read the verdicts aloud: without the first
# sum everything is wrong, without the second only the gradient of x.

# %% [markdown] tags=["slide"]
# ## Key points
#
# - Forward, a split by columns sends nothing and gives a shard of the output. A split by rows gives parts of the output, which an all-reduce
#   sums.
# - A pair, columns then rows, costs one all-reduce forward and one backward, and the next layer waits for each.
# - GeLU may follow a column-parallel layer. After a row-parallel layer, sum first.
# - The test: output and every gradient equal those of one process, on 1, 2, 3 and 4 ranks.

# %% [markdown] tags=["slide"]
# ## Discuss
#
# A model fits on a machine with eight GPUs only when its matrices are split eight ways. You get a second machine, over an ordinary
# network. Vote, talk to your neighbour, vote again: (a) split the matrices sixteen ways; (b) split them eight ways on each
# machine, and give each machine half of the batch.
#
# <details><summary>What to listen for</summary>(b), unless the batch cannot be halved. In (a) every pair of layers sends its sums over the
# slow network while all GPUs wait. In (b) that network carries the gradients of the weights, once per step. Two pipeline stages, one per
# machine, are also good.</details>

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more", "slide"]
# ## More
#
# ### Train
#
# With the gradients of section 4, the two layers can learn to multiply the two coordinates of a point.


# %%
# %%px
def train(team):
    """Train both layers on `team`; return the loss of every step."""
    up, down, _ = shards(team)
    losses = []
    for _ in range(301):
        y, _, d_up, d_down = mlp_step(team, points, up, down, target)
        losses.append(((y - target) ** 2).sum() / (2 * len(points)))
        up -= 0.3 * d_up
        down -= 0.3 * d_down
    return losses


alone, split = train(MPI.COMM_SELF), train(comm)

# %%
for step in (0, 50, 100, 300):
    one, four = cluster["alone"][0][step], cluster["split"][0][step]
    print(f"step {step:3}: loss in one process {one:.6f}, on four ranks {four:.6f}")

# %% [markdown]
# `train` never sends a weight or the gradient of a weight. Each rank updates its shard by itself.

# %% [markdown] tags=["slide"]
# ### From two layers to a Transformer
#
# First back to the product of section 1.

# %% tags=["exercise: 09.2"]

# %% [markdown]
# Now the layers of the library. All ranks enter a column-parallel layer with the same `x`. Forward, nothing is sent there; backward, the
# gradients of `x` are summed. Megatron-LM, where these layers come from, calls this operation *f*; here it is `copy_to`:

# %% tags=["source: course_lib.comm.regions:_CopyTo"]
# %%px

# %% [markdown]
# Its counterpart *g*, `reduce_from`, sums forward and passes the gradient on unchanged. A column-parallel layer begins with *f*, and a
# row-parallel layer ends with *g*. PyTorch stores a layer's matrix transposed, so our columns are dimension 0 of `weight`. `cut` copies this
# rank's shard.

# %% tags=["source: course_lib.parallel.tensor_parallel:ColumnLinear"]
# %%px

# %% tags=["source: course_lib.parallel.tensor_parallel:RowLinear"]
# %%px

# %% [markdown]
# The bias of the row-parallel layer is added after the sum; before it, four ranks would add it four times.

# %% tags=["exercise: 09.q2"]

# %% [markdown]
# Now check your answer. `copy_to` does nothing forward and is easily forgotten. Without it, the all-reduce of the backward pass is missing. We
# compare the output and all gradients with the full pair.


# %%
# %%px
from course_lib.comm.regions import shard_of


def compare(name, enter):
    """Print whether y and the gradients of x, A and B equal those of the full pair."""
    first, second = ColumnLinear(comm, whole.up, enter=enter), RowLinear(comm, whole.down)
    y, full_y = second(torch.nn.functional.gelu(first(x))), whole(x)
    got = torch.autograd.grad(y.square().sum(), [x, first.weight, second.weight])
    full = torch.autograd.grad(full_y.square().sum(), [x, whole.up.weight, whole.down.weight])
    full = full_y, full[0], shard_of(comm, full[1], 0), shard_of(comm, full[2], 1)
    same = [torch.allclose(a, b, atol=1e-10) for a, b in zip((y, *got), full, strict=True)]
    if rank == 0:
        print(f"{name}: y {same[0]}, gradients of x {same[1]}, A {same[2]}, B {same[3]}")


compare("with copy_to   ", copy_to)
compare("without copy_to", lambda comm, x: x)

# %% tags=["exercise: 09.q3"]

# %% [markdown]
# **Heads.** In attention, each position of a text mixes in what it finds at earlier positions. Several heads do this side by side, and a head
# needs nothing from the others. So each rank gets complete heads. Query, key and value become one column-parallel layer that is split
# between heads; the projection after them is row-parallel. So attention, too, is a column-parallel layer followed by a row-parallel one. Here
# are six heads on four ranks:

# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelBlock
from course_lib.training.transformer import build_transformer

model = build_transformer(vocabulary=37, length=12, width=48, heads=6, layers=2, seed=0).double()
counting = Counting(comm)
block = ParallelBlock(counting, model.blocks[0], sequence=False)
heads = len(block.attention.qkv.weight) // (3 * block.attention.head_width)

# %% tags=["nbval-ignore-output"]
from course.lessons.shared.figures.shares import owner_map

owner_map([rank for rank, heads in enumerate(cluster["heads"]) for _ in range(heads)], what="head")

# %% [markdown]
# A Transformer's block is attention followed by a pair as in section 2. We take one forward and backward.

# %%
predict("All-reduces in one block, forward and backward together?", None)

# %%
# %%px
hidden = torch.randn(2, 12, 48, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
block(hidden).square().sum().backward()
calls = counting.count

# %%
why = "The block has two pairs, and each pair needs one in each direction."
outcome(
    "All-reduces in one block, forward and backward together?",
    cluster["calls"][0],
    word="counted",
    because=why,
)

# %% [markdown]
# **The vocabulary.** A language model begins with a table that has one row per token of the vocabulary. Each rank holds some rows. It looks up
# the tokens it has and takes zeros for the others, so the sum over the ranks is the result.

# %% tags=["source: course_lib.parallel.tensor_parallel:VocabularyEmbedding"]
# %%px

# %%
# %%px
tokens = torch.randint(0, 37, (2, 13), generator=torch.manual_seed(2))
table = model.embedding.token
found = torch.allclose(VocabularyEmbedding(comm, table)(tokens), table(tokens))
print(f"rank {rank} holds tokens {VocabularyEmbedding(comm, table).mine}; same vectors: {found}")

# %% [markdown]
# The model ends with **logits**: for every position, one number per token of the vocabulary. With the vocabulary of a large model,
# tens of thousands of tokens, they are often the largest tensor. With a column-parallel layer each rank holds some of them. Do not gather
# them! The loss of a position needs only two sums.

# %% tags=["exercise: 09.3"]

# %% [markdown]
# (The library first subtracts the largest logit, so that no exponential overflows, and sums the two numbers one by one: three all-reduces.)
#
# Now everything is split: table, heads, pairs and logits. We train on one process and on four ranks. All ranks see the *same* tokens.


# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelTransformer, vocabulary_cross_entropy


def train_transformer(team, sequence=False):
    """Thirty steps on the same tokens: their losses, and how many weights this rank holds."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    optimizer, losses = torch.optim.SGD(shard.parameters(), lr=0.5), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = vocabulary_cross_entropy(team, shard(tokens[:, :-1]), tokens[:, 1:], 37).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(parameter.numel() for parameter in shard.parameters())


alone, weights = train_transformer(MPI.COMM_SELF)
losses, held = train_transformer(comm)

# %%
for step in (0, 1, 2, 9, 29):
    one, four = cluster["alone"][0][step], cluster["losses"][0][step]
    print(f"step {step:2}: loss in one process {one:.6f}, on four ranks {four:.6f}")
held = cluster["held"]
print(f"weights in one process: {cluster['weights'][0]}; on each rank: {held}, together {sum(held)}")

# %% [markdown]
# Each rank holds about a quarter: ranks with two heads hold more than that, and ranks with one head hold less. Together the ranks hold more
# weights than one process, because every rank has all norms, all positions and all biases of row-parallel layers.

# %% [markdown] tags=["slide"]
# ### Split the sequence, too
#
# Weights are not all that fills the memory. A forward pass keeps activations for the backward pass. Tensor parallelism splits them inside a
# pair. Between the pairs, at the norms and additions, every rank keeps all of them. `kept_bytes` counts what autograd keeps.

# %%
predict("What percent of one process's activations does a tensor-parallel rank keep at most?", None)

# %%
# %%px
from course_lib.training.kept import kept_bytes


def kept(team, sequence=False):
    """Bytes that a forward pass of this rank's shard keeps."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    return kept_bytes(shard, lambda: shard(tokens[:, :-1]))


bytes_kept = {
    "one process": kept(MPI.COMM_SELF),
    "tensor parallel": kept(comm),
    "tensor and sequence parallel": kept(comm, sequence=True),
}

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import kept_bars

ways = ("one process", "tensor parallel", "tensor and sequence parallel")
most = {way: max(kept[way] for kept in cluster["bytes_kept"]) for way in ways}
outcome(
    "What percent of one process's activations does a tensor-parallel rank keep at most?",
    100 * most["tensor parallel"] / most["one process"],
    "%",
    word="counted",
    because="What lies between the pairs is on every rank.",
)
kept_bars(most, ranks=4)

# %% [markdown]
# The last bar is **sequence parallelism**: between the pairs, each rank keeps only some *positions* of the sequence. An all-gather leads
# into a pair and a reduce-scatter leads out of it. From lesson 04 you know that these are the two halves of an all-reduce, so forward the bytes
# are the same. The gathered input is not kept, so the backward pass gathers it once more. Are the losses still the same?

# %%
# %%px
in_sequence, _ = train_transformer(comm, sequence=True)
largest = max(abs(a - b) for a, b in zip(in_sequence, alone, strict=True))

# %%
print("all 30 losses equal those of one process, to 1e-8:", cluster["largest"][0] < 1e-8)

# %% [markdown] tags=["slide"]
# ### The same in PyTorch
#
# PyTorch's **DTensor** is a tensor that knows its layout on the ranks: `Shard(0)`, `Shard(1)`, `Replicate()`, or `Partial()`, a part of a
# sum. A plan names the layers to split, and DTensor derives from the layouts what has to be sent. Our pair:

# %% tags=["source: course_lib.parallel.dtensor_parallel:dtensor_feed_forward"]
# %%px

# %%
# %%px --timeout 120
import copy

from torch.distributed.device_mesh import init_device_mesh

from course_lib.parallel.ddp import end_group, start_group

start_group(comm, "mpi4py")
mesh = init_device_mesh("cpu", (size,))
theirs = dtensor_feed_forward(mesh, copy.deepcopy(whole))
layouts = [str(layer.weight.placements[0]) for layer in (theirs.up, theirs.down)]
gradient = torch.autograd.grad(theirs(x).square().sum(), x)[0]
expected = torch.autograd.grad(whole(x).square().sum(), x)[0]
print(f"rank {rank}: {layouts}, gradient of x as in one process: {torch.allclose(gradient, expected)}")
end_group()

# %% [markdown]
# `S(0)` is short for `Shard(0)`. PyTorch stores A and B transposed, so `S(0)` of `up` means columns of A, and `S(1)` of `down` means rows
# of B: the same splits as ours.
#
# Now we time a step of both: ours on MPI, and DTensor on the backend "mpi4py", which is MPI too. Both split the same Transformer, over
# one rank per core; the other ranks sit out.

# %%
predict("How many times as long as ours does DTensor's step take?", None)

# %%
# %%px --timeout 120
from course_lib.comm.timing import one_rank_per_core, seconds_of_each
from course_lib.parallel.dtensor_parallel import collectives_of, dtensor_loss_backward, dtensor_transformer

team = one_rank_per_core(comm)
words = torch.randint(0, 240, (4, 65), generator=torch.manual_seed(3))
larger = build_transformer(vocabulary=240, width=192, heads=12, length=64, layers=2, seed=0)


def our_step():
    """Forward and backward of our shard."""
    vocabulary_cross_entropy(meeting, ours(words[:, :-1]), words[:, 1:], 240).mean().backward()


def their_step():
    """The same by DTensor."""
    dtensor_loss_backward(theirs(words[:, :-1]), words[:, 1:])


# %% [markdown]
# First one step of each to warm up, in which we count the collectives. Then we alternate between the two, 15 steps each.

# %%
# %%px --timeout 120
seconds = meetings = None
if team != MPI.COMM_NULL:
    start_group(team, "mpi4py")
    meeting = Counting(team)
    ours = ParallelTransformer(meeting, larger)
    theirs = dtensor_transformer(init_device_mesh("cpu", (team.size,)), copy.deepcopy(larger))
    our_step()
    meetings = meeting.count, collectives_of(their_step)
    steps = our_step, their_step
    seconds = np.median([[seconds_of_each(team, step, 1)[0] for step in steps] for _ in range(15)], axis=0)
    end_group()

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.beside_dtensor import explain_dtensor, reference_table

(ours, theirs), (our_calls, their_calls) = cluster["seconds"][0], cluster["meetings"][0]
why = explain_dtensor(theirs / ours, our_calls, their_calls)
outcome("How many times as long as ours does DTensor's step take?", theirs / ours, because=why)
print(f"medians: ours {1e3 * ours:.1f} ms, DTensor {1e3 * theirs:.1f} ms, both over MPI")
print(reference_table())

# %% [markdown]
# The table is from the reference machine (lesson 02), with a wider model and a step of the optimizer. DTensor works for many models and
# layouts. For that, it looks up at every operation what the layouts mean. That cost is the same for a small and a large tensor, so it weighs
# most in small models.

# %% [markdown] tags=["slide"]
# ### Channels, long texts, experts
#
# **Channels.** A convolution is a linear layer in its channels. Split the first of two by the channels that come out and the second by those
# that go in, and you have a pair:

# %%
# %%px
from course_lib.parallel.tensor_parallel import ColumnConv, RowConv

torch.manual_seed(4)
first, second = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Conv2d(6, 4, 3, padding=1)
images, counting = torch.randn(2, 3, 8, 8), Counting(comm)
ours = RowConv(counting, second)(torch.relu(ColumnConv(counting, first)(images)))
close = torch.allclose(ours, second(torch.relu(first(images))), atol=1e-5)
print(f"rank {rank}: same images: {close}, all-reduces forward: {counting.count}")

# %% [markdown]
# The all-reduce sums images of all four output channels. For large images that is much, and lesson 10 splits the images instead.
#
# **Long texts.** If a text is so long that even one head's attention does not fit, we split the sequence inside attention, too. In
# **context parallelism** each rank keeps its own queries, and the keys and values go round a ring (*ring attention*). A rank sees one block of
# keys at a time, so it has to add up its softmax block by block:

# %% tags=["source: course_lib.parallel.context_parallel:add_block"]
# %%px

# %% tags=["source: course_lib.parallel.context_parallel:ring_attention"]
# %%px

# %% [markdown]
# A text of ten positions on four ranks, with every rank's sends counted:

# %%
# %%px
from course_lib.comm.counting import counted
from course_lib.theory.partition import even_range

counting = counted(comm)
query, key, value = torch.randn(3, 1, 2, 10, 4, dtype=torch.float64, generator=torch.manual_seed(5))
mine = even_range(10, size, rank)
part = slice(mine.start, mine.stop)
mixed = ring_attention(counting, query[..., part, :], key[..., part, :], value[..., part, :])
full = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
right, sent = torch.allclose(mixed, full[..., part, :]), counting.sent.nbytes
print(f"rank {rank}: positions {mine}, as full attention: {right}, bytes sent: {sent}")

# %% [markdown]
# Rank 0 sends its own three positions, then the two of rank 3, then the two of rank 2. Each has a key and a value of 4 numbers in 2 heads, 8
# bytes per number: 7 · 2 · 4 · 2 · 8 = 896 bytes. The block of rank 1 comes last, and rank 0 does not send it on.
#
# **Experts.** In a mixture of experts, a router chooses one of several networks for each token. In **expert parallelism** the experts live on
# different ranks: an all-to-all takes each token to its expert, a second one brings the answers back. Nobody knows in advance how many tokens
# will arrive, so the ranks first exchange the counts.

# %% tags=["source: course_lib.parallel.expert_parallel:ask_all_ranks"]
# %%px

# %% [markdown]
# Each answer is multiplied by the probability that the router gave, so the router has a gradient and learns, too.

# %% tags=["source: course_lib.parallel.expert_parallel:ParallelMixture"]
# %%px

# %%
# %%px
from course_lib.parallel.expert_parallel import Mixture

torch.manual_seed(1)
mixture = Mixture(4, [torch.nn.Linear(4, 4) for _ in range(4)])  # in one process
everybody, mine = torch.randn(12, 4), slice(3 * rank, 3 * rank + 3)
chosen = mixture.router(everybody[mine]).argmax(1).tolist()
same = torch.allclose(ParallelMixture(comm, mixture)(everybody[mine]), mixture(everybody)[mine], atol=1e-6)
print(f"rank {rank}: its tokens chose experts {chosen}, answers as in one process: {same}")

# %% [markdown]
# Count how often each expert was chosen: the ranks get unequal work. Training therefore often adds a loss that rewards an even choice.

# %% [markdown]
# ## On GPUs
#
# On GPUs, products are far faster than here, but messages between machines are not. So tensor parallelism usually stays inside one machine,
# on its fast links, often with two to eight GPUs. The same DTensor plan runs with `init_device_mesh("cuda", …)`.

# %% [markdown]
# ## Pitfalls
#
# - Gathering after every column-parallel layer: right, slow, and not needed.
# - Adding a row-parallel layer's bias on every rank before the sum.
# - Forgetting the sum of the backward pass: the first loss is right, and the layers before learn something else.
# - Splitting a head between two ranks, or using more ranks than heads.
# - Gathering the logits only to compute a loss.

# %% [markdown]
# ## References
#
# - M. Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019: columns, rows, f and g.
# - F. Kolly, *Data Parallelism in PyTorch*, 2022: the product of section 1. Exercise 09.2 tests one of its sentences.
# - V. Korthikanti and others, [Reducing activation recomputation in large Transformer
#   models](https://arxiv.org/abs/2205.05198), 2022: sequence parallelism.
# - N. Dryden and others, [Channel and filter parallelism for large-scale CNN
#   training](https://doi.org/10.1145/3295500.3356207), 2019: convolutions.
# - H. Liu, M. Zaharia and P. Abbeel, [Ring attention](https://arxiv.org/abs/2310.01889), 2023.
# - W. Fedus, B. Zoph and N. Shazeer, [Switch Transformers](https://arxiv.org/abs/2101.03961), 2022: one expert per token.
# - PyTorch, [Tensor parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html): plans.

# %% [markdown]
# ## Stretch
#
# In `mlp_step` the gradient of `x` is summed, and the gradient of A does not need that sum. Compute the gradient of `x` first, start its sum
# with `Iallreduce`, compute the gradient of A meanwhile, and then wait. When can that be faster, and when not?
