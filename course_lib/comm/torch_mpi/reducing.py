"""The three collectives that compute: all_reduce, reduce, reduce_scatter.

Four ways, by dtype, size and machine:
    MPI has the type                            MPI's own call, in place
    … all ranks on one machine                  through memory that all of them see
    … a large sum over several machines         the ring (Patarasuk & Yuan 2009), in pieces that fit the cache
    MPI lacks the type                          each rank gets its share of all tensors and adds in float32
"""

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI

from course_lib.comm.collectives import ring_allreduce
from course_lib.theory.partition import even_ranges

from . import buffers
from .buffers import pieces, readable, row, writable
from .channel import Channel
from .movement import exchange
from .reductions import AVG, NATIVE, PREMUL_SUM, average, combine, kind_of, scaled

RING_BYTES = 16 * 2**20  # from here on the ring is faster than MPI_Allreduce
GATHER_BYTES = 32 * 2**10  # up to here every rank gets everything: one exchange instead of two


def all_reduce(channel: Channel, tensor: torch.Tensor, op: Any, kind: int) -> None:
    """Reduce `tensor` over the ranks, in place, the same bits on every rank."""
    with writable([tensor], read=True) as (plain,):
        if kind == PREMUL_SUM:
            plain.detach().copy_(scaled(plain, op))
        if is_native_row(plain, kind):
            all_reduce_row(channel, plain, kind)
        else:
            all_reduce_wider(channel.comm, plain.detach().view(-1), kind)


def is_native_row(tensor: torch.Tensor, kind: int) -> bool:
    """Can MPI reduce it as it stands?"""
    return (tensor.dtype, kind) in NATIVE and buffers.is_plain(tensor)


def show(channel: Channel, tensor: torch.Tensor) -> None:
    """Before the gate: put the first piece of what is about to be reduced where all see it, if they can."""
    if channel.rows:
        channel.rows.fill(tensor.data_ptr(), tensor.nbytes)


def all_reduce_row(channel: Channel, tensor: torch.Tensor, kind: int) -> None:
    """All-reduce a plain tensor of a type that MPI has, in the fastest way."""
    reduce_row(channel, tensor, *NATIVE[tensor.dtype, kind])
    if kind == AVG:
        average(tensor, channel.size)


def reduce_row(channel: Channel, tensor: torch.Tensor, datatype: MPI.Datatype, op: MPI.Op) -> None:
    """As all_reduce_row, by what MPI knows: its type and its operation."""
    rows = channel.find_rows()
    if rows:
        rows.all_reduce(tensor.data_ptr(), tensor.numel(), datatype, op)
        return
    for piece in pieces(tensor):
        if tensor.nbytes >= RING_BYTES and op == MPI.SUM:
            ring_allreduce(channel.comm, piece.detach().view(-1).numpy())
        else:
            channel.comm.Allreduce(MPI.IN_PLACE, row(piece, datatype), op)


def all_reduce_wider(comm: MPI.Intracomm, flat: torch.Tensor, kind: int) -> None:
    """All-reduce a row of a type MPI lacks: every rank reduces its share, then the shares are gathered."""
    ranks = range(comm.size)
    if flat.nbytes * comm.size <= GATHER_BYTES:
        rows = torch.empty((comm.size, *flat.shape), dtype=flat.dtype)
        comm.Allgather(row(flat), [row(rows)[0], flat.numel(), row(rows)[2]])
        combine(list(rows), kind, flat)
        return
    shares = list(flat.split([len(part) for part in even_ranges(flat.numel(), comm.size)]))
    mine = shares[comm.rank]
    rows = torch.empty((comm.size, mine.numel()), dtype=flat.dtype)
    exchange(comm, list(zip(ranks, shares, strict=True)), list(zip(ranks, rows, strict=True)))
    combine(list(rows), kind, mine)
    exchange(comm, [(rank, mine) for rank in ranks], list(zip(ranks, shares, strict=True)))


def reduce(comm: MPI.Intracomm, tensor: torch.Tensor, op: Any, root: int) -> None:
    """Reduce `tensor` into the one of `root`; the tensors of the other ranks stay as they are."""
    kind = kind_of(op)
    native = NATIVE.get((tensor.dtype, kind))
    source = readable(scaled(tensor, op) if kind == PREMUL_SUM else tensor)
    if native is None:
        total = source.detach().clone().view(-1)
        all_reduce_wider(comm, total, kind)
        if comm.rank == root:
            tensor.detach().copy_(total.view(tensor.shape))
        return
    if comm.rank != root:
        for piece in pieces(source):
            comm.Reduce(row(piece, native[0]), None, native[1], root)
        return
    with writable([tensor]) as (plain,):
        if plain.data_ptr() != source.data_ptr():
            plain.detach().copy_(source)
        for piece in pieces(plain):
            comm.Reduce(MPI.IN_PLACE, row(piece, native[0]), native[1], root)
        if kind == AVG:
            average(plain, comm.size)


def reduce_scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Any) -> None:
    """Reduce the r-th of `inputs` over the ranks into the `output` of rank r; sizes may differ."""
    reduce_scatter_row(
        channel,
        output,
        torch.cat([readable(tensor).detach().view(-1) for tensor in inputs]),
        counts_of(inputs),
        op,
    )


def counts_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def reduce_scatter_row(
    channel: Channel, output: torch.Tensor, tensor: torch.Tensor, counts: Sequence[int], op: Any
) -> None:
    """As reduce_scatter, of one tensor that is cut into parts of `counts` elements."""
    kind = kind_of(op)
    native = NATIVE.get((tensor.dtype, kind))
    source = readable(scaled(tensor, op) if kind == PREMUL_SUM else tensor)
    with writable([output]) as (plain,):
        rows = channel.find_rows() if native else None
        if native and rows:
            rows.reduce_scatter(plain.data_ptr(), source.data_ptr(), counts, *native)
        elif native is None or tensor.numel() > buffers.MAX_COUNT:
            reduce_scatter_parts(channel.comm, plain, source.detach().view(-1).split(list(counts)), kind)
            return
        else:
            channel.comm.Reduce_scatter(row(source, native[0]), row(plain, native[0]), counts, native[1])
        if kind == AVG:
            average(plain, channel.size)


def reduce_scatter_parts(
    comm: MPI.Intracomm, output: torch.Tensor, parts: Sequence[torch.Tensor], kind: int
) -> None:
    """As reduce_scatter, of what MPI cannot reduce or count: exchange parts; each rank reduces its own."""
    rows = torch.empty((comm.size, output.numel()), dtype=output.dtype)
    ranks = range(comm.size)
    exchange(comm, list(zip(ranks, parts, strict=True)), list(zip(ranks, rows, strict=True)))
    combine(list(rows), kind, output.view(-1))
