"""Train on data/digits.npz with batches cut in four ways.

Start it with one of these:

    mpiexec -n 4 python code/05_train.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/05_train.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/05_train.py"     under Slurm
"""

# %%
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # rounding stays far below six decimals

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()
new_images = torch.from_numpy(digits["test_images"] / 16).flatten(1)
new_labels = torch.from_numpy(digits["test_labels"]).long()


# %%
def network(seed=0):
    torch.manual_seed(seed)  # fixes weights and batches
    hidden = nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(128, 10))
    for weights in model.parameters():
        weights.data *= 3  # learns faster
    return model


# %%
def train(model, size, piece, rate=0.4, warm_up=1):
    """Train on full batches of `size`, `piece` at once; return how many are right after each epoch."""
    right = []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)
    for _ in range(8):
        model.train()
        for batch in torch.randperm(len(images)).split(size)[: len(images) // size]:
            accumulate(model, images[batch], labels[batch], piece)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            outputs = model.eval()(new_images)
        right.append((outputs.argmax(1) == new_labels).sum().item())
    loss = F.cross_entropy(outputs, new_labels).item()
    print(f"{size} images, {piece} at once, rate {rate}: loss {loss:.6f}, {right[-1]} of 297 right")
    return right


CUTS = 128, 64, 100, 127  # images at once, on ranks 0 to 3


# %%
# The course's solution of exercise 05.1: yours takes its place when it is right.
def accumulate(model, inputs, targets, piece):
    """Leave the gradient of the batch's mean loss in .grad, from at most `piece` images at once."""
    model.zero_grad()
    pieces = inputs.split(piece)
    for x, y in zip(pieces, targets.split(piece), strict=True):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(inputs)
        loss.backward()  # adds to the gradients that are there


# %%
if __name__ == "__main__" and comm.rank == 0:
    for piece in CUTS:
        train(network(), 128, piece)
