"""Estimate π with darts, on any number of ranks.

Start it with one of these:

    mpiexec -n 4 python code/02_pi.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/02_pi.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/02_pi.py"     under Slurm
"""

# %%
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def hits(rng, darts):
    """Throw `darts` darts at the unit square; return how many land in the quarter circle."""
    x, y = rng.random(darts), rng.random(darts)
    return np.count_nonzero(x * x + y * y <= 1)


def estimate(comm, rng, darts):
    """Estimate π from `darts` darts per rank of `comm`; every rank gets the result."""
    return 4 * comm.allreduce(hits(rng, darts)) / (darts * comm.size)


# %%
# The course's solution of exercise 02.4: yours takes its place when it is right.
def stream(comm, seed=0):
    """Return the random generator of this rank for the experiment with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(comm.size)[comm.rank])


# %%
def main(blocks=512, darts=100_000):  # one array for all the darts would take too much memory
    streams = [stream(MPI.COMM_SELF, block) for block in range(comm.rank, blocks, comm.size)]  # its seed
    comm.Barrier()  # no rank starts before all have arrived
    start = MPI.Wtime()
    mine = sum(hits(rng, darts) for rng in streams)
    pi = 4 * comm.allreduce(mine) / (blocks * darts)  # waits for the slowest rank
    if comm.rank == 0:
        print(f"ranks: {comm.size}, π ≈ {pi:.5f}, time: {MPI.Wtime() - start:.2f} s")


if __name__ == "__main__":
    main()
