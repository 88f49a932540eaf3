"""Measure a link, and forecast three all-reduces on it.

Start it with one of these:

    mpiexec -n 4 python code/14_slow_link.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/14_slow_link.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/14_slow_link.py"     under Slurm
"""

# %%
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


# %%
# The course's solution of exercise 14.3: yours takes its place when it is right.
def forecasts(n, nbytes, alpha, beta):
    """Seconds of each way on n = 2, 4, 8 … ranks."""
    steps = n.bit_length() - 1  # log2(n)
    return {
        "ring": 2 * (n - 1) * (alpha + beta * nbytes / n),
        "halving": 2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes,
        "tree": 2 * steps * (alpha + beta * nbytes),
    }


# %%
def halving(comm: MPI.Comm, array: np.ndarray, near: int = 1) -> None:
    """Sum `array` over 1, 2, 4, 8 … ranks, in place; with another number, MPI refuses a partner beyond n.

    Leave `near` at 1. A call with `near` sums a segment over the ranks that are equal modulo `near`; ranks
    `near` apart are partners.
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
def seconds(team, work, *arguments):
    """How long `work(*arguments)` takes: all start together, the slowest rank counts."""
    team.Barrier()
    began = MPI.Wtime()
    work(*arguments)
    return team.allreduce(MPI.Wtime() - began, op=MPI.MAX)


def link(team):
    """Seconds per message, alpha, and per byte, beta."""
    partner, took = team.rank ^ team.size // 2, []  # far away
    for nbytes in (1, 2**18):
        out, into = np.zeros((2, nbytes), np.uint8)
        took.append(min(seconds(team, team.Sendrecv, out, partner, 0, into, partner, 0) for _ in range(9)))
    alpha, long = took
    return alpha, max(long - alpha, 0) / 2**18  # noise may exceed the bytes


# %%
def main(team):
    """Measure the link and halving; forecast all, here and on 2,048 ranks."""
    array = np.zeros(2**18, np.float32)  # 1 MiB
    alpha, beta = link(team)
    measured = min(seconds(team, halving, team, array) for _ in range(4))  # the first opens connections
    if team.rank == 0:
        print(f"1 MiB on {team.size} ranks; alpha {1e3 * alpha:.3f} ms, beta {1e9 * beta:.2f} ns")
        print(f"halving measured: {1e3 * measured:.1f} ms")
        for n in team.size, 2048:
            found = forecasts(n, array.nbytes, alpha, beta)
            print(f"forecast on {n}:", *(f"{way} {1e3 * took:.1f} ms" for way, took in found.items()))


if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        main(team)
