"""Tensor parallelism: every rank has a shard of each layer's weights, and all ranks work on the same batch.

    x ─ copy_to ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_from ─→ y        A cut by columns, B by rows
        backward: Allreduce                    forward: Allreduce

The column layer's outputs are a shard, and the row layer takes one: those two all-reduces are all there is.
Sequence parallelism cuts what lies between such pairs (norms, residuals) along the sequence, by two swaps:

    x_r ─ all-gather ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_scatter ─→ y_r       the same bytes, less memory

What was gathered is not kept: backward gathers it once more.

Everything is cut from a whole layer, so that any number of ranks starts from the same weights. Shoeybi et al.
(2019), "Megatron-LM"; Korthikanti et al. (2022), "Reducing Activation Recomputation" for the sequence.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import copy_to, joined, reduce_from, reduce_scatter, shard_of, summed_shard
from course_lib.theory.partition import even_range
from course_lib.training.transformer import Attention, Block, FeedForward, Transformer

Region = Callable[[MPI.Intracomm, torch.Tensor], torch.Tensor]
SEQUENCE = 1  # the dimension of (B, T, width)

# ---------------------------------------------------------------- shards of layers


def cut(comm: MPI.Intracomm, whole: torch.Tensor, dim: int, *, unit: int = 1) -> nn.Parameter:
    """A copy of this rank's share of `whole` along `dim`, dealt in pieces of `unit` that stay together.

    The shares may differ by one piece. ValueError, on all ranks, when there are fewer pieces than ranks.
    """
    pieces = whole.shape[dim] // unit
    if pieces < comm.size or pieces * unit != whole.shape[dim]:
        raise ValueError(
            f"dimension {dim} of {tuple(whole.shape)}, in pieces of {unit}, cannot be shared by {comm.size} "
            f"ranks; use at most {pieces} ranks and whole pieces"
        )
    mine = even_range(pieces, comm.size, comm.rank)
    return nn.Parameter(whole.detach().narrow(dim, mine.start * unit, len(mine) * unit).clone())


class ColumnLinear(nn.Module):
    """A linear layer cut by its outputs: (…, in) on every rank to this rank's (…, out / size)."""

    def __init__(
        self, comm: MPI.Intracomm, whole: nn.Linear, *, unit: int = 1, enter: Region = copy_to
    ) -> None:
        super().__init__()
        self.comm, self.enter = comm, enter
        self.weight = cut(comm, whole.weight, 0, unit=unit)  # (out / size, in)
        self.bias = None if whole.bias is None else cut(comm, whole.bias, 0, unit=unit)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the result."""
        return F.linear(self.enter(self.comm, x), self.weight, self.bias)


class _GatheredLinear(torch.autograd.Function):
    """A linear layer of a sequence that is put together for it, forward and once more backward."""

    @staticmethod
    def forward(
        ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.comm = comm
        ctx.save_for_backward(shard, weight)
        return F.linear(joined(comm, shard, SEQUENCE), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        shard, weight = ctx.saved_tensors
        whole, gradients = joined(ctx.comm, shard, SEQUENCE).flatten(0, 1), gradient.flatten(0, 1)
        of_shard = summed_shard(ctx.comm, gradient @ weight, SEQUENCE)
        return None, of_shard, gradients.T @ whole, gradients.sum(0) if ctx.needs_input_grad[3] else None


class GatheredColumnLinear(ColumnLinear):
    """A column layer of a sequence that is dealt out: this rank's (B, T / size, in) to (B, T, out / size)."""

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the result, for all positions."""
        return cast(torch.Tensor, _GatheredLinear.apply(self.comm, shard, self.weight, self.bias))


class RowLinear(nn.Module):
    """A linear layer cut by its inputs: this rank's (…, in / size) to (…, out) on every rank."""

    def __init__(
        self, comm: MPI.Intracomm, whole: nn.Linear, *, unit: int = 1, leave: Region = reduce_from
    ) -> None:
        super().__init__()
        self.comm, self.leave = comm, leave
        self.weight = cut(comm, whole.weight, 1, unit=unit)  # (out, in / size)
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The result, summed over the ranks; only then the bias, once."""
        y = self.leave(self.comm, F.linear(shard, self.weight))
        if self.bias is None:
            return y
        return y + (self.bias if self.leave is reduce_from else copy_to(self.comm, self.bias))


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
    """A convolution cut by its input channels: this rank's (B, C / size, H, W) to all (B, F, H', W')."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Conv2d) -> None:
        super().__init__()
        self.comm, self.apply_conv = comm, _convolution(whole)
        self.weight = cut(comm, whole.weight, 1)
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The result, summed over the ranks, and the bias; each all-reduce moves B·F·H'·W' numbers."""
        y = reduce_from(self.comm, self.apply_conv(shard, self.weight, None))
        return y if self.bias is None else y + self.bias[:, None, None]


def _convolution(whole: nn.Conv2d) -> Callable[..., torch.Tensor]:
    if whole.groups != 1 or whole.padding_mode != "zeros":
        raise ValueError(f"{whole} cannot be cut by channels; use groups=1 and padding_mode='zeros'")
    return partial(F.conv2d, stride=whole.stride, padding=whole.padding, dilation=whole.dilation)


# ---------------------------------------------------------------- shards of the vocabulary


class VocabularyEmbedding(nn.Module):
    """An embedding cut by its rows: each rank looks up the tokens that it has, and the ranks add up."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.Embedding, *, leave: Region = reduce_from) -> None:
        super().__init__()
        self.comm, self.leave = comm, leave
        self.mine = even_range(whole.num_embeddings, comm.size, comm.rank)
        self.weight = cut(comm, whole.weight, 0)  # (vocabulary / size, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) to (B, T, width)."""
        here = (tokens >= self.mine.start) & (tokens < self.mine.stop)
        rows = F.embedding((tokens - self.mine.start).where(here, 0), self.weight)
        return self.leave(self.comm, rows * here.unsqueeze(-1))


def vocabulary_cross_entropy(
    comm: MPI.Intracomm, logits: torch.Tensor, targets: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """The cross entropy of each token, from this rank's shard of the logits: three all-reduces of (B, T).

    `logits` (B, T, vocabulary / size), `targets` (B, T); the result (B, T), the same on every rank. The whole
    logits, the largest tensor of a language model, are never put together.
    """
    mine = even_range(vocabulary, comm.size, comm.rank)
    if logits.shape[-1] != len(mine):
        raise ValueError(
            f"logits of {logits.shape[-1]} tokens are not rank {comm.rank}'s {len(mine)} of a vocabulary of "
            f"{vocabulary}; pass the shard that a ColumnLinear gives"
        )
    largest = logits.detach().amax(dim=-1)
    comm.Allreduce(MPI.IN_PLACE, largest.numpy(), op=MPI.MAX)
    shifted = logits - largest.unsqueeze(-1)
    total = reduce_from(comm, shifted.exp().sum(dim=-1))
    here = (targets >= mine.start) & (targets < mine.stop)
    picked = shifted.gather(-1, (targets - mine.start).where(here, 0).unsqueeze(-1)).squeeze(-1)
    return total.log() - reduce_from(comm, picked * here)


# ---------------------------------------------------------------- a whole Transformer


def parallel_feed_forward(
    comm: MPI.Intracomm,
    whole: FeedForward,
    column: Callable[..., ColumnLinear] = ColumnLinear,
    leave: Region = reduce_from,
) -> nn.Sequential:
    """A column layer, GeLU on the shard, a row layer."""
    return nn.Sequential(column(comm, whole.up), nn.GELU(), RowLinear(comm, whole.down, leave=leave))


def merged(whole: Attention) -> nn.Linear:
    """Query, key and value as one layer, head by head: (q, k, v) of the first head, then of the second, …"""
    layers = (whole.query, whole.key, whole.value)
    qkv = nn.Linear(whole.query.in_features, 3 * whole.query.out_features, bias=whole.query.bias is not None)
    for name, parameter in qkv.named_parameters():
        parts = [getattr(layer, name).detach().unflatten(0, (-1, whole.head_width)) for layer in layers]
        parameter.data = torch.stack(parts, dim=1).flatten(0, 2)
    return qkv


class ParallelAttention(Attention):
    """Attention in which each rank has some of the heads, whole ones."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        whole: Attention,
        column: Callable[..., ColumnLinear] = ColumnLinear,
        leave: Region = reduce_from,
    ) -> None:
        nn.Module.__init__(self)
        self.comm, self.head_width = comm, whole.head_width
        heads = whole.query.out_features // whole.head_width
        if heads < comm.size:
            raise ValueError(
                f"{heads} heads cannot be shared by {comm.size} ranks; use at most {heads} ranks"
            )
        self.qkv = column(comm, merged(whole), unit=3 * whole.head_width)
        self.project = RowLinear(comm, whole.project, unit=whole.head_width, leave=leave)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same, on every rank; with sequence parallelism (B, T / size, width)."""
        qkv = self.qkv(x).unflatten(2, (-1, 3, self.head_width))  # (B, T, our heads, 3, head_width)
        mixed = self.mix(*(part.transpose(1, 2) for part in qkv.unbind(3)))
        return self.project(mixed.transpose(1, 2).flatten(2))


class SequenceNorm(nn.Module):
    """A layer-norm of a shard of the sequence; its parameters get the gradient of the whole."""

    def __init__(self, comm: MPI.Intracomm, whole: nn.LayerNorm) -> None:
        super().__init__()
        self.comm, self.eps = comm, whole.eps
        self.weight, self.bias = (nn.Parameter(p.detach().clone()) for p in (whole.weight, whole.bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T / size, width) to the same."""
        weight, bias = copy_to(self.comm, self.weight), copy_to(self.comm, self.bias)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


class ParallelBlock(Block):
    """A block of which each rank has a shard; with `sequence`, of the tokens between the layers, too."""

    def __init__(self, comm: MPI.Intracomm, whole: Block, *, sequence: bool) -> None:
        nn.Module.__init__(self)
        column, leave, norm = _edges(comm, sequence)
        self.norm1, self.norm2 = norm(whole.norm1), norm(whole.norm2)  # type: ignore[assignment]
        self.attention = ParallelAttention(comm, whole.attention, column, leave)
        self.mlp = parallel_feed_forward(comm, whole.mlp, column, leave)  # type: ignore[assignment]


class ParallelTransformer(nn.Module):
    """`whole`, cut over `comm`: heads, hidden features and vocabulary; with `sequence`, the sequence too."""

    def __init__(self, comm: MPI.Intracomm, whole: Transformer, *, sequence: bool = False) -> None:
        super().__init__()
        column, leave, norm = _edges(comm, sequence)
        self.comm, self.sequence = comm, sequence
        self.token = VocabularyEmbedding(comm, whole.embedding.token, leave=leave)
        self.position = nn.Parameter(whole.embedding.position.weight.detach().clone())
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
        """What is added to the first `length` tokens, or to those of this rank's shard of the sequence."""
        if not self.sequence:
            return self.position[:length]
        return shard_of(self.comm, copy_to(self.comm, self.position)[:length], dim=0)


def _edges(
    comm: MPI.Intracomm, sequence: bool
) -> tuple[Callable[..., ColumnLinear], Region, Callable[..., nn.Module]]:
    """How a pair of layers is entered and left, and what a norm becomes."""
    if sequence:
        return GatheredColumnLinear, partial(reduce_scatter, dim=SEQUENCE), partial(SequenceNorm, comm)
    return ColumnLinear, reduce_from, copy.deepcopy
