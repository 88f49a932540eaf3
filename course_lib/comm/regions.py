"""Collectives that gradients flow through: what one does forward, its adjoint does backward.

    function            forward                  backward                 for
    copy_to             nothing                  sum over the ranks       one x that all use: Megatron's f
    reduce_from         sum over the ranks       nothing                  parts of a sum: Megatron's g
    gather_from         all-gather               keep my shard            a result that all use alike
    all_gather          all-gather               reduce-scatter           … that each uses in its own way
    reduce_scatter      reduce-scatter           all-gather               parts of a sum, which is then cut
    ring_shift          to the right             to the left              blocks that go round a ring
    all_to_all          rows to their ranks      rows back                rows that belong elsewhere

`copy_to`, `reduce_from` and `gather_from` lead from a replicated tensor (the same on all ranks)
to one that differs between ranks, and back. The gradient of a replicated tensor is the same on all ranks, and
counts once, not once per rank: so `reduce_from` passes it on, and a sum there would give it `size` times.
Shards are those of `even_ranges`: the first ones may be longer by one. Shoeybi et al. (2019), "Megatron-LM";
Korthikanti et al. (2022) for `all_gather` and `reduce_scatter`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from mpi4py import MPI

from course_lib.theory.partition import even_range, even_ranges

# ---------------------------------------------------------------- on plain tensors


def summed(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' `x`, a new tensor on every rank; the shapes must be equal."""
    total = x.detach().contiguous().clone()
    comm.Allreduce(MPI.IN_PLACE, total.numpy())
    return total


def shard_of(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard of `x`, cut along `dim`: a view."""
    mine = even_range(x.shape[dim], comm.size, comm.rank)
    return x.narrow(dim, mine.start, len(mine))


def joined(comm: MPI.Intracomm, shard: torch.Tensor, dim: int, *, even: bool = False) -> torch.Tensor:
    """All ranks' shards, gathered and joined along `dim`; they may differ in length there, and nowhere else.

    With `even`, raises ValueError on all ranks unless the lengths are those of `even_ranges`.
    """
    rows = shard.detach().movedim(dim, 0).contiguous()
    lengths = comm.allgather(len(rows))
    expected = [len(part) for part in even_ranges(sum(lengths), comm.size)]
    if even and lengths != expected:
        raise ValueError(
            f"shards of lengths {lengths} along dimension {dim} must be {expected}; use shard_of"
        )
    whole = rows.new_empty(sum(lengths), *rows.shape[1:])
    comm.Allgatherv(rows.numpy(), [whole.numpy(), [length * whole[:1].numel() for length in lengths]])
    return whole.movedim(0, dim)


def summed_shard(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard, along `dim`, of the sum of all ranks' `x`."""
    rows = x.detach().movedim(dim, 0).contiguous()
    lengths = [len(part) for part in even_ranges(len(rows), comm.size)]
    shard = rows.new_empty(lengths[comm.rank], *rows.shape[1:])
    comm.Reduce_scatter(rows.numpy(), shard.numpy(), [length * rows[:1].numel() for length in lengths])
    return shard.movedim(0, dim)


def passed_on(comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int], *, to: int) -> torch.Tensor:
    """Send `x` to the rank `to` further on in the ring; return what is received, of the given shape."""
    received = x.new_empty(tuple(shape))
    target, source = (comm.rank + to) % comm.size, (comm.rank - to) % comm.size
    comm.Sendrecv(x.detach().contiguous().numpy(), target, recvbuf=received.numpy(), source=source)
    return received


def exchanged(
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
        return None, summed(ctx.comm, gradient)


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
        return summed(comm, x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


class _GatherFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim, ctx.length = comm, dim, shard.shape[dim]
        whole = joined(comm, shard, dim)
        ctx.start = comm.exscan(ctx.length) or 0
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, gradient.narrow(ctx.dim, ctx.start, ctx.length), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim = comm, dim
        return joined(comm, shard, dim, even=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, summed_shard(ctx.comm, gradient, ctx.dim), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.comm, ctx.dim = comm, dim
        return summed_shard(comm, x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, joined(ctx.comm, gradient, ctx.dim), None


class _RingShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        ctx.comm, ctx.shape = comm, x.shape
        return passed_on(comm, x, shape, to=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, passed_on(ctx.comm, gradient, ctx.shape, to=-1), None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, comm: MPI.Intracomm, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        ctx.comm, ctx.send_counts, ctx.receive_counts = comm, send, receive
        return exchanged(comm, rows, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        return None, exchanged(ctx.comm, gradient, ctx.receive_counts, ctx.send_counts), None, None


def copy_to(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """`x` itself; its gradient is the sum of all ranks' gradients. Megatron's f."""
    return _CopyTo.apply(comm, x)


def reduce_from(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' `x`, on every rank; the gradient passes unchanged. Megatron's g."""
    return _ReduceFrom.apply(comm, x)


def gather_from(comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """All ranks' shards along `dim`, for a result that all ranks use in the same way."""
    return _GatherFrom.apply(comm, shard, dim)


def all_gather(comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """All ranks' `even_ranges` shards along `dim`, for a result that each rank uses in its own way."""
    return _AllGather.apply(comm, shard, dim)


def reduce_scatter(comm: MPI.Intracomm, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's shard, along `dim`, of the sum of all ranks' `x`."""
    return _ReduceScatter.apply(comm, x, dim)


def ring_shift(comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Send `x` to the right, return the left neighbour's, of the given shape; gradients go back."""
    return _RingShift.apply(comm, x, shape)


def all_to_all(
    comm: MPI.Intracomm, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> torch.Tensor:
    """Send rows to their ranks, the first `send_counts[0]` to rank 0, …; gradients go back.

    Returns what is received, `receive_counts[r]` rows from rank r, in the order of the ranks.
    """
    return _AllToAll.apply(comm, rows, send_counts, receive_counts)
