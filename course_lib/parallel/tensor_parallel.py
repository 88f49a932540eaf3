"""Tensor parallelism: every rank has a shard of each layer's weights, and all ranks work on the same batch.

    x ─ copy_to ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_from ─→ y        A cut by columns, B by rows
        backward: Allreduce                    forward: Allreduce

nn.Linear stores A transposed, so its columns are dimension 0 of the weight. The column layer's output is a
shard, and the row layer's input is that shard: so a pair needs one all-reduce forward and one backward.

Between such pairs (norms, residuals) all ranks compute the same. Sequence parallelism distributes that work,
too: there each rank has a shard x_r of the tokens. An all-gather takes the place of `copy_to`, and a
reduce-scatter that of `reduce_from`; their backward is a reduce-scatter and an all-gather:

    x_r ─ all-gather ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_scatter ─→ y_r       less memory

An all-reduce sends as many bytes as a reduce-scatter and an all-gather. So backward sends one all-gather more
(A's gradient needs x; forward keeps x_r), and sums the gradients of norms and row biases.

Every shard is cut from a full layer. All ranks must pass equal layers (same seed, or a Bcast): nothing checks
that. The shard of a frozen parameter is frozen. Results and gradients equal those of the full layer in one
process up to the order of addition. In shapes, `/ size` means a rank's shard; shards may differ by one unit.
No layer here has dropout: on a replicated tensor, all ranks would need the same mask.

Shoeybi et al. (2019), "Megatron-LM"; Korthikanti et al. (2022), "Reducing Activation Recomputation in Large
Transformer Models", for the sequence.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import (
    all_gathered,
    copy_to,
    reduce_from,
    reduce_scatter,
    reduce_scattered,
    shard_of,
)
from course_lib.theory.partition import even_range, even_ranges
from course_lib.training.flat import check_unshared
from course_lib.training.transformer import Attention, Block, FeedForward, Transformer

SEQUENCE = 1  # T, the dimension of (B, T, width) that sequence parallelism cuts

# ---------------------------------------------------------------- by hand: the plain form, in NumPy


def mlp_forward(comm: MPI.Comm, x: np.ndarray, up: np.ndarray, down: np.ndarray) -> list[np.ndarray]:
    """Return this rank's part of relu(x @ up), and the full y."""
    hidden = np.maximum(x @ up, 0)
    y = hidden @ down
    comm.Allreduce(MPI.IN_PLACE, y)
    return [hidden, y]


def mlp_backward(
    comm: MPI.Comm, x: np.ndarray, hidden: np.ndarray, up: np.ndarray, down: np.ndarray, d_y: np.ndarray
) -> list[np.ndarray]:
    """Return the gradients of x and of this rank's columns of `up` and rows of `down`."""
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    comm.Allreduce(MPI.IN_PLACE, d_x)
    return [d_x, d_up, d_down]


# ---------------------------------------------------------------- shards of layers


def cut(comm: MPI.Intracomm, whole: torch.Tensor, dim: int, *, unit: int = 1) -> nn.Parameter:
    """A copy of this rank's shard of `whole` along `dim`, cut only at multiples of `unit`.

    So with a head's width as `unit` no head is split. Shards may differ by one unit. Raises ValueError, on
    all ranks, when there are fewer units than ranks, or when `unit` does not divide the dimension.
    """
    units = whole.shape[dim] // unit
    if units < comm.size or units * unit != whole.shape[dim]:
        raise ValueError(
            f"dimension {dim} of {tuple(whole.shape)}, in units of {unit}, cannot be distributed over "
            f"{comm.size} ranks; use at most {units} ranks and whole units"
        )
    mine = even_range(units, comm.size, comm.rank)
    part = whole.detach().narrow(dim, mine.start * unit, len(mine) * unit).clone()
    return nn.Parameter(part, whole.requires_grad)


def full_copy(whole: torch.Tensor) -> nn.Parameter:
    """A parameter that every rank has in full; frozen if `whole` is."""
    return nn.Parameter(whole.detach().clone(), whole.requires_grad)


class ColumnLinear(nn.Module):
    """A linear layer cut by its outputs: (…, in) on every rank to this rank's (…, out / size)."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Linear, *, unit: int = 1) -> None:
        super().__init__()
        self.comm = comm
        self.weight = cut(comm, whole.weight, 0, unit=unit)  # (out / size, in)
        self.bias = None if whole.bias is None else cut(comm, whole.bias, 0, unit=unit)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the result; `copy_to` sums the gradient of x over the ranks."""
        return F.linear(copy_to(self.comm, x), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer cut by its inputs: this rank's (…, in / size) to (…, out) on every rank."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Linear, *, unit: int = 1) -> None:
        super().__init__()
        self.comm = comm
        self.weight = cut(comm, whole.weight, 1, unit=unit)  # (out, in / size)
        self.bias = None if whole.bias is None else full_copy(whole.bias)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The result on every rank. The bias is added after the sum, so it counts once."""
        y = reduce_from(self.comm, F.linear(shard, self.weight))
        # all compute one loss from y, so the bias's gradient is equal: nothing to sum
        return y if self.bias is None else y + self.bias


class ColumnConv(nn.Module):
    """A convolution cut by its output channels: (B, C, H, W) to this rank's (B, F / size, H', W')."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Conv2d) -> None:
        super().__init__()
        self.comm, self.apply_conv = comm, _convolution(whole)
        self.weight = cut(comm, whole.weight, 0)
        self.bias = None if whole.bias is None else cut(comm, whole.bias, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's channels of the result."""
        return self.apply_conv(copy_to(self.comm, x), self.weight, self.bias)


class RowConv(nn.Module):
    """A convolution cut by its input channels: (B, C / size, H, W) to (B, F, H', W') on every rank."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Conv2d) -> None:
        super().__init__()
        self.comm, self.apply_conv = comm, _convolution(whole)
        self.weight = cut(comm, whole.weight, 1)
        self.bias = None if whole.bias is None else full_copy(whole.bias)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The result on every rank; the all-reduce sums B·F·H'·W' numbers per rank."""
        y = reduce_from(self.comm, self.apply_conv(shard, self.weight, None))
        return y if self.bias is None else y + self.bias[:, None, None]


def _convolution(whole: nn.Conv2d) -> Callable[..., torch.Tensor]:
    if whole.groups != 1 or whole.padding_mode != "zeros":
        raise ValueError(f"{whole} cannot be cut by channels; use groups=1 and padding_mode='zeros'")
    return partial(F.conv2d, stride=whole.stride, padding=whole.padding, dilation=whole.dilation)


# ---------------------------------------------------------------- the sequence is cut, too


class _GatheredLinear(torch.autograd.Function):
    """x @ weight.T of a cut sequence: the tokens x are gathered in forward, and again in backward."""

    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.comm = comm
        ctx.save_for_backward(shard, weight)
        return F.linear(all_gathered(comm, shard, SEQUENCE, even=True), weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor]:
        shard, weight = ctx.saved_tensors
        full = all_gathered(ctx.comm, shard, SEQUENCE).flatten(0, 1)  # (B · T, in)
        of_shard = reduce_scattered(ctx.comm, gradient @ weight, SEQUENCE)
        return None, of_shard, gradient.flatten(0, 1).T @ full


class GatheredColumnLinear(ColumnLinear):
    """A column layer of a cut sequence: this rank's (B, T / size, in) to (B, T, out / size).

    `all_gather` (`comm/regions.py`) and `F.linear` would do the same, but autograd would keep the full x for
    backward. Raises ValueError, on all ranks, unless the shards are those of `shard_of`.
    """

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the result, for all positions."""
        y = cast(torch.Tensor, _GatheredLinear.apply(self.comm, shard, self.weight))
        return y if self.bias is None else y + self.bias


class ScatteredRowLinear(RowLinear):
    """A row layer whose result is cut along the sequence: (B, T, in / size) to (B, T / size, out)."""

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of the result."""
        y = reduce_scatter(self.comm, F.linear(shard, self.weight), SEQUENCE)
        # y has this rank's tokens only, and so has the bias's gradient: copy_to sums it over the ranks
        return y if self.bias is None else y + copy_to(self.comm, self.bias)


class SequenceNorm(nn.Module):
    """A layer norm of a shard of the sequence; the gradients of its parameters are summed over the ranks."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.LayerNorm) -> None:
        super().__init__()
        self.comm, self.shape, self.eps = comm, whole.normalized_shape, whole.eps
        self.weight, self.bias = copy.deepcopy((whole.weight, whole.bias))  # either may be None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T / size, width) to the same."""
        weight, bias = (None if p is None else copy_to(self.comm, p) for p in (self.weight, self.bias))
        return F.layer_norm(x, self.shape, weight, bias, self.eps)


# ---------------------------------------------------------------- shards of the vocabulary


class VocabularyEmbedding(nn.Module):
    """An embedding cut by its rows: each rank looks up the tokens of its shard; the ranks' rows are summed.

    Raises ValueError when `whole` has an option that the shards would lose.
    """

    def __init__(self, comm: MPI.Intracomm, whole: nn.Embedding, *, sequence: bool = False) -> None:
        super().__init__()
        if whole.padding_idx is not None or whole.max_norm or whole.scale_grad_by_freq or whole.sparse:
            raise ValueError(
                f"{whole} cannot be cut by rows; use no padding_idx, max_norm, scale_grad_by_freq or sparse"
            )
        self.comm, self.sequence, self.vocabulary = comm, sequence, whole.num_embeddings
        self.mine = even_range(whole.num_embeddings, comm.size, comm.rank)
        self.weight = cut(comm, whole.weight, 0)  # (vocabulary / size, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T), the same on all ranks, to (B, T, width), or with `sequence` (B, T / size, width)."""
        must_be_tokens(tokens, self.vocabulary)
        here = (tokens >= self.mine.start) & (tokens < self.mine.stop)
        rows = F.embedding((tokens - self.mine.start).where(here, 0), self.weight)
        rows = rows.where(here.unsqueeze(-1), 0)  # zero for the tokens of other ranks
        return reduce_scatter(self.comm, rows, SEQUENCE) if self.sequence else reduce_from(self.comm, rows)


def must_be_tokens(tokens: torch.Tensor, vocabulary: int) -> None:
    """Raise IndexError, as one process would, when a token is outside the vocabulary."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if len(wrong):
        raise IndexError(
            f"token {wrong[0]} is not one of a vocabulary of {vocabulary}; use 0 to {vocabulary - 1}"
        )


def vocabulary_cross_entropy(
    comm: MPI.Intracomm, logits: torch.Tensor, targets: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """The cross entropy of each token, from this rank's shard of the logits.

    It takes an all-gather of the shards' widths and three all-reduces of (B, T).
    `logits` (B, T, vocabulary / size), `targets` (B, T), the same on all ranks; the result (B, T), the same
    on every rank. The full logits, often the largest tensor of a language model, are never gathered. Raises,
    on all ranks, ValueError for logits that are not the shards of the vocabulary and IndexError for a target
    outside it: there is no `ignore_index`, so multiply the losses of padding by 0.
    """
    shards = even_ranges(vocabulary, comm.size)
    widths, expected = comm.allgather(logits.shape[-1]), [len(shard) for shard in shards]
    if widths != expected:
        raise ValueError(
            f"the ranks have logits of {widths} tokens, and must have {expected} of a vocabulary of "
            f"{vocabulary}; pass what a ColumnLinear returns"
        )
    must_be_tokens(targets, vocabulary)
    mine = shards[comm.rank]
    largest = logits.detach().amax(dim=-1)  # so that exp() cannot overflow; the loss does not depend on it
    comm.Allreduce(MPI.IN_PLACE, largest.numpy(), op=MPI.MAX)
    shifted = logits - largest.unsqueeze(-1)
    total = reduce_from(comm, shifted.exp().sum(dim=-1))
    here = (targets >= mine.start) & (targets < mine.stop)
    picked = shifted.gather(-1, (targets - mine.start).where(here, 0).unsqueeze(-1)).squeeze(-1)
    return total.log() - reduce_from(comm, picked.where(here, 0))  # not picked * here: -inf · 0 is NaN


# ---------------------------------------------------------------- a whole Transformer


def parallel_feed_forward(
    comm: MPI.Intracomm,
    whole: FeedForward,
    column: type[ColumnLinear] = ColumnLinear,
    row: type[RowLinear] = RowLinear,
) -> nn.Sequential:
    """A column layer, FeedForward's GeLU on the shard, a row layer."""
    return nn.Sequential(column(comm, whole.up), nn.GELU(), row(comm, whole.down))


def merged(whole: Attention) -> nn.Linear:
    """Query, key and value as one layer, head by head: (q, k, v) of the first head, then of the second, …

    One layer needs one all-reduce, not three; head by head, so that each head keeps its q, k and v when the
    layer is cut. Raises ValueError when only some of the three have a bias, or are frozen.
    """
    layers = (whole.query, whole.key, whole.value)
    biases = [layer.bias is not None for layer in layers]
    if any(biases) != all(biases):
        raise ValueError(
            f"of query, key and value only {sum(biases)} have a bias; use 3 or none (a bias may be zero)"
        )
    sizes = whole.query.in_features, 3 * whole.query.out_features
    qkv = nn.utils.skip_init(nn.Linear, *sizes, bias=all(biases))  # draws no random numbers
    for name, parameter in qkv.named_parameters():
        parts = [getattr(layer, name).detach().unflatten(0, (-1, whole.head_width)) for layer in layers]
        parameter.data = torch.stack(parts, dim=1).flatten(0, 2)
        trained = {getattr(layer, name).requires_grad for layer in layers}
        if len(trained) > 1:
            raise ValueError(
                f"the {name}s of query, key and value are frozen in part; freeze all three or none"
            )
        parameter.requires_grad = trained.pop()
    return qkv


class ParallelAttention(nn.Module):
    """Attention of which each rank computes some of the heads; no head is cut."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        whole: Attention,
        column: type[ColumnLinear] = ColumnLinear,
        row: type[RowLinear] = RowLinear,
    ) -> None:
        super().__init__()
        self.head_width = whole.head_width
        heads = whole.query.out_features // whole.head_width
        if heads < comm.size:
            raise ValueError(
                f"{heads} heads cannot be distributed over {comm.size} ranks; use at most {heads} ranks"
            )
        self.qkv = column(comm, merged(whole), unit=3 * whole.head_width)
        self.project = row(comm, whole.project, unit=whole.head_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same, on every rank; with sequence parallelism (B, T / size, width)."""
        qkv = self.qkv(x).unflatten(2, (-1, 3, self.head_width))  # (B, T, our heads, 3, head_width)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(3))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # each head alone
        return self.project(mixed.transpose(1, 2).flatten(2))


def _layers(
    comm: MPI.Intracomm, sequence: bool
) -> tuple[type[ColumnLinear], type[RowLinear], Callable[..., nn.Module]]:
    """What makes the column layers, the row layers and the norms."""
    if sequence:
        return GatheredColumnLinear, ScatteredRowLinear, partial(SequenceNorm, comm)
    return ColumnLinear, RowLinear, copy.deepcopy  # a norm is replicated: a copy of the full one


class ParallelBlock(nn.Module):
    """A block of which each rank has a shard; with `sequence`, the tokens between its pairs are cut, too."""

    def __init__(self, comm: MPI.Intracomm, whole: Block, *, sequence: bool) -> None:
        super().__init__()
        column, row, norm = _layers(comm, sequence)
        self.norm1, self.norm2 = norm(whole.norm1), norm(whole.norm2)
        self.attention = ParallelAttention(comm, whole.attention, column, row)
        self.mlp = parallel_feed_forward(comm, whole.mlp, column, row)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same, on every rank; with `sequence` (B, T / size, width)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ParallelTransformer(nn.Module):
    """`whole`, cut over `comm`: heads, hidden features and vocabulary; with `sequence`, the sequence too.

    Raises ValueError when two layers of `whole` share a weight, such as the embedding and the head.
    """

    def __init__(self, comm: MPI.Intracomm, whole: Transformer, *, sequence: bool = False) -> None:
        super().__init__()
        check_unshared(whole.named_parameters(remove_duplicate=False))
        column, _, norm = _layers(comm, sequence)
        self.comm, self.sequence = comm, sequence
        self.token = VocabularyEmbedding(comm, whole.embedding.token, sequence=sequence)
        self.position = full_copy(whole.embedding.position.weight)
        blocks = cast(Iterable[Block], whole.blocks)
        self.blocks = nn.ModuleList(ParallelBlock(comm, block, sequence=sequence) for block in blocks)
        self.norm, self.head = norm(whole.norm), column(comm, whole.head)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T), the same on all ranks, to this rank's (B, T, vocabulary / size) of the logits."""
        x = self.token(tokens) + self.positions(tokens.shape[1])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def positions(self, length: int) -> torch.Tensor:
        """The position vectors of the first `length` tokens, or of this rank's shard of them."""
        most = len(self.position)
        if length > most:  # on all ranks: else only those whose shards differ fail, and others wait
            raise ValueError(f"{length} tokens have only {most} positions; use at most {most} tokens")
        if not self.sequence:
            return self.position[:length]
        return shard_of(self.comm, copy_to(self.comm, self.position)[:length], dim=0)
