"""Data parallelism by hand: every rank has the whole network and a part of every batch.

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

torch.set_num_threads(1)  # one core per rank
torch.set_default_dtype(torch.float64)  # rounding is then far below the effect of a mistake

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")  # 1,500 handwritten digits
images = torch.from_numpy(digits["train_images"] / 16).flatten(1)  # (1500, 64)
labels = torch.from_numpy(digits["train_labels"]).long()
draw = np.random.default_rng(0)  # the same on every rank, so that all know every batch
batches = [draw.choice(len(images), 128, replace=False) for _ in range(60)]


# %%
def broadcast_weights(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach().contiguous()  # its own memory, unless it is channels-last
        comm.Bcast(values.numpy(), root=0)
        tensor.detach().copy_(values)


# %%
def sum_gradients(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Sum the gradients over all ranks, in place; a parameter that a rank did not use counts as zeros."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad.contiguous()  # its own memory, unless it is channels-last
            comm.Allreduce(MPI.IN_PLACE, gradient.numpy())
            parameter.grad.copy_(gradient)


# %%
def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(comm, batches, make=network, combine=sum_gradients):
    """Train a network on all ranks of `comm`; return it, and the loss of every batch."""
    torch.manual_seed(comm.rank)
    model, losses = make(), []
    broadcast_weights(comm, model)  # 1 replicas start equal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in batches:
        mine = np.array_split(batch, comm.size)[comm.rank]  # 2 this rank's shard
        optimizer.zero_grad()
        loss = share_of_loss(model(images[mine]), labels[mine], len(batch))  # 3 its share
        loss.backward()
        combine(comm, model)  # 4 add the gradients
        optimizer.step()
        losses.append(comm.allreduce(loss.item()))  # 5 add the losses, to print them
    return model, losses


# %%
# The course's solution of exercise 06.1: yours takes its place when it is right.
def share_of_loss(outputs, targets, batch_size):
    """This rank's share of the loss: the shares of all ranks add up to the mean over the whole batch."""
    return F.cross_entropy(outputs, targets, reduction="sum") / batch_size


# %%
def main():
    model, losses = train(comm, batches)
    outputs = model(torch.from_numpy(digits["test_images"] / 16).flatten(1))
    right = np.mean(outputs.argmax(1).numpy() == digits["test_labels"])
    if comm.rank == 0:
        print(f"ranks: {comm.size}, loss {losses[-1]:.6f}, {right:.1%} of new images right")


if __name__ == "__main__":
    main()
