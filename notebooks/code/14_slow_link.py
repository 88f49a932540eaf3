"""Measure a link, and forecast four all-reduces.

Start it with one of these:

    mpiexec -n 4 python code/14_slow_link.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/14_slow_link.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/14_slow_link.py"     under Slurm
"""

# %%
from functools import partial
from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


# %%
# The course's solution of exercise 14.3: yours takes its place when it is right.
def forecasts(n, nbytes, alpha, beta):
    """Seconds of each way on n = 2, 4, 8 … ranks. Messages that travel at the same time count as one."""
    steps = n.bit_length() - 1  # log2(n)
    nodes = max(1, n // 8)  # machines of eight ranks; messages inside cost nothing here
    return {
        "ring": 2 * (n - 1) * (alpha + beta * nbytes / n),
        "halving": 2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes,
        "tree": 2 * steps * (alpha + beta * nbytes),
        "hierarchy": 2 * (nodes - 1) * (alpha + beta * nbytes / nodes),
    }


# %%
def ring(comm, array):
    n, rank, chunks = comm.size, comm.rank, np.array_split(array, comm.size)
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        mine = into.copy()
        comm.Sendrecv(out, (rank + 1) % n, 0, into, (rank - 1) % n, 0)
        if step < n - 1:  # later, what arrives is a complete sum
            into += mine


# %%
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


# %%
def tree(comm, array, near=1):
    if comm.rank & near:  # mine is the higher rank
        comm.Send(array, comm.rank - near)
        comm.Recv(array, comm.rank - near)
    elif near < comm.size:
        incoming = np.empty_like(array)
        comm.Recv(incoming, comm.rank + near)
        array += incoming
        tree(comm, array, 2 * near)
        comm.Send(array, comm.rank + near)


# %%
def seconds(team, work):
    """The slowest rank's best of five, each after a barrier."""
    return team.allreduce(min(repeat(work, team.Barrier, number=1, repeat=5)), op=MPI.MAX)


def exchange(team, n):
    """Seconds to swap n numbers with the farthest partner."""
    return seconds(team, partial(team.Sendrecv, np.ones(n), team.rank ^ team.size // 2, 0, np.empty(n)))


# %%
if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks
    if comm.rank == team.rank:  # the renumbered rest sits out
        alpha = exchange(team, 1)
        beta = max(exchange(team, 2**15) - alpha, 0) / 2**18  # 2**15 numbers are 2**18 bytes
        array = np.ones(2**15)
        found = {way.__name__: seconds(team, partial(way, team, array)) for way in (ring, tree, halving)}
        assert (array == float(team.size) ** 15).all()  # three ways, five sums each
    if comm.rank == 0:
        print(f"alpha {1e6 * alpha:,.0f} µs, beta {1e9 * beta:.1f} ns; {team.size} ranks, 256 KiB:")
        for way, took in found.items():
            here = forecasts(team.size, 2**18, alpha, beta)[way]
            print(f"{way}: forecast {1e3 * here:.1f} ms, measured {1e3 * took:.1f} ms")
        far = forecasts(2048, 2**20, alpha, beta)
        print("1 MiB on 2,048 ranks:", *(f"{way} {took:.2f} s" for way, took in far.items()))
