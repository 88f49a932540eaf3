"""Moving tensors in the way of each collective. All ranks have passed the gate: sizes agree, all are here.

What MPI does on one row of memory is MPI's call. Lists of tensors are exchanged directly, each into its
place, with one message a pair: no packing, no copy. So is what MPI cannot count.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from mpi4py import MPI

from . import buffers
from .buffers import pieces, readable, row, whole, writable
from .errors import MismatchError

TAG = 1  # on the group's own communicator, where no message of the user is
Letter = tuple[int, torch.Tensor]  # the other rank, and what it gets or gives


def exchange(comm: MPI.Intracomm, sends: Sequence[Letter], receives: Sequence[Letter]) -> None:
    """Send each tensor to its rank and receive into each tensor from its rank; a rank's own is copied."""
    own = [tensor for rank, tensor in sends if rank == comm.rank]
    to = [tensor for rank, tensor in receives if rank == comm.rank]
    for source, into in zip(own, to, strict=True):
        if into.data_ptr() != source.data_ptr():
            into.detach().copy_(source.detach().reshape(into.shape))
    sends = [(rank, readable(tensor)) for rank, tensor in sends if rank != comm.rank]
    receives = [(rank, tensor) for rank, tensor in receives if rank != comm.rank]
    with writable([tensor for _, tensor in receives]) as places, ExitStack() as types:
        requests = [
            comm.Irecv(types.enter_context(whole(place)), rank, TAG)
            for (rank, _), place in zip(receives, places, strict=True)
        ]
        requests += [comm.Isend(types.enter_context(whole(tensor)), rank, TAG) for rank, tensor in sends]
        MPI.Request.Waitall(requests)


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor, root: int) -> None:
    """Root's values in everyone's `tensor`."""
    with writable([tensor], read=comm.rank == root) as (plain,):
        for piece in pieces(plain):
            comm.Bcast(row(piece), root)


def all_gather_row(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Everyone's `tensor`, one after the other, in `output`; `tensor` may be its own part of `output`."""
    with writable([output]) as (whole_row,):
        if output.numel() > buffers.MAX_COUNT:
            parts = whole_row.view(-1).chunk(comm.size)
            everyone = range(comm.size)
            exchange(comm, [(rank, tensor) for rank in everyone], list(zip(everyone, parts, strict=True)))
            return
        mine = readable(tensor)
        offset = comm.rank * mine.nbytes
        in_place = mine.numel() and mine.data_ptr() == whole_row.data_ptr() + offset
        count = mine.numel()
        spec = row(whole_row)
        comm.Allgather(MPI.IN_PLACE if in_place else row(mine), [spec[0], count, spec[2]])


def all_to_all_row(
    comm: MPI.Intracomm,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_counts: Sequence[int],
    input_counts: Sequence[int],
    largest: int,
) -> None:
    """Rank r gets the r-th part of `tensor`; parts, and the largest tensor of any rank, in elements."""
    with writable([output]) as (into,):
        source = readable(tensor)
        if largest <= buffers.MAX_COUNT:
            give, take = row(source), row(into)
            comm.Alltoallv(
                [give[0], (input_counts, starts(input_counts)), give[2]],
                [take[0], (output_counts, starts(output_counts)), take[2]],
            )
            return
        ranks = range(comm.size)
        exchange(
            comm,
            list(zip(ranks, source.detach().view(-1).split(list(input_counts)), strict=True)),
            list(zip(ranks, into.detach().view(-1).split(list(output_counts)), strict=True)),
        )


def starts(counts: Sequence[int]) -> list[int]:
    """Where each part begins."""
    return [sum(counts[:rank]) for rank in range(len(counts))]


def agree_on_parts(comm: MPI.Intracomm, gives: Sequence[int], takes: Sequence[int]) -> int:
    """The largest total of any rank; MismatchError on all unless each takes what the others give it."""
    table = np.empty((comm.size, 2, comm.size), dtype=np.int64)
    comm.Allgather(np.array([list(gives), list(takes)], dtype=np.int64), table)
    given, taken = table[:, 0], table[:, 1].T  # both: row of the giver, column of the taker
    if (given != taken).any():
        giver, taker = np.argwhere(given != taken)[0]
        raise MismatchError(
            f"all_to_all: rank {giver} gives {given[giver, taker]} elements to rank {taker}, "
            f"which takes {taken[giver, taker]}"
        )
    return int(table.sum(axis=2).max())
