"""ZeRO, stage by stage, on data/digits.npz.

Start it with one of these:

    mpiexec -n 4 python code/11_zero.py                     on this machine
    mpiexec -n 8 --hostfile hosts python code/11_zero.py    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python code/11_zero.py"     under Slurm
"""

# %%
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # one thread per rank
torch.set_default_dtype(torch.float64)  # rounding stays far below the digits we print

comm = MPI.COMM_WORLD
digits = np.load(Path(__file__).with_name("data") / "digits.npz")
images = torch.from_numpy(digits["train_images"][comm.rank : 128 : comm.size] / 16).flatten(1)
labels = torch.from_numpy(digits["train_labels"][comm.rank : 128 : comm.size]).long()


# %%
def own_shard(comm: MPI.Intracomm, full: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a full tensor, as a flat view into it."""
    return full.data.view(-1).tensor_split(comm.size)[comm.rank]


# %%
def sum_shard(comm: MPI.Intracomm, full: torch.Tensor, part: torch.Tensor) -> None:
    """Give `part` its shard of the gradient of `full`, summed over all ranks; drop the full gradient."""
    if full.grad is not None:  # None: already summed
        part.grad = torch.empty_like(part)
        comm.Reduce_scatter(full.grad, part.grad)  # each rank gets as much as its shard holds
        full.grad = None


# %%
def gather(comm: MPI.Intracomm, full: torch.Tensor) -> None:
    """Fill a full tensor with all ranks' shards. This rank's shard is already there: it is a view."""
    if full.untyped_storage().nbytes():  # 0 bytes: freed, nothing to fill
        comm.Allgatherv(MPI.IN_PLACE, full.data)  # mpi4py cuts it as `tensor_split` does


# %%
def network(layers=0, width=128):  # section 4 adds layers
    torch.manual_seed(0)  # the same weights on every rank
    middle = [nn.Linear(width, width) for _ in range(layers)]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *middle, nn.Linear(width, 10))


def train(comm, model, *hooks, steps=60):
    mine = [nn.Parameter(own_shard(comm, full)) for full in model.parameters()]
    for register in hooks:  # for section 3; none here
        register(comm, model, mine)
    optimizer = torch.optim.Adam(mine, lr=0.01)  # averages for our shards only
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels, reduction="sum") / 128  # images of all ranks
        loss.backward()
        update(comm, model, mine, optimizer)
    loss = comm.allreduce(loss.item())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, stage {1 + len(hooks)}, last loss {loss:.6f}")


# %%
# The course's solution of exercise 11.5: yours takes its place when it is right.
def update(comm, model, mine, optimizer):
    """One step of the optimizer, from the gradients of all ranks."""
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_shard(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()
    for full in model.parameters():
        gather(comm, full)


# %%
def sum_in_backward(comm: MPI.Intracomm, model: nn.Module, mine: Sequence[nn.Parameter]) -> None:
    """Sum a gradient, and drop the full one, as soon as backward has it."""
    for full, part in zip(model.parameters(), mine, strict=True):
        full.register_post_accumulate_grad_hook(lambda full, part=part: sum_shard(comm, full, part))


# %%
def free(full: torch.Tensor) -> None:
    """Give back the memory of a full tensor; its shape and its views stay."""
    full.untyped_storage().resize_(0)


# %%
def gather_in_time(comm: MPI.Intracomm, model: nn.Module, mine: Sequence[nn.Parameter]) -> None:
    """Gather a layer's weights just before it runs, forward and backward, and free them right after."""
    shards = dict(zip(model.parameters(), mine, strict=True))

    def before(layer: nn.Module, *_: object) -> None:
        for full in layer.parameters():
            full.untyped_storage().resize_(full.nbytes)
            comm.Allgatherv(shards[full].data, full.data)

    def after(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        for full in layer.parameters():
            free(full)
        output.register_hook(lambda _: before(layer))  # when backward reaches the layer

    for layer in model.children():
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    for full, part in shards.items():
        part.data = part.data.clone()  # a shard with memory of its own
        full.register_post_accumulate_grad_hook(free)  # backward has its gradient


# %%
if __name__ == "__main__":
    train(comm, network())
