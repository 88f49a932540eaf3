"""Collectives by hand, on point-to-point messages alone; MPI's own are the oracle.

    all-reduce       ring, recursive doubling         before  0│a0 a1   1│b0 b1     after  both│a0+b0 a1+b1
    reduce-scatter   ring                                     0│a0 a1   1│b0 b1            0│a0+b0  1│a1+b1
    all-gather       ring                                     0│a       1│b                both│a b
    broadcast        tree, scatter + all-gather               0│a b     1│- -              both│a b
    reduce           tree                                     0│a       1│b                0│a+b    1│b
    scatter, gather  root sends, root receives                0│a b     1│-                0│a      1│b
    all-to-all       pairwise                                 0│a0 a1   1│b0 b1            0│a0 b0  1│a1 b1
    barrier          dissemination

Any number of ranks, any length, any dtype of numbers; parts are those of `np.array_split`. Arrays have to be
contiguous, and what cannot be right is a ValueError before the first message. A sum has the same bits on
every rank that gets it. `theory/cost_model.py` tells what each costs.

Sources: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
experience" (2007); Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
(2009); Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
"""

from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from course_lib.comm.buffers import (
    flat_view,
    must_be_apart,
    must_be_filled,
    must_be_rank,
    must_match,
    pieces,
    shards,
    split,
)

Array = NDArray[Any]

# One tag for each kind of message: ranks that call different collectives wait, and do not mix up their data.
RING_SUM, RING_COPY, DOUBLING, FOLD, TREE_COPY, TREE_SUM = range(4301, 4307)
TREE_PARTS, RING_PARTS, SCATTER, GATHER, ALL_TO_ALL, BARRIER = range(4307, 4313)


# ------------------------------------------------------------------------------------ all-reduce


def ring_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place; each rank sends 2(n-1)/n of its bytes (Patarasuk & Yuan 2009)."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split(flat_view("buffer", buffer, written=True), n)  # views: writing to them writes to buffer
    scratch = np.empty_like(chunks[0][pieces(chunks[0])[0]])  # the first chunk is the longest
    for step in range(n - 1):  # reduce-scatter: chunk rank+1 becomes complete here
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        for piece in pieces(chunks[0]):
            mine = into[piece]
            incoming = scratch[: mine.size]
            comm.Sendrecv(out[piece], right, RING_SUM, incoming, left, RING_SUM)
            mine += incoming
    for step in range(n - 1):  # all-gather: complete chunks go round once more
        out, into = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        comm.Sendrecv(out, right, RING_COPY, into, left, RING_COPY)


def recursive_doubling_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place, in about log2(n) exchanges of all of it (Thakur et al. 2005).

    Of n ranks the first 2^k do it; each of the others hands its numbers to one of them and gets the sum.
    """
    n, rank = comm.size, comm.rank
    flat = flat_view("buffer", buffer, written=True)
    core = 1 << (n.bit_length() - 1)  # the largest power of two up to n
    scratch = np.empty_like(flat[pieces(flat)[0]])
    for piece in pieces(flat):
        mine = flat[piece]
        incoming = scratch[: mine.size]
        if rank >= core:
            comm.Send(mine, rank - core, FOLD)
            comm.Recv(mine, rank - core, FOLD)
            continue
        if rank + core < n:
            comm.Recv(incoming, rank + core, FOLD)
            mine += incoming
        for distance in distances(core):  # the partner's number differs in one bit
            comm.Sendrecv(mine, rank ^ distance, DOUBLING, incoming, rank ^ distance, DOUBLING)
            mine += incoming
        if rank + core < n:
            comm.Send(mine, rank + core, FOLD)


@cache
def distances(size: int) -> tuple[int, ...]:
    """1, 2, 4 … below `size`: as many rounds as it takes to reach everyone when their number doubles."""
    return tuple(1 << k for k in range((size - 1).bit_length()))


# ------------------------------------------------------------------------------------ the ring's two halves


def ring_reduce_scatter(comm: MPI.Comm, buffer: Array, out: Array) -> None:
    """Sum `buffer` over `comm`; `out` becomes this rank's `np.array_split` part of the sum.

    `buffer` stays as it is, and shares no memory with `out`. Each rank sends (n-1)/n of its bytes.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    parts = shards("buffer", buffer, n, written=False)
    must_match("out", out, parts[rank].shape, buffer.dtype)
    must_be_apart("buffer and out", buffer, out)
    result, chunks = flat_view("out", out, written=True), [part.reshape(-1) for part in parts]
    for piece in pieces(chunks[0]):
        partial = chunks[(rank - 1) % n][piece]
        for step in range(n - 1):  # a partial sum passes every rank and ends where it belongs
            mine = chunks[(rank - step - 2) % n][piece]
            incoming = np.empty_like(mine)
            comm.Sendrecv(partial, right, RING_PARTS, incoming, left, RING_PARTS)
            incoming += mine
            partial = incoming
        result[piece] = partial


def ring_allgather(comm: MPI.Comm, shard: Array, out: Array) -> None:
    """Gather every rank's `shard` into `out`, the whole, on all; each rank sends (n-1)/n of its bytes.

    The shards are those of `np.array_split(out, n)`. `shard` may be the part of `out` itself.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = shards("out", out, n, written=True)
    must_match("shard", shard, chunks[rank].shape, out.dtype)
    chunks[rank][...] = shard
    for step in range(n - 1):
        outgoing, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        comm.Sendrecv(outgoing, right, RING_COPY, into, left, RING_COPY)


# ------------------------------------------------------------------------------------ from and to a root


def tree_broadcast(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Copy root's `buffer` to all ranks; after each of log2(n) rounds twice as many have it."""
    must_be_rank(comm, root)
    n, place = comm.size, (comm.rank - root) % comm.size  # places are counted from the root
    flat = flat_view("buffer", buffer, written=place > 0)
    for distance in distances(n):
        if place < distance and place + distance < n:
            comm.Send(flat, (comm.rank + distance) % n, TREE_COPY)
        if distance <= place < 2 * distance:
            comm.Recv(flat, (comm.rank - distance) % n, TREE_COPY)


def scatter_allgather_broadcast(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Copy root's `buffer` to all ranks: deal it out in parts down a tree, then let the parts go round.

    For large buffers: the root sends less than two times its bytes, a tree's root log2(n) times. Nobody
    sends to the root, which has all parts already.
    """
    must_be_rank(comm, root)
    n, rank = comm.size, comm.rank
    place, right, left = (rank - root) % n, (rank + 1) % n, (rank - 1) % n
    flat = flat_view("buffer", buffer, written=place > 0)
    parts = split(flat, n)
    starts = [0, *accumulate(len(part) for part in parts), *n * [flat.size]]  # of each place's part
    for distance in reversed(distances(n)):  # halve what is still to be dealt
        if place % (2 * distance) == 0 and place + distance < n:
            part = flat[starts[place + distance] : starts[place + 2 * distance]]
            comm.Send(part, (rank + distance) % n, TREE_PARTS)
        if place % (2 * distance) == distance:
            part = flat[starts[place] : starts[place + distance]]
            comm.Recv(part, (rank - distance) % n, TREE_PARTS)
    to, source = MPI.PROC_NULL if right == root else right, MPI.PROC_NULL if rank == root else left
    for step in range(n - 1):
        outgoing, into = parts[(place - step) % n], parts[(place - step - 1) % n]
        comm.Sendrecv(outgoing, to, RING_COPY, into, source, RING_COPY)


def tree_reduce(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Sum `buffer` over `comm` into root's `buffer`; that of every other rank stays as it is."""
    must_be_rank(comm, root)
    n, place = comm.size, (comm.rank - root) % comm.size
    flat = flat_view("buffer", buffer, written=place == 0)
    for piece in pieces(flat):
        total = flat[piece]
        for distance in reversed(distances(n)):
            if place < distance and place + distance < n:
                incoming = np.empty_like(total)
                comm.Recv(incoming, (comm.rank + distance) % n, TREE_SUM)
                incoming += total
                total = incoming
            if distance <= place < 2 * distance:
                comm.Send(total, (comm.rank - distance) % n, TREE_SUM)
        if place == 0:
            flat[piece] = total


def scatter(comm: MPI.Comm, whole: Array | None, shard: Array, root: int = 0) -> None:
    """Deal root's `whole` out: every rank's `shard` becomes its `np.array_split` part.

    The root sends each part itself: n-1 messages, but no byte twice. The others may give None as `whole`.
    """
    must_be_rank(comm, root)
    flat_view("shard", shard, written=True)
    if comm.rank != root:
        comm.Recv(shard, root, SCATTER, received := MPI.Status())
        must_be_filled("shard", shard, received)
        return
    parts = shards("whole", whole, comm.size, written=False)
    must_match("shard", shard, parts[root].shape, parts[root].dtype)
    for rank, part in enumerate(parts):
        if rank != root:
            comm.Send(part, rank, SCATTER)
    shard[...] = parts[root]


def gather(comm: MPI.Comm, shard: Array, whole: Array | None, root: int = 0) -> None:
    """Collect every rank's `shard` in root's `whole`, in the order of the ranks.

    The shards are those of `np.array_split(whole, n)`. The others may give None as `whole`.
    """
    must_be_rank(comm, root)
    flat_view("shard", shard, written=False)
    if comm.rank != root:
        comm.Send(shard, root, GATHER)
        return
    parts = shards("whole", whole, comm.size, written=True)
    must_match("shard", shard, parts[root].shape, parts[root].dtype)
    parts[root][...] = shard
    for rank, part in enumerate(parts):
        if rank != root:
            comm.Recv(part, rank, GATHER, received := MPI.Status())
            must_be_filled(f"part {rank} of whole", part, received)


# ------------------------------------------------------------------------------------ everyone to everyone


def pairwise_alltoall(comm: MPI.Comm, outgoing: Array, incoming: Array) -> None:
    """Send part r of `outgoing` to rank r; `incoming` becomes the parts from ranks 0, 1 …, one after another.

    The parts are those of `np.array_split(outgoing, n)`, and all ranks have equally much to send. So
    `incoming` is n times this rank's own part; when n divides the length, as long as `outgoing`.
    """
    n, rank = comm.size, comm.rank
    parts = shards("outgoing", outgoing, n, written=False)
    length, *rest = parts[rank].shape
    must_match("incoming", incoming, (n * length, *rest), outgoing.dtype)
    must_be_apart("outgoing and incoming", outgoing, incoming)
    places = shards("incoming", incoming, n, written=True)
    places[rank][...] = parts[rank]
    for distance in range(1, n):  # in each round everyone sends to one rank and receives from one
        to, source = (rank + distance) % n, (rank - distance) % n
        comm.Sendrecv(parts[to], to, ALL_TO_ALL, places[source], source, ALL_TO_ALL)


def dissemination_barrier(comm: MPI.Comm) -> None:
    """Return when all ranks have called it: after round k everyone has heard of 2^k ranks."""
    nothing = np.empty(0, np.uint8)
    for distance in distances(comm.size):
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(nothing, to, BARRIER, nothing, source, BARRIER)
