"""Collectives that gradients flow through: what one does forward, its adjoint does backward.

    function            forward                  backward
    copy_to             nothing                  sum over the ranks       all use the same x: Megatron's f
    reduce_from         sum over the ranks       nothing                  each has a part of a sum: its g
    gather_from         all-gather               keep my shard            shards, put together, used alike
    all_gather          all-gather               reduce-scatter           … and used by each in its own way
    reduce_scatter      reduce-scatter           all-gather               a part of a sum, its result cut
    ring_shift          to the right             to the left              blocks that go round a ring
    all_to_all          rows to their ranks      rows back                rows that belong elsewhere

`copy_to`, `reduce_from` and `gather_from` lead from a replicated tensor to one that differs between ranks and
back: a replicated tensor has a replicated gradient, which is why nothing is summed twice.
Shards are those of `even_ranges`: the first ones may be longer by one. Shoeybi et al. (2019), "Megatron-LM";
Korthikanti et al. (2022) for the last two.
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
    """This rank's share of `x`, cut along `dim`: a view."""
    mine = even_range(x.shape[dim], comm.size, comm.rank)
    return x.narrow(dim, mine.start, len(mine))


def joined(comm: MPI.Intracomm, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """All ranks' shards put together along `dim`; they may differ in length there, and nowhere else."""
    rows = shard.detach().movedim(dim, 0).contiguous()
    lengths = comm.allgather(len(rows))
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
    """`x` goes `to` places further on in the ring of ranks; what comes, of the given shape, is returned."""
    came = x.new_empty(tuple(shape))
    right, left = (comm.rank + to) % comm.size, (comm.rank - to) % comm.size
    comm.Sendrecv(x.detach().contiguous().numpy(), right, recvbuf=came.numpy(), source=left)
    return came


def exchanged(
    comm: MPI.Intracomm, rows: torch.Tensor, leave: Sequence[int], come: Sequence[int]
) -> torch.Tensor:
    """The first `leave[0]` rows go to rank 0, the next to rank 1, …; `come[r]` rows come from rank r."""
    came = rows.new_empty(sum(come), *rows.shape[1:])
    width = prod(rows.shape[1:])
    comm.Alltoallv(
        [rows.detach().contiguous().numpy(), [count * width for count in leave]],
        [came.numpy(), [count * width for count in come]],
    )
    return came


# ---------------------------------------------------------------- with their gradients


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
        ctx.comm = comm
        return x.view_as(x)

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
        return joined(comm, shard, dim)

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
        ctx: Any, comm: MPI.Intracomm, rows: torch.Tensor, leave: Sequence[int], come: Sequence[int]
    ) -> torch.Tensor:
        ctx.comm, ctx.leave, ctx.come = comm, leave, come
        return exchanged(comm, rows, leave, come)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        return None, exchanged(ctx.comm, gradient, ctx.come, ctx.leave), None, None


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
    """The left neighbour's `x`, of the given shape, while ours goes to the right; gradients go back."""
    return _RingShift.apply(comm, x, shape)


def all_to_all(
    comm: MPI.Intracomm, rows: torch.Tensor, leave: Sequence[int], come: Sequence[int]
) -> torch.Tensor:
    """Our rows to their ranks, `leave[r]` of them to rank r in this order; `come[r]` come from rank r."""
    return _AllToAll.apply(comm, rows, leave, come)
