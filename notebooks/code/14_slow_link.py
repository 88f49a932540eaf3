"""Measure a link, and forecast four all-reduces on it.

Start it with one of these:

    mpiexec -n 4 python code/14_slow_link.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/14_slow_link.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/14_slow_link.py"     under Slurm
"""

# %%
from timeit import repeat

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


# %%
# The course's solution of exercise 14.3: yours takes its place when it is right.
def forecasts(n, nbytes, alpha, beta):
    """Seconds of each way on n = 2, 4, 8 … ranks."""
    steps = n.bit_length() - 1  # log2(n)
    nodes = max(1, n // 8)  # of eight ranks each, whose messages inside cost next to nothing
    return {
        "ring": 2 * (n - 1) * (alpha + beta * nbytes / n),
        "halving": 2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes,
        "tree": 2 * steps * (alpha + beta * nbytes),
        "hierarchy": 2 * (nodes - 1) * (alpha + beta * nbytes / nodes),
    }


# %%
def halving(comm: MPI.Comm, array: np.ndarray, near: int = 1) -> None:
    """Sum `array` over 1, 2, 4, 8 … ranks, in place; with any other number, MPI refuses a partner.

    `near` is the distance to the partner. Leave it at 1: the function calls itself with 2, 4, 8 …
    """
    if near >= comm.size:
        return
    partner = comm.rank ^ near  # the two numbers differ in one bit
    halves = np.array_split(array, 2)
    keep, give = halves if comm.rank < partner else halves[::-1]
    incoming = np.empty_like(keep)
    comm.Sendrecv(give, partner, 0, incoming, partner, 0)
    keep += incoming
    halving(comm, keep, 2 * near)  # my half, with ranks farther away that sum it, too
    comm.Sendrecv(keep, partner, 0, give, partner, 0)


# %%
def seconds(team, work):
    """The time of the slowest rank, in the best of five runs."""
    best = min(repeat(work, team.Barrier, number=1, repeat=5))  # the barrier lets all start together
    return team.allreduce(best, op=MPI.MAX)


def exchange(team, nbytes):
    """Seconds in which partners send each other so many bytes."""
    partner = team.rank ^ team.size // 2  # half of the ranks away
    out, into = np.zeros((2, nbytes), np.uint8)
    return seconds(team, lambda: team.Sendrecv(out, partner, 0, into, partner, 0))


# %%
def main(team):
    """Measure the link and halving; forecast all on more ranks."""
    alpha = exchange(team, 1)
    beta = max(exchange(team, 2**18) - alpha, 0) / 2**18
    array = np.ones(2**18, np.float32)  # 1 MiB
    found = seconds(team, lambda: halving(team, array))
    assert (array == team.size**5).all()  # summed five times
    if team.rank == 0:
        here = forecasts(team.size, array.nbytes, alpha, beta)["halving"]
        print(f"alpha {1e3 * alpha:.1f} ms, beta {1e9 * beta:.1f} ns")
        print(f"halving, {team.size} ranks: forecast {1e3 * here:.1f} ms, measured {1e3 * found:.1f} ms")
        for n in 16, 2048:
            far = forecasts(n, array.nbytes, alpha, beta)
            print(f"on {n:,} ranks:", *(f"{way} {took:.2f} s" for way, took in far.items()))


if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        main(team)
