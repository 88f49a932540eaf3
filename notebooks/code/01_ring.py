"""Messages around a ring of ranks.

Start it with one of these:

    mpiexec -n 4 python code/01_ring.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/01_ring.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/01_ring.py"     under Slurm
"""

# %%
import time
from bisect import bisect

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD  # all ranks
rank, size = comm.rank, comm.size


# %%
def ring_hangs(comm, nbytes):
    """Whether every Send around the ring would wait for its Recv."""
    mine, theirs = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    sending = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    for _ in range(50):  # Test also lets MPI work on the send
        time.sleep(0.001)
        waits = not sending.Test()
    all_wait = comm.allreduce(waits, op=MPI.LAND)  # logical and; nobody receives before this
    comm.Recv(theirs, source=(comm.rank - 1) % comm.size)
    sending.Wait()
    return all_wait


# %%
def largest(comm):
    """The largest array that gets around the ring, in bytes."""
    return bisect(range(1, 1_000_001), False, key=lambda nbytes: ring_hangs(comm, nbytes))


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
if __name__ == "__main__":
    theirs = shift(comm, np.full(125_000, rank))
    limit = largest(comm)
    if rank == 0:
        print(f"ranks: {size}, 1 MB came from rank {theirs[0]}, limit {limit} bytes")
