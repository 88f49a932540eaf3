"""All-reduce by hand: adds up arrays over all ranks in a ring and by doubling, and times both.

Start it with one of these:

    mpiexec -n 4 python code/04_allreduce.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/04_allreduce.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/04_allreduce.py"     under Slurm
"""

# %%
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


# %%
def ring(comm: MPI.Comm, array: np.ndarray, tag: int = 0) -> None:
    """Sum `array` over `comm`, in place, in n chunks that travel round a ring of n ranks."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(array, n)  # views: writing to them writes to array
    incoming = np.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(n - 1):  # reduce-scatter: `out` is the sum of step + 1 ranks
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        comm.Sendrecv(out, right, tag, incoming[: into.size], left, tag)
        into += incoming[: into.size]
    # Now chunk (rank + 1) % n is complete: the sum of all n ranks.
    for step in range(n - 1):  # all-gather: pass the complete chunks on
        out, into = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        comm.Sendrecv(out, right, tag, into, left, tag)


# %%
def doubling(comm: MPI.Comm, array: np.ndarray, tag: int = 0) -> None:
    """Sum `array` over `comm`, in place: exchange all of it with the ranks 1, 2, 4 … away.

    That needs 1, 2, 4, 8 … ranks: the first `power`. Each rank beyond sends its array to rank - power
    first, and receives the sum last.
    """
    n, rank = comm.size, comm.rank
    power = 2 ** (n.bit_length() - 1)  # the largest of 1, 2, 4 … that is not above n
    if rank >= power:
        comm.Send(array, rank - power, tag)
        comm.Recv(array, rank - power, tag)
        return
    incoming = np.empty_like(array)
    if rank + power < n:
        comm.Recv(incoming, rank + power, tag)
        array += incoming
    distance = 1
    while distance < power:  # array is the sum of a block of `distance` ranks by now
        partner = rank ^ distance  # the two numbers differ in one bit
        comm.Sendrecv(array, partner, tag, incoming, partner, tag)
        array += incoming
        distance *= 2
    if rank + power < n:
        comm.Send(array, rank + power, tag)


# %%
def seconds(way, nbytes):
    """Seconds in which `way` adds up arrays of so many bytes: the slowest rank, the best of four runs."""
    times = []
    for _ in range(4):
        array = np.ones(nbytes // 8)
        comm.Barrier()
        began = MPI.Wtime()
        way(comm, array)
        times.append(comm.allreduce(MPI.Wtime() - began, op=MPI.MAX))
    assert (array == comm.size).all(), f"{way.__name__} adds wrongly"
    return min(times)


def main(*sizes):
    """Time both ways for arrays of so many bytes."""
    for nbytes in sizes:
        ms = [1000 * seconds(way, nbytes) for way in (ring, doubling)]
        if comm.rank == 0:
            print(f"ranks: {comm.size}, {nbytes:9,} bytes, ring {ms[0]:8.2f} ms, doubling {ms[1]:8.2f} ms")


if __name__ == "__main__":
    main(2**10, 2**16, 2**22)


# %%
# The course's solution of exercise 04.4: yours takes its place when it is right.
def counts(n):
    """(messages, arrays) that each of n = 2, 4, 8 … ranks sends in the ring, and by doubling."""
    return (2 * (n - 1), 2 * (n - 1) / n), (n.bit_length() - 1, n.bit_length() - 1)


# %%
ALPHA, RATE = 2e-6, 25e9  # seconds per message, bytes per second


def predicted(n, nbytes):
    """Milliseconds on n ranks, in the ring and by doubling."""
    return [1e3 * (ALPHA * messages + arrays * nbytes / RATE) for messages, arrays in counts(n)]


if comm.rank == 0:
    print("predicted   ms for 1 MiB: ring, doubling   for 1 GiB: ring, doubling   (2 us, 25 GB/s)")
    for n in 2, 4, 64, 2048:
        small, large = predicted(n, 2**20), predicted(n, 2**30)
        print(f"n = {n:4} {small[0]:20.3f} {small[1]:10.3f} {large[0]:19.3f} {large[1]:10.3f}")
