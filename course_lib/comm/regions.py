"""Collectives that gradients flow through: what one does forward, its adjoint does backward.

    function            forward                  backward                 for
    copy_to             nothing                  sum over the ranks       one x that all use: Megatron's f
    reduce_from         sum over the ranks       nothing                  parts of a sum: Megatron's g
    gather_from         all-gather               keep my shard            a result that all use alike
    all_gather          all-gather               reduce-scatter           a result that each uses differently
    reduce_scatter      reduce-scatter           all-gather               parts of a sum, which is then cut
    ring_shift          to the right             to the left              blocks that go round a ring
    all_to_all          rows to their ranks      rows back                rows that belong elsewhere

`copy_to` marks where ranks begin to use a replicated tensor (the same on all ranks) differently: its value
stays, and each rank's gradient covers only that rank's use, so the gradients are summed. `reduce_from` and
`gather_from` lead back to a replicated tensor. All ranks then compute the same loss from it, and that loss
counts once: so its gradient is passed on as it is, and a sum would make it `size` times too large.

In backward, autograd calls the collectives in an order that depends only on how forward built the graph. So
all ranks must run the same forward pass; then they call the same collectives in the same order.

Shards are those of `even_ranges`: the first ones may be longer by one. Sums equal one process's up to the
order of addition. Dtypes are those that NumPy and MPI both have; bfloat16, which NumPy lacks, is a TypeError.

Shoeybi et al. (2019), "Megatron-LM"; Korthikanti et al. (2022), "Reducing Activation Recomputation in Large
Transformer Models", for `all_gather` and `reduce_scatter`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from mpi4py import MPI

from course_lib.theory.partition import even_range, even_ranges

# ---------------------------------------------------------------- on plain tensors: no gradient


def all_reduced(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' `x`, a new tensor on every rank; the shapes must be equal."""
    total = x.detach().contiguous().clone()
    comm.Allreduce(MPI.IN_PLACE, total.numpy())
    return total


def shard_of(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard of `x`, cut along `dim`: a view."""
    mine = even_range(x.shape[dim], comm.size, comm.rank)
    return x.narrow(dim, mine.start, len(mine))


def all_gathered(comm: MPI.Intracomm, shard: torch.Tensor, dim: int, *, even: bool = False) -> torch.Tensor:
    """All ranks' shards, concatenated along `dim`; they may differ in length there, and nowhere else.

    With `even`, raises ValueError on all ranks unless the lengths are those of `even_ranges`: there
    `reduce_scattered` cuts, the backward of `all_gather`. That of `gather_from` cuts at the shards' lengths.
    """
    rows = shard.detach().movedim(dim, 0).contiguous()
    lengths = comm.allgather(len(rows))
    expected = [len(part) for part in even_ranges(sum(lengths), comm.size)]
    if even and lengths != expected:
        raise ValueError(
            f"shards of lengths {lengths} along dimension {dim} must be {expected}; use shard_of"
        )
    full = rows.new_empty(sum(lengths), *rows.shape[1:])
    comm.Allgatherv(rows.numpy(), [full.numpy(), [length * full[:1].numel() for length in lengths]])
    return full.movedim(0, dim)


def reduce_scattered(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard, along `dim`, of the sum of all ranks' `x`."""
    rows = x.detach().movedim(dim, 0).contiguous()
    lengths = [len(part) for part in even_ranges(len(rows), comm.size)]
    shard = rows.new_empty(lengths[comm.rank], *rows.shape[1:])
    comm.Reduce_scatter(rows.numpy(), shard.numpy(), [length * rows[:1].numel() for length in lengths])
    return shard.movedim(0, dim)


def ring_shifted(comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int], *, by: int) -> torch.Tensor:
    """Send `x` to rank + `by` of the ring; return the tensor of rank - `by`, which has the given shape."""
    received = x.new_empty(tuple(shape))
    dest, source = (comm.rank + by) % comm.size, (comm.rank - by) % comm.size
    comm.Sendrecv(x.detach().contiguous().numpy(), dest, recvbuf=received.numpy(), source=source)
    return received


def all_to_all_rows(
    comm: MPI.Intracomm, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> torch.Tensor:
    """Send the first `send_counts[0]` rows to rank 0, the next to rank 1, …

    Returns what is received, `receive_counts[r]` rows from rank r, in the order of the ranks.
    """
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    width = prod(rows.shape[1:])
    comm.Alltoallv(
        [rows.detach().contiguous().numpy(), [count * width for count in send_counts]],
        [received.numpy(), [count * width for count in receive_counts]],
    )
    return received


# ---------------------------------------------------------------- with their gradients


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
        ctx.comm = comm
        return x.view_as(x)  # a new tensor object, so that autograd records the step

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, all_reduced(ctx.comm, gradient)


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
        return all_reduced(comm, x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


class _GatherFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim, ctx.length = comm, dim, shard.shape[dim]
        full = all_gathered(comm, shard, dim)
        ctx.start = comm.exscan(ctx.length) or 0  # the sum of the lengths on lower ranks; None on rank 0
        return full

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, gradient.narrow(ctx.dim, ctx.start, ctx.length), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim = comm, dim
        return all_gathered(comm, shard, dim, even=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, reduce_scattered(ctx.comm, gradient, ctx.dim), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim = comm, dim
        return reduce_scattered(comm, x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, all_gathered(ctx.comm, gradient, ctx.dim), None


class _RingShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        ctx.comm, ctx.shape = comm, x.shape
        return ring_shifted(comm, x, shape, by=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, ring_shifted(ctx.comm, gradient, ctx.shape, by=-1), None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, comm: MPI.Intracomm, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        ctx.comm, ctx.send_counts, ctx.receive_counts = comm, send, receive
        return all_to_all_rows(comm, rows, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        return None, all_to_all_rows(ctx.comm, gradient, ctx.receive_counts, ctx.send_counts), None, None


def copy_to(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """`x` unchanged; in backward, the sum of all ranks' gradients. Megatron's f."""
    return _CopyTo.apply(comm, x)


def reduce_from(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' `x`, on every rank; in backward, the gradient unchanged. Megatron's g."""
    return _ReduceFrom.apply(comm, x)


def gather_from(comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """All ranks' shards, concatenated along `dim`, for a result that all ranks use in the same way.

    Shards may differ in length along `dim`.
    """
    return _GatherFrom.apply(comm, shard, dim)


def all_gather(comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """All ranks' shards, concatenated along `dim`, for a result that each rank uses in its own way.

    Raises ValueError on all ranks unless the lengths along `dim` are those of `even_ranges`.
    """
    return _AllGather.apply(comm, shard, dim)


def reduce_scatter(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard, along `dim`, of the sum of all ranks' `x`."""
    return _ReduceScatter.apply(comm, x, dim)


def ring_shift(comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Send `x` to the right neighbour; return the left neighbour's tensor, which has the given shape.

    In backward the gradient is sent back to the left neighbour.
    """
    return _RingShift.apply(comm, x, shape)


def all_to_all(
    comm: MPI.Intracomm, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> torch.Tensor:
    """Send the first `send_counts[0]` rows to rank 0, the next `send_counts[1]` to rank 1, …

    Returns what is received, `receive_counts[r]` rows from rank r, in the order of the ranks. In backward
    each row's gradient is sent back to the rank that sent the row.
    """
    return _AllToAll.apply(comm, rows, send_counts, receive_counts)
