"""Which trainings are the same? Learns data/digits.npz, which lies beside this file.

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
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # no mistake can hide behind rounding

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (
    torch.from_numpy(digits[f"{part}_images"] / 16).flatten(1) for part in ("train", "test")
)
labels, new_labels = (torch.from_numpy(digits[f"{part}_labels"]).long() for part in ("train", "test"))


# %%
def shuffled_batches(samples: int, batch_size: int, seed: int, epoch: int = 0) -> list[NDArray[np.int64]]:
    """range(samples) in the order of (`seed`, `epoch`), cut into batches; the last may be shorter."""
    if batch_size < 1:
        raise ValueError(f"a batch of {batch_size} samples cannot be trained on; use at least 1")
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return [order[start : start + batch_size] for start in range(0, samples, batch_size)]


# %%
def network(norm=nn.Identity):
    torch.manual_seed(0)
    first, second, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    for weights in nn.Sequential(first, second, last).parameters():
        weights.data *= 3  # section 4 needs it
    return nn.Sequential(first, norm(128), nn.Tanh(), second, nn.Tanh(), last)


def score(model):
    """Loss on the new images, how many are right, what each is read as."""
    outputs = model.eval()(new_images)
    read = outputs.argmax(1)
    return F.cross_entropy(outputs, new_labels).item(), (read == new_labels).sum().item(), read


# %%
def train(model, size, piece, rate, warm_up=1):
    """Train for 8 epochs; the scores after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    steps, scores = 0, []
    for epoch in range(8):
        batches = shuffled_batches(len(images), size, seed=0, epoch=epoch)
        model.train()
        for batch in batches[: len(images) // size]:  # without a short last batch
            steps += 1
            optimizer.param_groups[0]["lr"] = rate * min(1, steps / warm_up)  # grows, then stays
            accumulate(model, images[batch], labels[batch], piece)
            optimizer.step()
        scores.append(score(model))
    return scores


# %%
def sweep(trainings, norm=nn.Identity):
    """The scores of all trainings, in their order, on every rank; rank 0 prints how each ends."""
    mine = range(comm.rank, len(trainings), comm.size)
    done = comm.allgather({n: train(network(norm), *trainings[n]) for n in mine})
    scores = [done[n % comm.size][n] for n in range(len(trainings))]
    for (size, piece, rate, *_), epochs in zip(trainings, scores, strict=True):
        loss, right, _ = epochs[-1]
        if comm.rank == 0:
            print(f"{size:3} ({piece:3} at once), rate {rate:.2f}: loss {loss:.6f}, {right} of 297 right")
    return scores


CUTS = [(128, piece, 0.4) for piece in (128, 64, 100, 127)]


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
if __name__ == "__main__":
    sweep(CUTS)
