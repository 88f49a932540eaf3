"""Say hello, then learn to read digits.

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

digits = np.load(Path(__file__).parent / "data" / "digits.npz")
images, labels = digits["train_images"].reshape(-1, 64) / 16, digits["train_labels"]  # 8 x 8 pixels
new_images, new_labels = digits["test_images"].reshape(-1, 64) / 16, digits["test_labels"]


# %%
def train(comm, steps=200):
    """Train on all ranks of `comm`; return the weights."""
    x, y = images[comm.rank :: comm.size], labels[comm.rank :: comm.size]  # my part
    weights = np.zeros((64, 10))  # from 64 pixels to 10 digits
    for _ in range(steps):
        guess = np.exp(x @ weights)  # an ordinary classifier: you need not follow it
        guess /= guess.sum(axis=1, keepdims=True)  # how probable is each digit?
        gradient = x.T @ (guess - np.eye(10)[y])  # summed over my images
        weights -= comm.allreduce(gradient) / len(images)  # summed over all ranks
    return weights


# %%
if __name__ == "__main__":
    right = (new_images @ train(comm)).argmax(axis=1) == new_labels
    if rank == 0:
        print(f"trained on {len(images[rank::size])} images per rank, {right.mean():.1%} right")
