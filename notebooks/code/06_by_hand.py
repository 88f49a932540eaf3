"""Data parallelism by hand: trains on data/digits.npz, beside this file.

Start it with one of these:

    mpiexec -n 4 python code/06_by_hand.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/06_by_hand.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/06_by_hand.py"     under Slurm
"""

# %%
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # hides rounding

comm = MPI.COMM_WORLD
data = np.load(Path(__file__).with_name("data") / "digits.npz")
images, new_images = (torch.tensor(data[name]).flatten(1) / 16 for name in ("train_images", "test_images"))
labels, new_labels = (torch.tensor(data[name]).long() for name in ("train_labels", "test_labels"))
draw = np.random.default_rng(0)  # the same batches on every rank
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]


# %%
def train(team, rate, cut=np.array_split):
    torch.manual_seed(team.rank)  # unequal weights, so line 1 matters
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    broadcast_weights(team, model)  # 1 copy rank 0's weights to all
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in batches:
        mine = cut(batch, team.size)[team.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        sum_gradients(team, model)  # 4 add all ranks' gradients
        optimizer.step()
        losses.append(team.allreduce(loss.item()))  # 5 add their losses
    right = (model(new_images).argmax(1) == new_labels).double().mean()
    if comm.rank == 0:  # team.rank is 0 everywhere in COMM_SELF
        print(f"ranks: {team.size}, first loss {losses[0]:.2f}, last {losses[-1]:.6f}, {right:.1%} right")


# %%
def numbers(tensor: torch.Tensor) -> np.ndarray:
    """A dense CPU tensor's memory as a flat array for MPI, whatever its layout: no copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).numpy()


# %%
def broadcast_weights(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Overwrite all weights and buffers (numbers that no gradient changes) with those of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        comm.Bcast(numbers(tensor), root=0)


# %%
def sum_gradients(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Sum the gradients over all ranks, in place; a parameter that a rank did not use counts as zeros."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            comm.Allreduce(MPI.IN_PLACE, numbers(parameter.grad))


# %%
# The course's solution of exercise 06.1: yours takes its place when it is right.
def share_of_loss(outputs, targets, batch_size):
    """This rank's share of the loss: the shares of all ranks add up to the mean over the whole batch."""
    return F.cross_entropy(outputs, targets, reduction="sum") / batch_size


# %%
if __name__ == "__main__":
    train(comm, rate=0.4)
