"""Ways to add up an array over all ranks: in small pieces, or all of it at once.

    ring         2(n-1) messages of 1/n of the array    each rank sends to its right neighbour only
    doubling     log2(n) messages of all of it          with the ranks 1, 2, 4 … away
    in_groups    2(g-1) messages for each group of g    rings of rings; groups of two halve and double
    tree         log2(n) messages there, as many back   of all of it; rank 0 sends or receives in each

Arrays have one dimension and are contiguous; a `tag` is that of the messages. `comm/collectives.py` takes any
shape and checks what it is given. `theory/cost_model.py` predicts what each costs.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009);
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI


def ring(comm: MPI.Comm, array: np.ndarray, tag: int = 0) -> None:
    """Sum `array` over `comm`, in place, in n chunks that travel round a ring of n ranks."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(array, n)  # views: writing to them writes to array
    incoming = np.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(n - 1):  # add what comes in; at the end, chunk rank+1 is complete here
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        comm.Sendrecv(out, right, tag, incoming[: into.size], left, tag)
        into += incoming[: into.size]
    for step in range(n - 1):  # copy what comes in
        out, into = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        comm.Sendrecv(out, right, tag, into, left, tag)


def doubling(comm: MPI.Comm, array: np.ndarray, tag: int = 0) -> None:
    """Sum `array` over `comm`, in place: exchange all of it with the ranks 1, 2, 4 … away.

    That needs 2, 4, 8 … ranks. Each rank beyond gives its array to another before, and gets the sum after.
    """
    n, rank = comm.size, comm.rank
    power = 2 ** (n.bit_length() - 1)  # the largest of 1, 2, 4 … that is not above n
    incoming = np.empty_like(array)
    if rank >= power:
        comm.Send(array, rank - power, tag)
        comm.Recv(array, rank - power, tag)
        return
    if rank + power < n:
        comm.Recv(incoming, rank + power, tag)
        array += incoming
    distance = 1
    while distance < power:
        partner = rank ^ distance  # the two numbers differ in one bit
        comm.Sendrecv(array, partner, tag, incoming, partner, tag)
        array += incoming
        distance *= 2
    if rank + power < n:
        comm.Send(array, rank + power, tag)


def in_groups(comm: MPI.Comm, array: np.ndarray, groups: Sequence[int], near: int = 1) -> None:
    """Sum `array` over `comm`, in place.

    First in rings of groups[0] ranks, `near` apart; then the ranks that hold the same chunk do likewise
    with groups[1:]. The product of `groups` is the number of ranks.
    """
    if not groups:
        return
    n, place = groups[0], comm.rank // near % groups[0]
    first = comm.rank - place * near
    right, left = first + (place + 1) % n * near, first + (place - 1) % n * near
    chunks = np.array_split(array, n)
    incoming = np.empty_like(chunks[0])
    for step in range(n - 1):
        out, into = chunks[(place - step) % n], chunks[(place - step - 1) % n]
        comm.Sendrecv(out, right, 0, incoming[: into.size], left, 0)
        into += incoming[: into.size]
    in_groups(comm, chunks[(place + 1) % n], groups[1:], near * n)
    for step in range(n - 1):
        out, into = chunks[(place + 1 - step) % n], chunks[(place - step) % n]
        comm.Sendrecv(out, right, 0, into, left, 0)


def tree(comm: MPI.Comm, array: np.ndarray, far: int = 1) -> None:
    """Sum `array` over `comm`, in place: up to rank 0, and back. Ranks that still add are `far` apart."""
    if far >= comm.size:
        return
    if comm.rank % (2 * far):
        comm.Send(array, comm.rank - far)
        comm.Recv(array, comm.rank - far)
        return
    other = comm.rank + far if comm.rank + far < comm.size else MPI.PROC_NULL
    incoming = np.zeros_like(array)
    comm.Recv(incoming, other)
    array += incoming
    tree(comm, array, 2 * far)
    comm.Send(array, other)
