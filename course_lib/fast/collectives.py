"""The collectives of `comm/collectives.py` that a benchmark times, as fast as Python calls MPI.

    long messages     a chunk is summed in pieces of PIECE_BYTES: a received piece is added while the cache
                      holds it, and every piece is received into the same small block of memory
    short messages    arrays are cut without `np.array_split`, which takes 5 µs, longer than the message
    slow links        both directions of a link are busy at the same time: see `_eager_ring_allreduce`

The order in which numbers are added is that of the plain forms, so the sums have the same bits. The exception
is a short array on more than two nodes, which `hierarchical_allreduce` sums in an order of its own.
"""

from itertools import accumulate

import numpy as np
from mpi4py import MPI

from course_lib.comm.buffers import Array, flat, must_be_apart, must_be_numbers, must_be_rank, must_match
from course_lib.comm.collectives import (
    DOUBLING,
    FOLD,
    RING_BROADCAST,
    RING_COPY,
    RING_PARTIAL_SUM,
    RING_SHARD,
    RING_SUM,
    TREE_CHUNKS,
    distances,
    tree_broadcast,
    tree_reduce,
)
from course_lib.theory.partition import even_ranges

PIECE_BYTES = 2**20  # as large as a common second-level cache
EAGER_BYTES = 60 * 2**10  # with its header below 64 KiB: so long a message Open MPI sends over TCP at once
SHORT_BYTES = 2**14  # between nodes, doubling is faster up to here: fewer steps, but more bytes
_WHOLE = [slice(None)]


def ring_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place; each rank sends 2(n-1)/n of its bytes (Patarasuk & Yuan 2009)."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split(flat(buffer), n)
    scratch = np.empty_like(chunks[0][pieces(chunks[0])[0]])  # the first chunk is the longest
    for step in range(n - 1):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        for piece in pieces(chunks[0]):
            mine = into[piece]
            incoming = scratch[: mine.size]
            comm.Sendrecv(out[piece], right, RING_SUM, incoming, left, RING_SUM)
            mine += incoming
    for step in range(n - 1):
        out, into = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        comm.Sendrecv(out, right, RING_COPY, into, left, RING_COPY)


def recursive_doubling_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place, in about log2(n) exchanges of all of it (Thakur et al. 2005)."""
    n, rank = comm.size, comm.rank
    data = flat(buffer)
    core = 1 << (n.bit_length() - 1)  # the largest power of two up to n
    scratch = np.empty_like(data[pieces(data)[0]])
    for piece in pieces(data):
        mine = data[piece]
        incoming = scratch[: mine.size]
        if rank >= core:
            comm.Send(mine, rank - core, FOLD)
            comm.Recv(mine, rank - core, FOLD)
            continue
        if rank + core < n:
            comm.Recv(incoming, rank + core, FOLD)
            mine += incoming
        for distance in distances(core):
            comm.Sendrecv(mine, rank ^ distance, DOUBLING, incoming, rank ^ distance, DOUBLING)
            mine += incoming
        if rank + core < n:
            comm.Send(mine, rank + core, FOLD)


def hierarchical_allreduce(inside: MPI.Comm, between: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over all nodes, in place: inside each node, between the nodes, inside each node again."""
    data = flat(buffer)
    tree_reduce(inside, data)
    if inside.rank == 0 and data.nbytes <= SHORT_BYTES:
        recursive_doubling_allreduce(between, data)
    elif inside.rank == 0:
        _eager_ring_allreduce(between, data)
    tree_broadcast(inside, data)


def _eager_ring_allreduce(comm: MPI.Comm, data: Array) -> None:
    """Sum `data` over `comm`, in place, round the ring in pieces that are sent on as soon as they are summed.

    For links that must be busy in both directions at once. A long message starts with a question and an
    answer. With two nodes, the answer can wait behind a long message that goes the same way: then first one
    node sends and afterwards the other. MPI asks no question before a piece of EAGER_BYTES.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split(data, n)
    cuts = pieces(chunks[0], EAGER_BYTES)
    incoming = np.empty_like(chunks[0])
    leaving = [[comm.Isend(chunks[rank][cut], right, RING_SUM) for cut in cuts]] if n > 1 else []
    for step in range(2 * (n - 1)):  # of ring_allreduce: first those that sum, then those that copy
        into = chunks[(rank - step - 1) % n]
        if step >= n - 1:
            MPI.Request.Waitall(leaving[step + 1 - n])  # the partial sum that is now replaced has left
        landing = incoming[: into.size] if step < n - 1 else into
        arriving = [comm.Irecv(landing[cut], left, RING_SUM) for cut in cuts]
        leaving.append([])
        for cut, request in zip(cuts, arriving, strict=True):
            request.Wait()
            if step < n - 1:
                into[cut] += landing[cut]
            if step < 2 * (n - 1) - 1:
                leaving[-1].append(comm.Isend(into[cut], right, RING_SUM))
    for requests in leaving:
        MPI.Request.Waitall(requests)


def ring_reduce_scatter(comm: MPI.Comm, buffer: Array, out: Array) -> None:
    """Sum `buffer` over `comm`; `out` becomes this rank's chunk of the sum."""
    must_be_numbers(buffer, "buffer", written=False, split=True)
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split(buffer, n)
    must_match(out, "out", chunks[rank].shape, buffer.dtype)
    must_be_apart(buffer, out, "buffer and out")
    result, chunks = flat(out, "out"), [chunk.reshape(-1) for chunk in chunks]
    for piece in pieces(chunks[0]):
        partial = chunks[(rank - 1) % n][piece]
        for step in range(n - 1):
            mine = chunks[(rank - step - 2) % n][piece]
            incoming = np.empty_like(mine)
            comm.Sendrecv(partial, right, RING_PARTIAL_SUM, incoming, left, RING_PARTIAL_SUM)
            incoming += mine
            partial = incoming
        result[piece] = partial


def ring_allgather(comm: MPI.Comm, shard: Array, out: Array) -> None:
    """Gather every rank's `shard` into `out`, on all ranks; each rank sends (n-1)/n of the bytes of `out`."""
    must_be_numbers(out, "out", written=True, split=True)
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split(out, n)
    must_match(shard, "shard", chunks[rank].shape, out.dtype)
    chunks[rank][...] = shard
    for step in range(n - 1):
        outgoing, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        comm.Sendrecv(outgoing, right, RING_SHARD, into, left, RING_SHARD)


def scatter_allgather_broadcast(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Copy root's `buffer` to all ranks: scatter down a tree, then all-gather round the ring."""
    must_be_rank(comm, root)
    n, rank, relative = comm.size, comm.rank, (comm.rank - root) % comm.size
    right, left = (rank + 1) % n, (rank - 1) % n
    data = flat(buffer, written=relative > 0)
    chunks = split(data, n)
    starts = [0, *accumulate(len(chunk) for chunk in chunks), *n * [len(data)]]
    for distance in reversed(distances(n)):
        if relative % (2 * distance) == 0 and relative + distance < n:
            upper = data[starts[relative + distance] : starts[relative + 2 * distance]]
            comm.Send(upper, (rank + distance) % n, TREE_CHUNKS)
        if relative % (2 * distance) == distance:
            mine = data[starts[relative] : starts[relative + distance]]
            comm.Recv(mine, (rank - distance) % n, TREE_CHUNKS)
    to, source = MPI.PROC_NULL if right == root else right, MPI.PROC_NULL if rank == root else left
    for step in range(n - 1):
        outgoing, into = chunks[(relative - step) % n], chunks[(relative - step - 1) % n]
        comm.Sendrecv(outgoing, to, RING_BROADCAST, into, source, RING_BROADCAST)


# ------------------------------------------------------------------------------------ cutting


def split(array: Array, count: int) -> list[Array]:
    """The chunks that `np.array_split(array, count)` returns: views."""
    return [array[chunk.start : chunk.stop] for chunk in even_ranges(len(array), count)]


def pieces(data: Array, nbytes: int = PIECE_BYTES) -> list[slice]:
    """Consecutive slices of one-dimensional `data`, each of up to `nbytes`; one when it is empty."""
    length = nbytes // data.itemsize
    if data.size <= length:
        return _WHOLE
    return [slice(start, start + length) for start in range(0, data.size, length)]
