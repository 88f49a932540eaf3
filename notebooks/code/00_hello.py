"""Say hello, then learn to read the digits in data/digits.npz, beside this file.

Start it with one of these:

    mpiexec -n 4 python code/00_hello.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/00_hello.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/00_hello.py"     under Slurm
"""

# %%
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


# %%
print(f"hello from rank {rank} of {size}")


# %%
from pathlib import Path

import numpy as np

digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # __file__: code/00_hello.py
# 8 x 8 pixels from 0 to 16, as 64 numbers from 0 to 1
images, new_images = (digits[f"{kind}_images"].reshape(-1, 64) / 16 for kind in ("train", "test"))
labels, new_labels = digits["train_labels"], digits["test_labels"]


# %%
# The course's solution of exercise 00.3: yours takes its place when it is right.
def part(comm, items):
    """Return this rank's part of `items`: each item in one part, parts as equal as they can be."""
    return items[comm.rank :: comm.size]


# %%
def train(comm, steps=200):
    """Train a matrix of weights, from 64 pixels to 10 digits, on all ranks of `comm`."""
    weights, x, y = np.zeros((64, 10)), part(comm, images), part(comm, labels)
    for _ in range(steps):
        guess = np.exp(x @ weights)
        guess /= guess.sum(axis=1, keepdims=True)  # how probable is each digit?
        gradient = x.T @ (guess - np.eye(10)[y])
        weights -= comm.allreduce(gradient) / len(images)
    return weights


def main():
    counts = comm.gather(len(part(comm, images)))  # on rank 0, all ranks' numbers as a list
    weights = train(comm)
    right = ((new_images @ weights).argmax(axis=1) == new_labels).mean()
    if rank == 0:
        print(f"images per rank: {counts}; {right:.1%} of new ones read correctly")


if __name__ == "__main__":
    main()
