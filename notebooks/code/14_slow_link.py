"""Four all-reduces on the link at hand, measured and forecast.

Start it with one of these:

    mpiexec -n 4 python code/14_slow_link.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/14_slow_link.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/14_slow_link.py"     under Slurm
"""

# %%
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


# %%
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


# %%
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


# %%
# The course's solution of exercise 14.3: yours takes its place when it is right.
def forecasts(n, nbytes, alpha, beta):
    """Seconds of each way on n = 2, 4, 8 … ranks, the hierarchy in groups of four."""
    steps, group = n.bit_length() - 1, min(n, 4)  # steps: log2(n)
    across = 2 * (n / group - 1) * (alpha + beta * nbytes / n)
    return {
        "ring": 2 * (n - 1) * (alpha + beta * nbytes / n),
        "hierarchy": 2 * (group - 1) * (alpha + beta * nbytes / group) + across,
        "halving": 2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes,
        "tree": 2 * steps * (alpha + beta * nbytes),
    }


# %%
def seconds(team, work, *arguments):
    """How long `work(*arguments)` takes: all start together, the slowest rank counts."""
    team.Barrier()
    began = MPI.Wtime()
    work(*arguments)
    return team.allreduce(MPI.Wtime() - began, op=MPI.MAX)


def link(team):
    """Seconds of a message, alpha, and of each of its bytes, beta."""
    partner, took = team.rank ^ team.size // 2, []  # far away
    for nbytes in (1, 2**18):
        out, into = np.zeros((2, nbytes), np.uint8)
        took.append(min(seconds(team, team.Sendrecv, out, partner, 0, into, partner, 0) for _ in range(9)))
    return took[0], max(took[1] - took[0], 0) / 2**18  # noise may exceed the bytes


# %%
def main(team, nbytes=2**20):
    """Measure each way on 2, 4, 8 … ranks, and say what its formula says."""
    n, (alpha, beta), array = team.size, link(team), np.zeros(nbytes // 4, np.float32)
    groups = {"ring": [n], "hierarchy": [min(n, 4), max(n // 4, 1)], "halving": [2] * (n.bit_length() - 1)}
    if team.rank == 0:
        print(f"{nbytes:,} bytes on {n} ranks; a message {1e3 * alpha:.3f} ms, a byte {1e9 * beta:.2f} ns")
    for way, expected in forecasts(n, nbytes, alpha, beta).items():
        call = (tree, team, array) if way == "tree" else (in_groups, team, array, groups[way])
        took = min(seconds(team, *call) for _ in range(4))  # the first opens connections
        if team.rank == 0:
            print(f"{way:9} {took:.5f} s, forecast {expected:.5f} s")


if __name__ == "__main__":
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))  # 1, 2, 4 … ranks, and the rest
    if comm.rank == team.rank:
        main(team)
