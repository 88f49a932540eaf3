"""The collectives of `comm/collectives.py` that add, with little memory traffic; benchmarks time them.

    long messages     a chunk is summed in pieces of PIECE_BYTES: a received piece is added while the cache
                      holds it, and every piece is received into the same small block of memory
    slow links        long arrays are sent in eager pieces, so that both directions of a link are busy: see
                      `_eager_ring_allreduce`

Numbers are added in the same order as in the plain forms, so the bits are equal; except for a short array on
more than two nodes, which `hierarchical_allreduce` sums by recursive doubling.
"""

import numpy as np
from mpi4py import MPI

from course_lib.comm.buffers import Array, flat, must_be_apart, must_be_numbers, must_match
from course_lib.comm.collectives import (
    DOUBLING,
    FOLD,
    RING_COPY,
    RING_PARTIAL_SUM,
    RING_SUM,
    chunks_of,
    distances,
    tree_broadcast,
    tree_reduce,
)

PIECE_BYTES = 2**20  # as large as a common second-level cache
# 60 KiB and a header are below 64 KiB, up to which Open MPI sends eagerly over TCP (`btl_tcp_eager_limit`).
# Where the limit is lower, the ring is still correct, only slower.
EAGER_BYTES = 60 * 2**10
SHORT_BYTES = 2**14  # between nodes, doubling is used up to here: fewer steps, but more bytes


def ring_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place; each rank sends 2(n-1)/n of its bytes (Patarasuk & Yuan 2009)."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = chunks_of(flat(buffer), n)
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
    """Sum `buffer` over all nodes, in place: inside each node, between the leaders, who pass the sum on.

    Arguments as in `comm.collectives.hierarchical_allreduce`: `between` is COMM_NULL except on each node's
    rank 0, its leader. Only what the leaders do differs; inside a node, these are the plain trees.
    """
    data = flat(buffer)
    tree_reduce(inside, data)
    if inside.rank == 0 and data.nbytes <= SHORT_BYTES:
        recursive_doubling_allreduce(between, data)
    elif inside.rank == 0:
        _eager_ring_allreduce(between, data)
    tree_broadcast(inside, data)


def _eager_ring_allreduce(comm: MPI.Comm, data: Array) -> None:
    """Sum `data` over `comm`, in place, over a ring, in pieces: each is sent on as soon as it is summed.

    Use it when a link is fast only if both directions are busy. MPI sends a long message by **rendezvous**:
    the sender asks, the receiver answers when its receive is posted, and only then the data follow. With two
    nodes, the left and the right neighbour are the same node: its answer can queue behind the data that it is
    sending, so the two directions take place one after the other. A piece of EAGER_BYTES is sent **eagerly**,
    without that handshake.

    Memory: a late rank's MPI stores the eager pieces that arrive before their receives are posted, in the
    worst case as many bytes as `data` has.
    """
    n, rank = comm.size, comm.rank
    if n == 1:
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = chunks_of(data, n)
    cuts = pieces(chunks[0], EAGER_BYTES)
    incoming = np.empty_like(chunks[0])
    # One tag: what a step sends is received in the next step, which may copy where this one sums.
    sends = [[comm.Isend(chunks[rank][cut], right, RING_SUM) for cut in cuts]]
    # Steps 0 … n-2 sum (reduce-scatter), n-1 … 2n-3 copy (all-gather). Each receives chunk rank-step-1 and
    # sends it on.
    for step in range(2 * (n - 1)):
        into = chunks[(rank - step - 1) % n]
        if step >= n - 1:  # `into` was sent n steps ago, as a partial sum: wait before it is overwritten
            MPI.Request.Waitall(sends[step + 1 - n])
        target = incoming[: into.size] if step < n - 1 else into
        receives = [comm.Irecv(target[cut], left, RING_SUM) for cut in cuts]
        sends.append([])
        for cut, request in zip(cuts, receives, strict=True):
            request.Wait()
            if step < n - 1:
                into[cut] += target[cut]
            if step < 2 * (n - 1) - 1:
                sends[-1].append(comm.Isend(into[cut], right, RING_SUM))
    for requests in sends[n - 1 :]:  # the loop has waited for those before
        MPI.Request.Waitall(requests)


def ring_reduce_scatter(comm: MPI.Comm, buffer: Array, out: Array) -> None:
    """Sum `buffer` over `comm`; `out` becomes this rank's chunk of the sum."""
    must_be_numbers(buffer, "buffer", written=False, split=True)
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = chunks_of(buffer, n)
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


def pieces(data: Array, nbytes: int = PIECE_BYTES) -> list[slice]:
    """Consecutive slices of one-dimensional `data`, each of up to `nbytes`; one when it is empty."""
    length = nbytes // data.itemsize
    if data.size <= length:
        return [slice(None)]
    return [slice(start, start + length) for start in range(0, data.size, length)]
