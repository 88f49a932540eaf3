"""Pipeline parallelism: trains on data/digits.npz.

Start it with one of these:

    mpiexec -n 4 python code/08_pipeline.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/08_pipeline.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/08_pipeline.py"     under Slurm
"""

# %%
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"]).long()


# %%
def layer(n):
    torch.manual_seed(n)  # equal first weights, whichever rank builds it
    return nn.Sequential(nn.ReLU(), nn.Linear(64 if n == 1 else 128, 10 if n == 8 else 128))


def cut(team):
    return nn.Sequential(*map(layer, np.array_split(range(1, 9), team.size)[team.rank]))


# %%
def received(comm: MPI.Comm, source: int, tag: int, *shape: int) -> torch.Tensor:
    """Receive a tensor of this shape."""
    tensor = torch.empty(shape)
    comm.Recv(tensor.numpy(), source, tag)
    return tensor


# %%
def run_stage(comm: MPI.Comm, stage: Any, schedule: Any, parts: Any, loss_fn: Any, width: int) -> float:
    """Run a schedule, [("F", 0), …]; add up gradients in .grad; return the loss (0 before the last rank).

    `parts` are micro-batches (inputs, targets); `width` numbers per sample travel between stages.
    """
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    held, sends, loss = {}, list[MPI.Request](), 0.0  # held: forward, but not yet backward
    for kind, i in schedule:
        inputs, targets = parts[i]
        if kind == "F":
            x = inputs if first else received(comm, comm.rank - 1, i, len(targets), width).requires_grad_()
            y = loss_fn(stage(x), targets) if last else stage(x)
            held[i] = x, y
            loss += y.item() if last else 0.0
            result, other = y.detach(), comm.rank + 1
        else:
            x, y = held.pop(i)
            y.backward(None if last else received(comm, comm.rank + 1, i, len(targets), width))
            result, other = x.grad, comm.rank - 1
        if 0 <= other < comm.size:  # keep each request, and what it sends, until the message has left
            message = result.numpy().copy()  # a copy, since autograd may still write to this gradient
            sends = [sent for sent in sends if not sent.Test()] + [comm.Isend(message, other, i)]
    MPI.Request.Waitall(sends)
    return loss


# %%
def gpipe(stage, stages, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))]


def train(team, schedule=gpipe, m=2, steps=1):
    stage, order = cut(team), schedule(team.rank, team.size, m)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)
    for batch in np.random.default_rng(0).integers(len(images), size=(steps, m, 512)):
        parts = [(images[row], labels[row]) for row in batch]
        optimizer.zero_grad()
        loss = run_stage(team, stage, order, parts, lambda y, t: F.cross_entropy(y, t) / m, 128)
        optimizer.step()
    return loss


# %%
# The course's solution of exercise 08.4: yours takes its place when it is right.
def one_f_one_b(stage, stages, m):
    """The schedule 1F1B of one of the stages, for m micro-batches."""
    warmup = min(stages - 1 - stage, m)
    turns = [each for i in range(m - warmup) for each in (("F", warmup + i), ("B", i))]
    return [("F", i) for i in range(warmup)] + turns + [("B", i) for i in range(m - warmup, m)]


# %%
if __name__ == "__main__" and (loss := train(comm, steps=40)):
    print(f"ranks: {comm.size}, loss {loss:.9f}")
