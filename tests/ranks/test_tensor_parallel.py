"""Tensor parallelism, on as many ranks as this session has, held to the layer or model that was cut.

What is expected of a shard comes from the same cut: the whole model's gradients (or its weights after three
steps) are put where its weights were, and cut. Known-wrong variants are kept and have to be told apart.
"""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import (
    all_gather,
    all_gathered,
    copy_to,
    gather_from,
    reduce_from,
    reduce_scatter,
    shard_of,
)
from course_lib.parallel import tensor_parallel
from course_lib.parallel.tensor_parallel import (
    ColumnConv,
    ColumnLinear,
    GatheredColumnLinear,
    ParallelTransformer,
    RowConv,
    RowLinear,
    SequenceNorm,
    VocabularyEmbedding,
    mlp_backward,
    mlp_forward,
    parallel_feed_forward,
    vocabulary_cross_entropy,
)
from course_lib.theory.partition import even_range, even_ranges
from course_lib.training.transformer import FeedForward, Transformer, build_transformer
from tests.ranks.tiled import close, numbers

VOCABULARY = 37  # a prime: no number of ranks above 1 divides it
TOKENS = torch.randint(0, VOCABULARY, (4, 3, 10), generator=torch.Generator().manual_seed(0))
Make = Callable[[nn.Module], nn.Module]


def same(ours: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    assert ours is not None and expected is not None
    return close(ours, expected)


def with_gradients_for_weights(whole: nn.Module) -> nn.Module:
    """A copy of `whole` whose weights are the gradients of `whole`."""
    gradients = copy.deepcopy(whole)
    for mine, parameter in zip(gradients.parameters(), whole.parameters(), strict=True):
        mine.data = parameter.grad.clone()  # type: ignore[union-attr]
    return gradients


def gradients_are_those_of(parallel: nn.Module, whole: nn.Module, make: Make) -> bool:
    expected = make(with_gradients_for_weights(whole))
    pairs = zip(parallel.parameters(), expected.parameters(), strict=True)
    return all(same(mine.grad, gradient) for mine, gradient in pairs)


# ---------------------------------------------------------------- regions


def parts(comm: MPI.Intracomm) -> list[torch.Tensor]:
    """A different (5, 7) matrix for every rank, all known to all."""
    return [numbers(5, 7, seed=rank) for rank in range(comm.size)]


def test_a_branch_entered_by_copy_and_left_by_reduce_is_the_sum_of_all(comm: MPI.Intracomm) -> None:
    x, weights = numbers(5, 7, seed=99).requires_grad_(), parts(comm)
    y = reduce_from(comm, copy_to(comm, x) * weights[comm.rank])
    y.pow(2).sum().backward()
    oracle = x.detach().clone().requires_grad_()
    expected = sum(oracle * weight for weight in weights)
    expected.pow(2).sum().backward()  # type: ignore[union-attr]
    assert same(y, expected)  # type: ignore[arg-type]
    assert same(x.grad, oracle.grad)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_what_is_gathered_is_all_and_its_gradient_is_the_shards(comm: MPI.Intracomm, dim: int) -> None:
    x, weight = numbers(5, 7), numbers(5, 7, seed=1)
    shard = shard_of(comm, x, dim).clone().requires_grad_()
    y = gather_from(comm, shard, dim)
    assert same(y, x)
    (y * weight).sum().backward()
    assert same(shard.grad, shard_of(comm, weight, dim))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_all_gather_and_reduce_scatter_are_each_others_adjoint(comm: MPI.Intracomm, dim: int) -> None:
    x, weights = numbers(5, 7).requires_grad_(), parts(comm)
    shard = shard_of(comm, x, dim)
    mine = reduce_scatter(comm, all_gather(comm, shard, dim) * weights[comm.rank], dim)
    assert same(all_gathered(comm, mine, dim), x.detach() * sum(weights))
    mine.pow(2).sum().backward()  # each rank has its part of the loss
    assert same(shard_of(comm, x.grad, dim), shard_of(comm, 2 * x.detach() * sum(weights) ** 2, dim))  # type: ignore[arg-type]


def test_a_dimension_shorter_than_the_ranks_leaves_some_empty(comm: MPI.Intracomm) -> None:
    x = numbers(1, 3)
    shard = shard_of(comm, x, 0).clone().requires_grad_()
    full = gather_from(comm, shard, 0)
    full.sum().backward()
    assert same(full, x)
    assert same(shard.grad, torch.ones_like(shard))


# ---------------------------------------------------------------- layers


def run(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the gradient of its input, for the loss that is the sum of the squares."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.pow(2).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [8, 7])
def test_a_column_layer_computes_its_columns(comm: MPI.Intracomm, features: int, bias: bool) -> None:
    torch.manual_seed(0)
    whole, x = nn.Linear(6, features, bias=bias).double(), numbers(2, 3, 6)
    make = partial(ColumnLinear, comm)
    parallel = make(whole)
    (y, gradient), (expected, expected_gradient) = run(parallel, x), run(whole, x)
    assert same(y, shard_of(comm, expected, -1))
    assert same(gradient, expected_gradient)
    assert gradients_are_those_of(parallel, whole, make)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [8, 7])
def test_a_row_layer_computes_the_whole(comm: MPI.Intracomm, features: int, bias: bool) -> None:
    torch.manual_seed(0)
    whole, x = nn.Linear(features, 6, bias=bias).double(), numbers(2, 3, features)
    make = partial(RowLinear, comm)
    parallel = make(whole)
    (y, gradient), (expected, expected_gradient) = run(parallel, shard_of(comm, x, -1)), run(whole, x)
    assert same(y, expected)
    assert same(gradient, shard_of(comm, expected_gradient, -1))
    assert gradients_are_those_of(parallel, whole, make)


CONVOLUTIONS = [{}, {"stride": 2}, {"padding": 1, "bias": False}, {"padding": 2, "dilation": 2}]


@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_convolutions_are_cut_by_their_channels(comm: MPI.Intracomm, options: dict[str, int]) -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(5, 7, 3, **options).double(), nn.Conv2d(7, 5, 3, padding=1).double()  # type: ignore[arg-type]
    make: Make = lambda pair: nn.Sequential(ColumnConv(comm, pair[0]), RowConv(comm, pair[1]))  # type: ignore[index]  # noqa: E731
    whole, x = nn.Sequential(first, second), numbers(2, 5, 9, 8)
    parallel = make(whole)
    (y, gradient), (expected, expected_gradient) = run(parallel, x), run(whole, x)
    assert same(y, expected)
    assert same(gradient, expected_gradient)
    assert gradients_are_those_of(parallel, whole, make)


def test_a_grouped_convolution_is_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match="use groups=1"):
        ColumnConv(comm, nn.Conv2d(4, 4, 3, groups=2))


# ---------------------------------------------------------------- a Transformer


def small(heads: int) -> Transformer:
    model = build_transformer(
        vocabulary=VOCABULARY, length=12, width=8 * heads, heads=heads, layers=2, seed=3
    )
    return model.double()


def whole_step(model: Transformer, tokens: torch.Tensor) -> None:
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    (loss / 10).backward()


def parallel_step(model: ParallelTransformer, tokens: torch.Tensor) -> None:
    losses = vocabulary_cross_entropy(model.comm, model(tokens[:, :-1]), tokens[:, 1:], VOCABULARY)
    (losses.sum() / 10).backward()


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("heads", [4, 5])
def test_a_transformer_equals_the_one_it_was_cut_from(
    comm: MPI.Intracomm, heads: int, sequence: bool
) -> None:
    whole = small(heads)
    make: Make = partial(ParallelTransformer, comm, sequence=sequence)  # type: ignore[arg-type]
    parallel = make(whole)
    assert same(parallel(TOKENS[0]), shard_of(comm, whole(TOKENS[0]), -1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (whole, parallel)]
    for tokens in TOKENS[1:]:
        for model, step, optimizer in zip(
            (whole, parallel), (whole_step, parallel_step), optimizers, strict=True
        ):
            optimizer.zero_grad()
            step(model, tokens)  # type: ignore[operator]
        assert gradients_are_those_of(parallel, whole, make)
        for optimizer in optimizers:
            optimizer.step()
    expected = make(whole)
    assert all(
        same(mine, all_) for mine, all_ in zip(parallel.parameters(), expected.parameters(), strict=True)
    )


def test_more_ranks_than_heads_are_refused(comm: MPI.Intracomm) -> None:
    whole = build_transformer(vocabulary=VOCABULARY, length=12, width=8, heads=1, layers=1, seed=0)
    if comm.size == 1:
        ParallelTransformer(comm, whole)
        return
    with pytest.raises(ValueError, match=f"1 heads cannot be distributed over {comm.size} ranks"):
        ParallelTransformer(comm, whole)


# ---------------------------------------------------------------- two all-reduces, and no more


class Counting:
    """A communicator that counts its Allreduces."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.count = comm, 0

    def Allreduce(self, *args: object) -> None:
        self.count += 1
        self.comm.Allreduce(*args)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.comm, name)


@pytest.mark.parametrize("part", ["mlp", "attention"])
def test_a_pair_of_layers_and_attention_cost_one_allreduce_each_way(comm: MPI.Intracomm, part: str) -> None:
    cut = {"mlp": parallel_feed_forward, "attention": tensor_parallel.ParallelAttention}[part]
    counting = Counting(comm)
    parallel = cut(counting, getattr(small(4).blocks[0], part))  # type: ignore[operator]
    y = parallel(numbers(2, 5, 32).requires_grad_())
    assert counting.count == 1
    y.sum().backward()
    assert counting.count == 2


# ---------------------------------------------------------------- known to be wrong


class SummedBackward(RowLinear):
    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        return copy_to(self.comm, super().forward(shard))


def wrong_allreduce_backward(comm: MPI.Intracomm, whole: FeedForward) -> nn.Module:
    """All-reduce where Megatron has the identity: every gradient before it is too large by the ranks."""
    return parallel_feed_forward(comm, whole, row=SummedBackward)


def wrong_bias_on_every_rank(comm: MPI.Intracomm, whole: FeedForward) -> nn.Module:
    """The bias inside the sum: it comes as often as there are ranks."""
    parallel = parallel_feed_forward(comm, whole)
    row = parallel[2]
    row.forward = lambda shard: reduce_from(comm, F.linear(shard, row.weight, row.bias))  # type: ignore[method-assign, operator, arg-type]
    return parallel


WRONG = [
    wrong_allreduce_backward,
    wrong_bias_on_every_rank,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_variants_are_told_apart(comm: MPI.Intracomm, wrong: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    whole, x = FeedForward(8).double(), numbers(2, 3, 8)
    (y, gradient), (expected, expected_gradient) = run(wrong(comm, whole), x), run(whole, x)
    right = comm.allreduce(same(y, expected) and same(gradient, expected_gradient), op=MPI.LAND)
    assert right == (comm.size == 1)


def vocabulary_step(
    comm: MPI.Intracomm, loss: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The losses of some tokens and the gradient of this rank's logits."""
    logits, targets = numbers(3, 9, VOCABULARY), TOKENS[0][:, 1:]
    mine = shard_of(comm, logits, -1).clone().requires_grad_()
    losses = loss(comm, mine, targets, VOCABULARY)
    losses.sum().backward()
    return losses, mine.grad


def vocabulary_oracle(comm: MPI.Intracomm) -> tuple[torch.Tensor, torch.Tensor]:
    logits, targets = numbers(3, 9, VOCABULARY).requires_grad_(), TOKENS[0][:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 9)
    losses.sum().backward()
    assert logits.grad is not None
    return losses, shard_of(comm, logits.grad, -1)


def wrong_softmax_of_a_shard(
    comm: MPI.Intracomm, logits: torch.Tensor, targets: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """Each rank normalises over its own part of the vocabulary."""
    mine = even_range(vocabulary, comm.size, comm.rank)
    here = (targets >= mine.start) & (targets < mine.stop)
    logs = F.log_softmax(logits, dim=-1)
    picked = logs.gather(-1, (targets - mine.start).where(here, 0).unsqueeze(-1)).squeeze(-1)
    return -reduce_from(comm, picked * here)


def wrong_gradient_of_the_sum(
    comm: MPI.Intracomm, logits: torch.Tensor, targets: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """The losses are right; the gradient is too large, for it was summed on its way back."""
    return vocabulary_cross_entropy(comm, copy_to(comm, logits), targets, vocabulary)


def test_the_cross_entropy_of_a_cut_vocabulary_is_that_of_the_whole(comm: MPI.Intracomm) -> None:
    (losses, gradient), expected = vocabulary_step(comm, vocabulary_cross_entropy), vocabulary_oracle(comm)
    assert same(losses, expected[0])
    assert same(gradient, expected[1])


@pytest.mark.parametrize("wrong", [wrong_softmax_of_a_shard, wrong_gradient_of_the_sum])
def test_wrong_cross_entropies_are_told_apart(
    comm: MPI.Intracomm, wrong: Callable[..., torch.Tensor]
) -> None:
    if wrong is wrong_gradient_of_the_sum and VOCABULARY % comm.size:
        return  # shards of different sizes do not even add up
    (losses, gradient), expected = vocabulary_step(comm, wrong), vocabulary_oracle(comm)
    right = comm.allreduce(same(losses, expected[0]) and same(gradient, expected[1]), op=MPI.LAND)
    assert right == (comm.size == 1)


def test_large_logits_do_not_overflow(comm: MPI.Intracomm) -> None:
    logits = torch.zeros(1, 1, VOCABULARY, dtype=torch.float64)
    logits[..., 30] = 2000.0
    targets = torch.tensor([[30]])
    loss = vocabulary_cross_entropy(comm, shard_of(comm, logits, -1), targets, VOCABULARY)
    assert loss.item() == 0.0


def test_a_masked_word_costs_nothing_on_any_rank(comm: MPI.Intracomm) -> None:
    """The first word of every shard has a logit of -inf; no target is one of these."""
    logits = numbers(1, 3, VOCABULARY)
    masked = [part.start for part in even_ranges(VOCABULARY, comm.size)]
    logits[..., masked] = -torch.inf
    targets = torch.tensor([[1, VOCABULARY - 1, next(n for n in range(2, 9) if n not in masked)]])
    losses = vocabulary_cross_entropy(comm, shard_of(comm, logits, -1), targets, VOCABULARY)
    assert same(losses, nn.functional.cross_entropy(logits[0], targets[0], reduction="none")[None])


@pytest.mark.deadline(20)
def test_logits_that_are_wrong_on_one_rank_are_refused_on_all(comm: MPI.Intracomm) -> None:
    """Not on that rank alone: the others would wait for it in an all-reduce."""
    logits = shard_of(comm, numbers(3, 9, VOCABULARY), -1)
    if comm.rank == 0:
        logits = logits[..., 1:]
    with pytest.raises(ValueError, match=f"of a vocabulary of {VOCABULARY}"):
        vocabulary_cross_entropy(comm, logits, TOKENS[0][:, 1:], VOCABULARY)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_refused_as_by_one_process(comm: MPI.Intracomm, token: int) -> None:
    tokens = TOKENS[0].clone()
    tokens[0, 0] = token
    with pytest.raises(IndexError, match=f"token {token} is not one of a vocabulary of {VOCABULARY}"):
        VocabularyEmbedding(comm, nn.Embedding(VOCABULARY, 6))(tokens)
    logits = shard_of(comm, numbers(*tokens.shape, VOCABULARY), -1)
    with pytest.raises(IndexError, match=f"token {token} is not one of a vocabulary of {VOCABULARY}"):
        vocabulary_cross_entropy(comm, logits, tokens, VOCABULARY)


def test_layers_that_share_a_weight_are_refused(comm: MPI.Intracomm) -> None:
    tied, repeated = small(4), small(4)
    tied.head.weight = tied.embedding.token.weight
    repeated.blocks[1] = repeated.blocks[0]
    for whole in (tied, repeated):
        with pytest.raises(ValueError, match=r"share one parameter of shape .* give each layer its own"):
            ParallelTransformer(comm, whole)


@pytest.mark.parametrize("options", [{"padding_idx": 3}, {"max_norm": 1.0}])
def test_an_embedding_with_options_is_refused(comm: MPI.Intracomm, options: dict[str, float]) -> None:
    """They would be lost: with padding_idx, for example, that token's row would be trained."""
    with pytest.raises(ValueError, match="cannot be cut by rows"):
        VocabularyEmbedding(comm, nn.Embedding(VOCABULARY, 6, **options))  # type: ignore[arg-type]


def test_attention_with_some_biases_is_refused(comm: MPI.Intracomm) -> None:
    """One layer for query, key and value has one bias for all of them, or none: a bias would be lost."""
    attention = small(4).blocks[0].attention
    attention.key.register_parameter("bias", None)  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match="only 2 have a bias"):
        tensor_parallel.ParallelAttention(comm, attention)  # type: ignore[arg-type]


def test_attention_without_biases_is_that_of_the_whole(comm: MPI.Intracomm) -> None:
    attention, x = small(4).blocks[0].attention, numbers(2, 5, 32)
    for name in ("query", "key", "value"):
        getattr(attention, name).register_parameter("bias", None)  # type: ignore[operator]
    parallel = tensor_parallel.ParallelAttention(comm, attention)  # type: ignore[arg-type]
    assert same(parallel(x), attention(x))  # type: ignore[operator]


def test_cutting_a_model_leaves_the_random_state_as_it_was(comm: MPI.Intracomm) -> None:
    whole = small(4)
    before = torch.get_rng_state()
    ParallelTransformer(comm, whole)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layer", [ColumnLinear, RowLinear])
def test_fewer_features_than_ranks_are_refused(
    comm: MPI.Intracomm, layer: Callable[[MPI.Intracomm, nn.Linear], nn.Module]
) -> None:
    whole = nn.Linear(1, 1)
    if comm.size == 1:
        layer(comm, whole)
        return
    with pytest.raises(ValueError, match=f"cannot be distributed over {comm.size} ranks; use at most 1 "):
        layer(comm, whole)


@pytest.mark.parametrize("options", [{"bias": False}, {"elementwise_affine": False}])
def test_a_sequence_norm_may_lack_a_bias_or_all_parameters(
    comm: MPI.Intracomm, options: dict[str, bool]
) -> None:
    whole, x = nn.LayerNorm(6, **options).double(), numbers(2, 5, 6)
    parallel = SequenceNorm(comm, whole)
    assert same(parallel(shard_of(comm, x, 1)), shard_of(comm, whole(x), 1))
    assert len(list(parallel.parameters())) == len(list(whole.parameters()))


def test_shards_of_a_sequence_of_other_lengths_are_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    layer = GatheredColumnLinear(comm, nn.Linear(6, 8).double())
    if comm.size == 1:
        return
    shard = numbers(2, 5 if comm.rank == comm.size - 1 else 3, 6)  # the first shards are the longer ones
    with pytest.raises(ValueError, match="shards of lengths"):
        layer(shard)
    with pytest.raises(ValueError, match="shards of lengths"):
        all_gather(comm, shard, 1)


@pytest.mark.parametrize("length", [2, 3])
def test_sequence_parallelism_of_fewer_tokens_than_ranks(comm: MPI.Intracomm, length: int) -> None:
    whole, tokens = small(4), TOKENS[0][:, :length]
    make: Make = partial(ParallelTransformer, comm, sequence=True)  # type: ignore[arg-type]
    parallel = make(whole)
    for model in (parallel, whole):
        logits = model(tokens)
        (full_logits(comm, logits, model) ** 2).sum().backward()
    assert gradients_are_those_of(parallel, whole, make)


@pytest.mark.deadline(20)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("length", [13, 14, 15])
def test_more_tokens_than_positions_are_refused_on_all_ranks(
    comm: MPI.Intracomm, length: int, sequence: bool
) -> None:
    """Not on the ranks alone whose shards differ in length: the others would wait for them."""
    model = ParallelTransformer(comm, small(4), sequence=sequence)
    with pytest.raises(ValueError, match=f"{length} tokens have only 12 positions"):
        model(torch.zeros(2, length, dtype=torch.int64))


def full_logits(comm: MPI.Intracomm, logits: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return logits if isinstance(model, Transformer) else gather_from(comm, logits, -1)


@pytest.mark.parametrize("hidden", [12, 7])
def test_the_pair_by_hand_has_autograds_gradients(comm: MPI.Intracomm, hidden: int) -> None:
    draw = torch.Generator().manual_seed(hidden)
    shapes = (5, 3), (3, hidden), (hidden, 2)
    x, up, down = (torch.randn(s, generator=draw, dtype=torch.float64, requires_grad=True) for s in shapes)
    y = torch.relu(x @ up) @ down
    d_x, d_up, d_down = (g.numpy() for g in torch.autograd.grad(y.square().sum() / 2, (x, up, down)))
    mine = np.array_split(np.arange(hidden), comm.size)[comm.rank]
    pair = up.detach().numpy()[:, mine], down.detach().numpy()[mine]
    ours, full = mlp_forward(comm, x.detach().numpy(), *pair)
    got = mlp_backward(comm, x.detach().numpy(), ours, *pair, full)
    expected = y.detach().numpy(), d_x, d_up[:, mine], d_down[mine]
    same = [np.allclose(a, b) for a, b in zip((full, *got), expected, strict=True)]
    assert all(comm.allgather(all(same))), same


@pytest.mark.parametrize("frozen", [True, False])
def test_the_shards_of_a_frozen_layer_are_frozen(comm: MPI.Intracomm, frozen: bool) -> None:
    sizes = {"width": 4 * comm.size, "heads": comm.size, "length": 10}
    model = build_transformer(vocabulary=VOCABULARY, layers=1, seed=0, **sizes)
    for parameter in model.parameters():
        parameter.requires_grad = not frozen
    sharded = ParallelTransformer(comm, model)
    assert {parameter.requires_grad for parameter in sharded.parameters()} == {not frozen}
    model.blocks[0].attention.query.weight.requires_grad = frozen
    with pytest.raises(ValueError, match="the weights of query, key and value are frozen in part"):
        ParallelTransformer(comm, model)
