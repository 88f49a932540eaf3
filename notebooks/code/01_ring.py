"""A ring of ranks: how many bytes Send takes without a receiver, and how long a shift lasts.

Start it with one of these:

    mpiexec -n 4 python code/01_ring.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/01_ring.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/01_ring.py"     under Slurm
"""

# %%
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size  # of four ranks in a ring: 0 → 1 → 2 → 3 → 0


# %%
def returns_alone(comm, nbytes):
    """Whether Send of so many bytes returns before its receiver calls Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    time.sleep(0.05)
    alone = comm.allreduce(sending.Test(), op=MPI.LAND)  # on all ranks; none receives before all have asked
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return alone


def most_alone(comm, returns=80, waits=1_000_000):
    """The largest number of bytes with which Send returns alone."""
    while waits - returns > 1:
        nbytes = (returns + waits) // 2
        if returns_alone(comm, nbytes):
            returns = nbytes
        else:
            waits = nbytes
    return returns


# %%
# The course's solution of exercise 01.1: yours takes its place when it is right.
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array of the left neighbour."""
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)
    return received


# %%
from collections.abc import Callable

def timed(comm: MPI.Comm, function: Callable[[], object], repeat: int = 10) -> float:
    """Seconds of `function()` on the slowest rank, the median of `repeat` runs; the same on every rank."""
    seconds = []
    for _ in range(repeat):
        comm.Barrier()  # all ranks start together
        start = MPI.Wtime()
        function()
        seconds.append(comm.allreduce(MPI.Wtime() - start, op=MPI.MAX))
    return float(np.median(seconds))


# %%
def main():
    small, large = (timed(comm, lambda: shift(comm, np.zeros(count))) for count in (10, 125_000))
    most = most_alone(comm)
    if rank == 0:
        print(f"ranks: {size}, Send returns alone with up to {most} bytes;", end=" ")
        print(f"a shift: 80 B {1e6 * small:.0f} µs, 1 MB {1e6 * large:.0f} µs")


if __name__ == "__main__":
    main()
