# %% [markdown]
# # 09 · Tensor parallelism
#
# *Cut the matrices of a network, so that all ranks work on the same batch, and find the two places where they must meet.*
#
# | | |
# |---|---|
# | **You will be able to** | cut a linear layer by columns or by rows, and say which of the two needs a sum; place the two all-reduces of a pair of layers; distribute attention heads and a vocabulary over ranks; say what cutting the sequence saves; find the same cuts in PyTorch's DTensor |
# | **Before this** | [04 · Collectives](04_collectives.ipynb), [06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb) |
# | **Time** | core 20 min · more 49 min |
# | **Ranks** | 4 |
#
# [← 08 · Pipeline parallelism](08_pipeline_parallelism.ipynb) · [Course map](00_start_here.ipynb#6-·-The-course) · [10 · Spatial and hybrid →](10_spatial_and_hybrid.ipynb)

# %% [markdown]
# ## Warm-up
#
# Answer from memory, then open the answer.
#
# 1. Four ranks sum 100 MB by an all-reduce. How much does each of them send, if the algorithm is a good one?
#    <details><summary>Answer</summary>150 MB: 2(n−1)/n arrays. A reduce-scatter sends half of it, an all-gather the other half.</details>
# 2. In data parallelism, what does every rank have whole, and what has been cut?
#    <details><summary>Answer</summary>Whole: the network. Cut: the batch.</details>
# 3. Which test says that training on four ranks is right?
#    <details><summary>Answer</summary>It ends with the weights that one process has, to rounding.</details>

# %% [markdown]
# ## Setup

# %% tags=["nbval-ignore-output"]
from mpi_classroom.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --setup
import numpy as np
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

# %% [markdown]
# ## 1 · A layer, cut in two ways
#
# A linear layer is a product, `y = x @ A`. If the matrix is too large for one rank, cut it: by **columns**, or by
# **rows**. We take a vector and a matrix in which one can see whose numbers are whose. By columns, each rank takes
# all of `x` and one column of `A`:

# %%
# %%px
x = np.array([1000, 100, 10, 1])
A = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [1, 1, 1, 1], [2, 2, 2, 2]])
print(f"rank {rank} has column {A[:, rank]}: its number is {x @ A[:, rank]}")

# %% [markdown]
# Each rank has one number of `y`, and it is complete: 1512, 2612, 3712, 4812. By rows, each takes one row of `A`, and
# needs only the number of `x` that this row meets:

# %%
# %%px
part = x[rank] * A[rank]
print(f"rank {rank} has row {A[rank]}: its part is {part}")

# %% [markdown]
# Now each rank has four numbers, and none is complete. They are parts of a sum:

# %%
# %%px
y = np.zeros_like(part)
comm.Allreduce(part, y)
if rank == 0:
    print(y)

# %% [markdown]
# | | what goes in | what comes out | to send |
# |---|---|---|---|
# | **column layer** | all of x, on every rank | a shard of y | nothing |
# | **row layer** | a shard of x | a part of the sum y | an all-reduce |
#
# (In full they are called column-parallel and row-parallel layers.)
#
# ## 2 · Two layers, one sum
#
# Networks come in pairs: a wide layer, a function such as GeLU for each number, and a layer back. What if the first is
# a column layer and the second a row layer? To find out what is sent, we need a communicator that
# counts.


# %%
# %%px
class Counting(MPI.Intracomm):
    """A communicator that counts its all-reduces."""

    count = 0

    def Allreduce(self, *arguments):
        self.count += 1
        super().Allreduce(*arguments)


# %% [markdown]
# Now a pair of width 8, with 32 hidden numbers: eight on each rank. All ranks draw the same weights and the same `x`, for
# they have the same seed.

# %%
predict("All-reduces on the way forward through both layers?", None)

# %%
# %%px
from course_lib.parallel.tensor_parallel import parallel_feed_forward
from course_lib.training.transformer import FeedForward

torch.manual_seed(0)
whole, counting = FeedForward(8).double(), Counting(comm)
x = torch.randn(5, 8, dtype=torch.float64).requires_grad_()
pair = parallel_feed_forward(counting, whole)  # this rank's shard of both layers
y = pair(x)
forward = counting.count

# %%
why = "The columns that a rank has are the inputs of its rows."
outcome(
    "All-reduces on the way forward through both layers?", cluster["forward"][0], word="counted", because=why
)

# %% [markdown]
# Between the layers nobody sends anything. GeLU looks at one number at a time, so a rank can apply it to its own columns:
# they are complete. The other way round it would be wrong: after a row layer a rank has *parts* of numbers, and
# GeLU of a part is no part of GeLU.
#
# ## 3 · The way back
#
# Gradients go through the same layers, from right to left. Every rank has all of y's gradient, so each computes that of
# its rows of B, and of its columns of A. And the gradient of `x`? All columns have used `x`, and each rank
# knows only what *its* columns did with it: parts of a sum again.

# %%
# %%px
y.square().sum().backward()
backward, columns = counting.count - forward, len(pair[0].weight)

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import cut_layers

cut_layers(cluster["columns"], forward=cluster["forward"][0], backward=cluster["backward"][0])

# %% tags=["exercise: 09.1"]

# %% [markdown]
# ## 4 · The test that matters
#
# **1, 2, 3 and 4 ranks must get the same results and the same gradients.** The hidden layer has 32 numbers; three ranks
# take 11, 11 and 10 of them. We compare the gradient of `x`: what comes out of the end of the way back.

# %%
# %%px
expected = torch.autograd.grad(whole(x).square().sum(), x)[0]
for n in (1, 2, 3, 4):
    team = comm.Split(0 if rank < n else MPI.UNDEFINED, rank)
    if rank < n:
        got = torch.autograd.grad(parallel_feed_forward(team, whole)(x).square().sum(), x)[0]
        if rank == 0:
            print(f"on {n}, the gradient of the whole: {torch.allclose(got, expected, atol=1e-10)}")

# %% tags=["exercise: 09.q1"]

# %% [markdown]
# ## Key points
#
# - By columns: the input whole, the output a shard, nothing to send. By rows: the input a shard, the output a part of a
#   sum.
# - A pair, column then row, costs one all-reduce forward and one backward. Attention and the two layers after it are such
#   pairs: four sums a block and step.
# - A function of single numbers may follow a column layer. After a row layer, sum first.
# - All ranks work on the same tokens; the weights are cut, the activations between the pairs are not.
# - Sequence parallelism replaces an all-reduce by its two halves, and gathers once more on the way back: less memory for
#   half an all-reduce.

# %% [markdown]
# ## Discuss
#
# A model fits on a machine with eight GPUs only when it is cut eight times. You get a second machine, joined by an
# ordinary network. Vote, talk to your neighbour for two minutes, vote again: (a) cut the matrices sixteen times; (b) cut
# them eight times on each machine, and give each machine half of the batch; (c) it depends on the batch.
#
# <details><summary>What to listen for</summary>(b), nearly always: sixteen-fold cuts would send every block's sums over
# the slow network, while the layers wait. In (b) that network carries one sum of gradients per step. (c) has a point: with a
# batch of one there is nothing to halve.</details>

# %% [markdown]
# **Stop here in a short workshop.** More cuts everything else in a Transformer: attention, the vocabulary, the sequence;
# and looks at PyTorch's version.

# %% [markdown] tags=["more"]
# ## More
#
# ### Three questions
#
# Write your letter between the quotes, and run the cell.

# %% tags=["exercise: 09.q2"]

# %% tags=["exercise: 09.q3"]

# %% [markdown]
# ### The layers, and where ranks meet
#
# A sum forward needs nothing backward, and a copy forward needs a sum backward. Megatron-LM, where this comes from, calls
# the two *g* and *f*; here they are `reduce_from` and `copy_to`. This is all that `copy_to` does:

# %% tags=["source: course_lib.comm.regions:_CopyTo"]
# %%px

# %% [markdown]
# Forward it does nothing, so it is easily forgotten. Each layer has one of the two at its edge:

# %% tags=["source: course_lib.parallel.tensor_parallel:ColumnLinear"]
# %%px

# %% tags=["source: course_lib.parallel.tensor_parallel:RowLinear"]
# %%px

# %% [markdown]
# (`cut` copies this rank's shard of a whole matrix. PyTorch keeps a layer's matrix transposed, so our columns are dimension
# 0 of `weight`.) Now leave `copy_to` out, and compare with the whole pair:


# %%
# %%px
def compare(name, enter):
    """Run our pair, and say what of it is that of the whole pair."""
    pair = torch.nn.Sequential(
        ColumnLinear(comm, whole.up, enter=enter), torch.nn.GELU(), RowLinear(comm, whole.down)
    )
    y = pair(x)
    gradient = torch.autograd.grad(y.square().sum(), x)[0]
    same = [torch.allclose(a, b, atol=1e-10) for a, b in ((y, whole(x)), (gradient, expected))]
    if rank == 0:
        print(f"{name}: y is right: {same[0]}, the gradient of x is right: {same[1]}")


compare("with copy_to   ", copy_to)
compare("without copy_to", lambda comm, x: x)

# %% tags=["exercise: 09.2"]

# %% [markdown]
# ### Attention: whole heads
#
# Attention has **heads** that know nothing of each other. Give each rank some of them: query, key and value are column
# layers (here one layer, head by head), cut at the borders of heads, and the projection after them is a row layer. That
# is a pair again. Six heads on four ranks:

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
# A block of a Transformer is attention, then the two layers of section 2. A step goes through it forward and backward.

# %%
predict("All-reduces in a step through one block, forward and backward?", None)

# %%
# %%px
hidden = torch.randn(2, 12, 48, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
block(hidden).square().sum().backward()
calls, numbers = counting.count, hidden.numel()

# %%
why = "Two pairs, and one each way for a pair."
outcome(
    "All-reduces in a step through one block, forward and backward?",
    cluster["calls"][0],
    word="counted",
    because=why,
)

# %% [markdown]
# Each of them sums as many numbers as there are tokens times the width, *in the middle of computing*: nothing can go on
# before it is done. In data parallelism there is one sum per step, and it can hide behind the backward pass. So tensor
# parallelism wants its ranks close together.

# %% [markdown]
# ### The vocabulary
#
# At both ends of a language model stands a matrix as long as the vocabulary. The first is a table: each rank looks up the
# tokens that it has, and the sum over the ranks does the rest.

# %% tags=["source: course_lib.parallel.tensor_parallel:VocabularyEmbedding"]
# %%px

# %%
# %%px
tokens = torch.randint(0, 37, (2, 13), generator=torch.manual_seed(2))
whole_table = model.embedding.token
found = torch.allclose(VocabularyEmbedding(comm, whole_table)(tokens), whole_table(tokens))
print(f"rank {rank} has tokens {VocabularyEmbedding(comm, whole_table).mine}; same vectors: {found}")

# %% [markdown]
# The last layer makes **logits**, a number for every word of the vocabulary, and they are the largest tensor of all. With
# a column layer each rank has some of them. Do not gather them! The loss needs only two numbers for each token: the
# sum of all exponentials, and the logit of the word that was right.

# %% tags=["exercise: 09.3"]

# %% [markdown]
# (The library also takes away the largest logit first, so that no exponential overflows: a third all-reduce.)

# %% [markdown]
# ### A whole Transformer
#
# Now everything is cut: embedding, attention, the two layers, the head. Three steps on four ranks, and three in one
# process; all ranks see the *same* tokens.


# %%
# %%px
from course_lib.parallel.tensor_parallel import ParallelTransformer, vocabulary_cross_entropy


def three_steps(team, sequence=False):
    """The losses of three steps on the same tokens, and this rank's shard of the model."""
    shard = ParallelTransformer(team, model, sequence=sequence)
    optimizer, losses = torch.optim.SGD(shard.parameters(), lr=0.5), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = vocabulary_cross_entropy(team, shard(tokens[:, :-1]), tokens[:, 1:], 37).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, shard


# %%
# %%px
alone, one = three_steps(MPI.COMM_SELF)
losses, shard = three_steps(comm)
weights = [sum(p.numel() for p in net.parameters()) for net in (one, shard)]

# %%
for step, (one, four) in enumerate(zip(cluster["alone"][0], cluster["losses"][0], strict=True)):
    print(f"step {step}: loss in one process {one:.8f}, on four ranks {four:.8f}")
print(
    "numbers in the model and in the ranks' shards:",
    cluster["weights"][0][0],
    [w[1] for w in cluster["weights"]],
)

# %% [markdown]
# A shard is a little more than a quarter: norms, positions and the biases of row layers are small, and on every rank. The
# ranks with two heads have more than those with one.

# %% [markdown]
# ### Cut the sequence, too
#
# Weights are not all that memory holds. A forward pass keeps **activations** for the way back, and between the pairs every
# rank has all of them: norms and sums of the same numbers, four times. `kept_bytes` counts what autograd keeps. How much
# of one process's activations does a rank of four keep?

# %%
predict("Percent of the activations that one of four ranks keeps?", None)

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
    "with sequence": kept(comm, sequence=True),
}

# %% tags=["nbval-ignore-output"]
from course.lessons.l09_tensor_parallelism.figures import kept_bars

most = {name: max(kept[name] for kept in cluster["bytes_kept"]) for name in cluster["bytes_kept"][0]}
outcome(
    "Percent of the activations that one of four ranks keeps?",
    100 * most["tensor parallel"] / most["one process"],
    "%",
    word="counted",
    because="What lies between the pairs is not cut.",
)
kept_bars(most, ranks=4)

# %% [markdown]
# **Sequence parallelism** cuts what lies between the pairs, too: each rank has some of the *positions*. A pair is then
# entered by an all-gather and left by a reduce-scatter. You know from lesson 04 that these are the two halves of an
# all-reduce: the same bytes. What was gathered is not kept, though, so on the way back it is gathered once more. And the
# losses?

# %%
# %%px
in_sequence, _ = three_steps(comm, sequence=True)
same = bool(np.allclose(in_sequence, alone, atol=1e-10))

# %%
print("with the sequence cut, the losses are the same:", cluster["same"][0])

# %% [markdown]
# ### The same in PyTorch
#
# PyTorch's **DTensor** is a tensor that knows how it lies on the ranks: `Shard(0)`, `Shard(1)`, `Replicate()`, or
# `Partial()`, a part of a sum. A plan names the layers to cut; what has to be sent follows from the layouts. Our pair:

# %% tags=["source: course_lib.parallel.dtensor_parallel:dtensor_feed_forward"]
# %%px

# %%
# %%px --timeout 120
import copy

from torch.distributed.device_mesh import init_device_mesh

from course_lib.parallel.ddp import start_group

start_group(comm, "gloo")
mesh = init_device_mesh("cpu", (size,))
theirs = dtensor_feed_forward(mesh, copy.deepcopy(whole))
gradient = torch.autograd.grad(theirs(x).square().sum(), x)[0]
layouts = [str(layer.weight.placements[0]) for layer in (theirs.up, theirs.down)]
print(f"rank {rank}: {layouts}, the gradient of the whole: {torch.allclose(gradient, expected)}")

# %% [markdown]
# `S(0)` is `Shard(0)`, and of a transposed matrix that means columns. DTensor cuts in the same places, and looks up at every operation what
# the layouts mean. Which step is shorter, on as many ranks as you have cores?

# %%
predict("How many times as long does DTensor's step take?", None)

# %%
# %%px --timeout 120
import torch.distributed as dist

from course_lib.comm.timing import one_rank_per_core, seconds_on
from course_lib.parallel.dtensor_parallel import dtensor_loss_backward, dtensor_transformer

dist.destroy_process_group()
team = one_rank_per_core(comm)
words = torch.randint(0, 256, (4, 65), generator=torch.manual_seed(3))
larger = build_transformer(width=128, heads=4, length=64, layers=2, seed=0)


def our_step():
    """Forward and backward of our shard."""
    losses = vocabulary_cross_entropy(team, ours(words[:, :-1]), words[:, 1:], 256)
    losses.mean().backward()


# %% [markdown]
# Both are cut from the same model, and take steps in turn; the ranks that are left out return at once.

# %%
# %%px --timeout 120
our_seconds = dtensor_seconds = None
if team != MPI.COMM_NULL:
    start_group(team, "gloo")
    ours, mesh = ParallelTransformer(team, larger), init_device_mesh("cpu", (team.size,))
    theirs = dtensor_transformer(mesh, copy.deepcopy(larger))
    our_seconds = seconds_on(team, our_step, repetitions=10)
    dtensor_seconds = seconds_on(
        team, lambda: dtensor_loss_backward(theirs(words[:, :-1]), words[:, 1:]), repetitions=10
    )
    dist.destroy_process_group()

# %% tags=["nbval-ignore-output"]
ours, theirs = cluster["our_seconds"][0], cluster["dtensor_seconds"][0]
why = (
    "Same cuts, same products; the rest is what sends, and the bookkeeping."
    if theirs > ours
    else ("The products take the most, and they are the same; is the machine busy?")
)
outcome("How many times as long does DTensor's step take?", theirs / ours, because=why)
print(f"ours {1e3 * ours:.0f} ms, DTensor over Gloo {1e3 * theirs:.0f} ms (measured)")

# %% [markdown]
# A small model shows the bookkeeping; in a large one the products outweigh it. The course's benchmark, `python -m
# benchmarks.tensor_parallel`, takes a width of 512. On the **reference machine**, two ranks on two cores:

# %% tags=["nbval-ignore-output"]
import json

from course.paths import ROOT

results = ROOT / "benchmarks" / "results" / "tensor_parallel.json"
for row in json.loads(results.read_text()) if results.exists() else []:
    print(f"{row['case'][:46]:46} {row['ours']:6.0f} ms     {row['peer_name']} {row['peer']:6.0f} ms")
print("measured there" if results.exists() else "not measured yet")

# %% [markdown]
# ### Channels of a convolution
#
# A convolution is a linear layer in its channels. Cut the first by the channels that come out, the second by those that
# go in, and you have a pair, with the same two sums:

# %%
# %%px
from course_lib.parallel.tensor_parallel import ColumnConv, RowConv

first, second = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Conv2d(6, 4, 3, padding=1)
for layer in (first, second):
    for parameter in layer.parameters():
        comm.Bcast(parameter.detach().numpy())
images = torch.randn(2, 3, 8, 8, generator=torch.manual_seed(4))
counting = Counting(comm)
ours = RowConv(counting, second)(torch.relu(ColumnConv(counting, first)(images)))
close = torch.allclose(ours, second(torch.relu(first(images))), atol=1e-5)
print(f"rank {rank}: same images: {close}, all-reduces forward: {counting.count}")

# %% [markdown]
# Here an all-reduce sums whole images, batch × channels × height × width numbers: for large images that is much.
# Lesson 10 cuts the images instead.

# %% [markdown]
# ### Long texts: keys go round in a ring
#
# If the text is so long that even one head's attention does not fit, cut the sequence for attention, too (*context
# parallelism*). Every rank keeps its queries; the keys and values go round a ring, and each rank adds up its softmax
# piece by piece. Ten positions on four ranks:

# %%
# %%px
from course_lib.parallel.context_parallel import ring_attention
from course_lib.theory.partition import even_range

generator = torch.manual_seed(5)
query, key, value = torch.randn(3, 1, 2, 10, 4, dtype=torch.float64, generator=generator)
mine = even_range(10, size, rank)
part = slice(mine.start, mine.stop)
mixed = ring_attention(comm, query[..., part, :], key[..., part, :], value[..., part, :])
full = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
print(f"rank {rank}: positions {mine}, as full attention: {torch.allclose(mixed, full[..., part, :])}")

# %% [markdown]
# ### Experts: tokens travel
#
# In a *mixture of experts*, a router picks one of several networks for each token. Let the experts live on different
# ranks (*expert parallelism*): an all-to-all takes the tokens there, another one brings the answers back. How many go
# where is known only when the router has spoken.

# %%
# %%px
from course_lib.parallel.expert_parallel import Mixture, ParallelMixture

torch.manual_seed(6)
mixture = Mixture(4, [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
pair_of_ranks = comm.Split(rank // 2, rank)  # ranks 0 and 1, and ranks 2 and 3
everybodys = torch.randn(9, 4)
part = slice(0, 6) if pair_of_ranks.rank == 0 else slice(6, 9)
answers = ParallelMixture(pair_of_ranks, mixture)(everybodys[part])
asked = mixture.router(everybodys[part]).argmax(1).bincount(minlength=2).tolist()
agree = torch.allclose(answers, mixture(everybodys)[part], atol=1e-6)
print(f"rank {rank}: tokens for each expert {asked}, answers of the whole mixture: {agree}")

# %% [markdown]
# ## On GPUs
#
# Products are far faster there, and sums between GPUs are not: tensor parallelism stays inside one machine, on its fast
# links, with four or eight GPUs. The same DTensor plan runs with `init_device_mesh("cuda", …)`.

# %% [markdown]
# ## Pitfalls
#
# - Gathering after every column layer: right, slow, and not needed.
# - Adding a row layer's bias on every rank before the sum.
# - Forgetting the sum on the way back: the loss looks right, and earlier layers learn something else.
# - Heads that are cut in two, or fewer heads than ranks.
# - Gathering the logits only to compute a loss.

# %% [markdown]
# ## References
#
# - M. Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019: column, row, f and g.
# - V. Korthikanti and others, [Reducing activation recomputation in large Transformer
#   models](https://arxiv.org/abs/2205.05198), 2022: the sequence.
# - N. Dryden and others, [Channel and filter parallelism for large-scale CNN
#   training](https://doi.org/10.1145/3295500.3356207), 2019: convolutions.
# - H. Liu, M. Zaharia and P. Abbeel, [Ring attention](https://arxiv.org/abs/2310.01889), 2023: keys that go round.
# - W. Fedus, B. Zoph and N. Shazeer, [Switch Transformers](https://arxiv.org/abs/2101.03961), 2022: one expert a token.
# - PyTorch, [Tensor parallelism](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html): plans.

# %% [markdown]
# ## Stretch
#
# On the way back, the gradient of x is summed, and the gradient of A does not need that sum. Start it with `Iallreduce`,
# compute the gradient of A meanwhile, and wait then. When can that be faster, and when not?

# %% [markdown]
# ## Teardown

# %%
cluster.stop()
