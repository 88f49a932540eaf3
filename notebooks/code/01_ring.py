"""A ring of ranks: with how many bytes Send waits for its receiver, and how long a shift takes.

Start it with one of these:

    mpiexec -n 4 python code/01_ring.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/01_ring.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/01_ring.py"     under Slurm
"""

# %%
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


# %%
def ring_ends(comm, nbytes):
    """Whether all Sends around the ring return before anybody calls Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    end = time.time() + 0.1
    while not (done := sending.Test()) and time.time() < end:
        pass  # many an MPI moves messages only while it is called
    all_done = comm.allreduce(done, op=MPI.LAND)  # a logical and
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return all_done


def halving(comm, ends=80, hangs=1_000_000):
    """Yield a number of bytes with which the ring ends, and one with which it hangs, ever closer."""
    while hangs - ends > 1:
        middle = (ends + hangs) // 2
        ends, hangs = (middle, hangs) if ring_ends(comm, middle) else (ends, middle)
        yield ends, hangs


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
if __name__ == "__main__":
    few, many = np.ones(10), np.ones(125_000)
    small, large = timed(comm, lambda: shift(comm, few)), timed(comm, lambda: shift(comm, many))
    limit = max(ends for ends, hangs in halving(comm))
    if rank == 0:
        print(f"{size} ranks: limit {limit} B; 80 B {1e6 * small:.0f} µs, 1 MB {large / small:.0f} × that")
