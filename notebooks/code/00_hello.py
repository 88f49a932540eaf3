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

digits = np.load(Path(__file__).parent / "data" / "digits.npz")  # __file__ is code/00_hello.py
order = digits["train_labels"].argsort(kind="stable")  # 0 first, 9 last
images = digits["train_images"].reshape(-1, 64)[order] / 16  # 8 x 8 pixels, 0 to 16
new_images = digits["test_images"].reshape(-1, 64) / 16
x = np.array_split(images, size)[rank]
y = np.array_split(digits["train_labels"][order], size)[rank]


# %%
def train(team, steps=200):
    """Train on the images of all ranks of `team`; return the share of new images classified correctly."""
    weights = np.zeros((64, 10))  # from 64 pixels to 10 digits
    total = team.allreduce(len(x))
    for _ in range(steps):
        guess = np.exp(x @ weights)  # an ordinary classifier: you need not follow it
        guess /= guess.sum(axis=1, keepdims=True)
        gradient = x.T @ (guess - np.eye(10)[y])  # summed over my images
        weights -= team.allreduce(gradient) / total  # summed over all ranks
    return ((new_images @ weights).argmax(axis=1) == digits["test_labels"]).mean()


# %%
if __name__ == "__main__":
    right = train(comm)
    if rank == 0:
        print(f"ranks: {size}, images: {len(images):,}, {right:.1%} right")
