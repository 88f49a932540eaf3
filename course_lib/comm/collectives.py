"""Collectives by hand, on point-to-point messages alone; tests compare them with MPI's own.

    all-reduce       ring, doubling, hierarchical     before  0│a0 a1   1│b0 b1     after  both│a0+b0 a1+b1
    reduce-scatter   ring                                     0│a0 a1   1│b0 b1            0│a0+b0  1│a1+b1
    all-gather       ring                                     0│a       1│b                both│a b
    broadcast        tree                                     0│a b     1│- -              both│a b
    reduce           tree                                     0│a       1│b                0│a+b    1│b
    scatter, gather  root sends, root receives                0│a b     1│-                0│a      1│b

`0│a0 a1` means that rank 0 holds the chunks a0 and a1 of its array a; rank 1 holds those of b; `-` is a chunk
that is yet to be received. Chunks are those of `np.array_split`: of the first dimension where a rank passes
its own chunk as `shard` or `out`, else of the flattened array. Any number of ranks, length, dtype of numbers.

The ring and doubling call Sendrecv, which sends while it receives: with Send, then Recv, all ranks could wait
in Send. In a tree a rank receives before it sends on, so ranks that wait for each other never form a circle.

An all-reduce leaves the same bits on every rank. In a ring, one rank completes the sum of each chunk, and the
others copy it. In recursive doubling, one partner adds a+b and the other b+a, which have the same bits. All
sums equal one process's up to the order of addition.

A rank whose own array cannot be used raises ValueError before it sends (`comm/buffers.py`); the other ranks
then wait in vain until a timeout or the launcher ends them. Ranks must agree on length, dtype and root, which
is mostly not checked. A message longer than its buffer is MPI's error; a shorter one is noticed only by
`tree_broadcast`, `scatter` and `gather`. An all-reduce of unequal lengths may return wrong sums and no error.

`comm/allreduce.py` has the ring's and doubling's loops. `fast/collectives.py` has the forms that benchmarks
time; it shares this file's tags and chunks. `theory/cost_model.py` predicts what each costs.

Sources: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
experience" (2007); Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
(2009); Kielmann and others, "MagPIe: MPI's collective communication operations for clustered wide area
systems" (1999).
"""

from functools import cache
from typing import cast

import numpy as np
from mpi4py import MPI

from course_lib.comm import allreduce
from course_lib.comm.buffers import (
    Array,
    flat,
    must_be_apart,
    must_be_filled,
    must_be_numbers,
    must_be_rank,
    must_match,
)
from course_lib.theory.partition import even_ranges

# No two collectives share a tag: none can receive another's data. Only the fast ring uses RING_COPY.
RING_SUM, RING_COPY, DOUBLING, FOLD, TREE_COPY, TREE_SUM = range(4301, 4307)
RING_PARTIAL_SUM, RING_SHARD, SCATTER, GATHER = range(4307, 4311)

# ------------------------------------------------------------------------------------ all-reduce


class _Tagged:
    """A communicator whose Sendrecv has one tag, for the loops of `comm/allreduce.py`, which name none."""

    def __init__(self, comm: MPI.Comm, tag: int) -> None:
        self.comm, self.tag, self.rank, self.size = comm, tag, comm.rank, comm.size

    def Sendrecv(self, sendbuf: Array, dest: int, recvbuf: Array, source: int) -> None:
        self.comm.Sendrecv(sendbuf, dest, self.tag, recvbuf, source, self.tag)


def _tagged(comm: MPI.Comm, tag: int) -> MPI.Comm:
    return cast(MPI.Comm, _Tagged(comm, tag))


def ring_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place; each rank sends 2(n-1)/n of its bytes (Patarasuk & Yuan 2009)."""
    allreduce.ring(_tagged(comm, RING_SUM), flat(buffer))  # flat() returns a view: the sum is left in buffer


def recursive_doubling_allreduce(comm: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over `comm`, in place, in about log2(n) exchanges of all of it (Thakur et al. 2005).

    Doubling itself needs 1, 2, 4, 8 … ranks. Of 6 ranks, 4 and 5 first send their arrays to 0 and 1, which
    add them; then 0 to 3 double; at the end 4 and 5 receive the sum.
    """
    n, rank, array = comm.size, comm.rank, flat(buffer)
    power = 2 ** (n.bit_length() - 1)  # the largest of 1, 2, 4 … that is not above n
    if rank >= power:
        comm.Send(array, rank - power, FOLD)
        comm.Recv(array, rank - power, FOLD)
        return
    if rank + power < n:
        incoming = np.empty_like(array)
        comm.Recv(incoming, rank + power, FOLD)
        array += incoming
    allreduce.doubling(_tagged(comm, DOUBLING), array)  # among the first `power` ranks
    if rank + power < n:
        comm.Send(array, rank + power, FOLD)


def hierarchical_allreduce(inside: MPI.Comm, between: MPI.Comm, buffer: Array) -> None:
    """Sum `buffer` over all nodes, in place: inside nodes, between their leaders, back into the nodes.

    `inside` has the ranks of one node; its rank 0 is the node's leader. `between` has all leaders;
    the other ranks pass COMM_NULL. Only what is sent through `between` crosses from node to node:
    with N nodes, a leader sends 2(N-1)/N of the bytes (the ring of Patarasuk & Yuan), however many ranks a
    node has. The idea of leaders: Kielmann et al. 1999.

        inside = comm.Split_type(MPI.COMM_TYPE_SHARED)
        between = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED)
    """
    # before any message: tree_reduce would accept a read-only array where tree_broadcast must write
    must_be_numbers(buffer, "buffer", written=True)
    tree_reduce(inside, buffer)  # the leader has the sum of its node
    if inside.rank == 0:
        ring_allreduce(between, buffer)
    tree_broadcast(inside, buffer)


# ------------------------------------------------------------------ reduce-scatter and all-gather, each alone
# Here rank r ends with chunk r, as in MPI; between the loops of `allreduce.ring`, chunk r+1 is complete.


def chunks_of(array: Array, count: int) -> list[Array]:
    """What `np.array_split(array, count)` returns, views of the first dimension, in a third of its time."""
    return [array[chunk.start : chunk.stop] for chunk in even_ranges(len(array), count)]


def ring_reduce_scatter(comm: MPI.Comm, buffer: Array, out: Array) -> None:
    """Sum `buffer` over `comm`; `out` becomes this rank's chunk of the sum.

    `buffer` is not changed; it must share no memory with `out`. Each rank sends (n-1)/n of its bytes.
    """
    must_be_numbers(buffer, "buffer", written=False, split=True)
    must_be_numbers(out, "out", written=True)
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = chunks_of(buffer, n)
    must_match(out, "out", chunks[rank].shape, buffer.dtype)
    must_be_apart(buffer, out, "buffer and out")
    partial = chunks[left]  # chunk c starts at rank c+1, so that its sum ends at rank c
    for step in range(n - 1):
        mine = chunks[(left - step - 1) % n]
        incoming = np.empty_like(mine)
        comm.Sendrecv(partial, right, RING_PARTIAL_SUM, incoming, left, RING_PARTIAL_SUM)
        partial = incoming + mine
    out[...] = partial


def ring_allgather(comm: MPI.Comm, shard: Array, out: Array) -> None:
    """Gather every rank's `shard` into `out`, on all ranks; each rank sends (n-1)/n of the bytes of `out`.

    `shard` has the shape of this rank's chunk of `out`, and may be that chunk itself.
    """
    must_be_numbers(out, "out", written=True, split=True)
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = chunks_of(out, n)
    must_match(shard, "shard", chunks[rank].shape, out.dtype)
    chunks[rank][...] = shard
    for step in range(n - 1):
        outgoing, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        comm.Sendrecv(outgoing, right, RING_SHARD, into, left, RING_SHARD)


# ------------------------------------------------------------------------------------ from and to a root


@cache  # to compute them takes a microsecond, and a short message takes a few
def distances(size: int) -> tuple[int, ...]:
    """1, 2, 4 … below `size`: the distance to the partner in each round of a tree (or of fast doubling)."""
    return tuple(2**k for k in range((size - 1).bit_length()))


def tree_broadcast(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Copy root's `buffer` to all ranks; after each of log2(n) rounds, rounded up, twice as many have it."""
    must_be_rank(comm, root)
    n, relative = comm.size, (comm.rank - root) % comm.size  # ranks are counted from the root
    data = flat(buffer, written=relative > 0)
    for distance in distances(n):
        if relative < distance and relative + distance < n:
            comm.Send(data, (comm.rank + distance) % n, TREE_COPY)
        if distance <= relative < 2 * distance:
            comm.Recv(data, (comm.rank - distance) % n, TREE_COPY, received := MPI.Status())
            must_be_filled(data, "buffer", received)


def tree_reduce(comm: MPI.Comm, buffer: Array, root: int = 0) -> None:
    """Sum `buffer` over `comm` into root's `buffer`; that of every other rank stays as it is."""
    must_be_rank(comm, root)
    n, relative = comm.size, (comm.rank - root) % comm.size  # ranks are counted from the root
    total = mine = flat(buffer, written=relative == 0)
    incoming = np.empty_like(mine)
    for distance in reversed(distances(n)):  # the tree of the broadcast, backwards
        if relative < distance and relative + distance < n:
            comm.Recv(incoming, (comm.rank + distance) % n, TREE_SUM)
            total = total + incoming
        if distance <= relative < 2 * distance:
            comm.Send(total, (comm.rank - distance) % n, TREE_SUM)
    if relative == 0:
        mine[...] = total


def scatter(comm: MPI.Comm, full: Array | None, shard: Array, root: int = 0) -> None:
    """Distribute root's `full` array: every rank's `shard` becomes its chunk of it.

    The root sends each chunk itself: n-1 messages, but no byte twice. The others may pass None as `full`.
    """
    must_be_rank(comm, root)
    must_be_numbers(shard, "shard", written=True)
    if comm.rank != root:
        comm.Recv(shard, root, SCATTER, received := MPI.Status())
        must_be_filled(shard, "shard", received)
        return
    must_be_numbers(full, "full", written=False, split=True)
    assert full is not None  # refused above
    chunks = chunks_of(full, comm.size)
    must_match(shard, "shard", chunks[root].shape, full.dtype)
    for rank, chunk in enumerate(chunks):
        if rank != root:
            comm.Send(chunk, rank, SCATTER)
    shard[...] = chunks[root]


def gather(comm: MPI.Comm, shard: Array, full: Array | None, root: int = 0) -> None:
    """Collect every rank's `shard` in root's `full` array, in the order of the ranks.

    `shard` has the shape of this rank's chunk of `full`. The others may pass None as `full`.
    """
    must_be_rank(comm, root)
    must_be_numbers(shard, "shard", written=False)
    if comm.rank != root:
        comm.Send(shard, root, GATHER)
        return
    must_be_numbers(full, "full", written=True, split=True)
    assert full is not None  # refused above
    chunks = chunks_of(full, comm.size)
    must_match(shard, "shard", chunks[root].shape, full.dtype)
    chunks[root][...] = shard
    for rank, chunk in enumerate(chunks):
        if rank != root:
            comm.Recv(chunk, rank, GATHER, received := MPI.Status())
            must_be_filled(chunk, f"chunk {rank} of full", received)
