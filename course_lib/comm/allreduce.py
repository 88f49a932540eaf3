"""Ways to add up an array over all ranks: in small pieces, or all of it at once.

    ring         2(n-1) messages of 1/n of the array    each rank sends to its right neighbour only
    doubling     log2(n) messages of all of it          with the ranks 1, 2, 4 … away
    halving      2 log2(n) messages: 1/2, 1/4 … 1/n     with the ranks 1, 2, 4 … away, and back

`doubling` and `halving` need 1, 2, 4, 8 … ranks. With another number, MPI raises an error on a rank whose
partner would be n or more; other ranks wait for it, or return the sum of some ranks only. To sum over the
first 4 of 6 ranks, only those call `doubling` (not `halving`).

Arrays have one dimension and are contiguous; all ranks pass the same length and dtype. Nothing is checked
here: `comm/collectives.py` takes any shape and checks it. `theory/cost_model.py` predicts what each costs.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009);
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
"""

import numpy as np
from mpi4py import MPI


def ring(comm: MPI.Comm, array: np.ndarray) -> None:
    """Sum `array` over `comm`, in place."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(array, n)  # views: writing to them writes to array
    for step in range(n - 1):  # reduce-scatter: `out` is the sum of step + 1 ranks
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = np.empty_like(into)
        comm.Sendrecv(out, right, recvbuf=incoming, source=left)
        into += incoming
    for step in range(n - 1):  # all-gather: chunk (rank + 1) % n is complete
        out, into = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        comm.Sendrecv(out, right, recvbuf=into, source=left)


def doubling(comm: MPI.Comm, array: np.ndarray) -> None:
    """Sum `array` over 1, 2, 4, 8 … ranks, in place."""
    incoming = np.empty_like(array)
    distance = 1
    while 2 * distance <= comm.size:  # array is the sum over `distance` ranks
        partner = comm.rank ^ distance
        comm.Sendrecv(array, partner, recvbuf=incoming, source=partner)
        array += incoming
        distance *= 2


def halving(comm: MPI.Comm, array: np.ndarray, near: int = 1) -> None:
    """Sum `array` over 1, 2, 4, 8 … ranks, in place. Leave `near`, the distance to the partner, at 1."""
    if near >= comm.size:
        return
    partner = comm.rank ^ near  # the two numbers differ in one bit
    halves = np.array_split(array, 2)
    keep, give = halves if comm.rank < partner else halves[::-1]
    incoming = np.empty_like(keep)
    comm.Sendrecv(give, partner, 0, incoming, partner, 0)
    keep += incoming
    halving(comm, keep, 2 * near)  # sum my half over all ranks that keep the same half
    comm.Sendrecv(keep, partner, 0, give, partner, 0)
