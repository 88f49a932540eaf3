"""Tensor parallelism: every rank has a shard of each layer's weights, and all ranks work on the same batch.

    x ─ copy_to ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_from ─→ y        A cut by columns, B by rows
        backward: Allreduce                    forward: Allreduce

The column layer's outputs are a shard, and the row layer takes one: those two all-reduces are all there is.
Sequence parallelism cuts what lies between such pairs (norms, residuals) along the sequence, by two swaps:

    x_r ─ all_gather ─→ [ A_r ] ─ gelu ─→ [ B_r ] ─ reduce_scatter ─→ y_r       the same bytes, less memory

Everything is cut from a whole layer, so that any number of ranks starts from the same weights. Shoeybi et al.
(2019), "Megatron-LM"; Korthikanti et al. (2022), "Reducing Activation Recomputation" for the sequence.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import all_gather, copy_to, reduce_from, reduce_scatter, shard_of
from course_lib.theory.partition import even_range
from course_lib.training.transformer import Attention, Block, FeedForward, Transformer

Region = Callable[[MPI.Intracomm, torch.Tensor], torch.Tensor]

# ---------------------------------------------------------------- shards of layers


def cut(comm: MPI.Intracomm, whole: torch.Tensor, dim: int, *, unit: int = 1) -> nn.Parameter:
    """A copy of this rank's share of `whole` along `dim`, dealt in pieces of `unit` that stay together."""
    mine = even_range(whole.shape[dim] // unit, comm.size, comm.rank)
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
    largest = logits.detach().amax(dim=-1)
    comm.Allreduce(MPI.IN_PLACE, largest.numpy(), op=MPI.MAX)
    shifted = logits - largest.unsqueeze(-1)
    total = reduce_from(comm, shifted.exp().sum(dim=-1))
    mine = even_range(vocabulary, comm.size, comm.rank)
    here = (targets >= mine.start) & (targets < mine.stop)
    picked = shifted.gather(-1, (targets - mine.start).where(here, 0).unsqueeze(-1)).squeeze(-1)
    return total.log() - reduce_from(comm, picked * here)


# ---------------------------------------------------------------- a whole Transformer


def along_sequence(region: Callable[[MPI.Intracomm, torch.Tensor, int], torch.Tensor]) -> Region:
    """`all_gather` or `reduce_scatter` along dim 1, the sequence of (B, T, width)."""
    return lambda comm, x: region(comm, x, 1)


def parallel_feed_forward(
    comm: MPI.Intracomm, whole: FeedForward, enter: Region = copy_to, leave: Region = reduce_from
) -> nn.Sequential:
    """A column layer, GeLU on the shard, a row layer."""
    return nn.Sequential(
        ColumnLinear(comm, whole.up, enter=enter), nn.GELU(), RowLinear(comm, whole.down, leave=leave)
    )


class ParallelAttention(Attention):
    """Attention in which each rank has some of the heads, whole ones."""

    def __init__(
        self, comm: MPI.Intracomm, whole: Attention, enter: Region = copy_to, leave: Region = reduce_from
    ) -> None:
        nn.Module.__init__(self)
        self.comm, self.enter, self.head_width = comm, enter, whole.head_width
        heads = whole.query.out_features // whole.head_width
        if heads < comm.size:
            raise ValueError(
                f"{heads} heads cannot be shared by {comm.size} ranks; use at most {heads} ranks"
            )
        unit = whole.head_width
        self.query, self.key, self.value = (  # type: ignore[assignment]
            ColumnLinear(comm, layer, unit=unit, enter=_as_is)  # entered once, for all three
            for layer in (whole.query, whole.key, whole.value)
        )
        self.project = RowLinear(comm, whole.project, unit=unit, leave=leave)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same, on every rank; with sequence parallelism (B, T / size, width)."""
        return super().forward(self.enter(self.comm, x))


def _as_is(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    return x


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
        enter, leave, norm = _regions(comm, sequence)
        self.norm1, self.norm2 = norm(whole.norm1), norm(whole.norm2)  # type: ignore[assignment]
        self.attention = ParallelAttention(comm, whole.attention, enter, leave)
        self.mlp = parallel_feed_forward(comm, whole.mlp, enter, leave)  # type: ignore[assignment]


class ParallelTransformer(nn.Module):
    """`whole`, cut over `comm`: heads, hidden features and vocabulary; with `sequence`, the sequence too."""

    def __init__(self, comm: MPI.Intracomm, whole: Transformer, *, sequence: bool = False) -> None:
        super().__init__()
        enter, leave, norm = _regions(comm, sequence)
        self.comm, self.sequence = comm, sequence
        self.token = VocabularyEmbedding(comm, whole.embedding.token, leave=leave)
        self.position = nn.Parameter(whole.embedding.position.weight.detach().clone())
        blocks = cast(Iterable[Block], whole.blocks)
        self.blocks = nn.ModuleList(ParallelBlock(comm, block, sequence=sequence) for block in blocks)
        self.norm, self.head = norm(whole.norm), ColumnLinear(comm, whole.head, enter=enter)

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
        return shard_of(self.comm, copy_to(self.comm, self.position)[:length], 0)


def _regions(comm: MPI.Intracomm, sequence: bool) -> tuple[Region, Region, Callable[..., nn.Module]]:
    """How a layer is entered and left, and what a norm becomes."""
    if sequence:
        return along_sequence(all_gather), along_sequence(reduce_scatter), partial(SequenceNorm, comm)
    return copy_to, reduce_from, copy.deepcopy
