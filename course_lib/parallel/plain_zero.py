"""ZeRO on one screen: each stage adds one function. `zero.py` and `zero3.py` are for any model.

    stage   a rank keeps all               and its shard of            with
    1       weights, gradients             optimizer state             own_shard, update
    2       weights                        gradients, too              … and sum_in_backward
    3                                      weights, too                … and gather_in_time

Every parameter is cut by itself: this rank's shard is a flat tensor, and the shards of two ranks differ by at
most one number. The optimizer knows the shards only. The caller divides the loss by the global batch.

    mine = [Parameter(own_shard(comm, full)) for full in model.parameters()]
    sum_in_backward(comm, model, mine)      # stages 2 and 3
    gather_in_time(comm, model, mine)       # stage 3
    optimizer = Adam(mine)
    loss.backward(); update(comm, model, mine, optimizer)

The weights are equal on all ranks at first. Every parameter is contiguous, is trained, belongs to one child
of the model, and gets a gradient in one backward pass per update. Stage 3 does not run under `no_grad`: its
hooks for backward need a graph.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer

# ------------------------------------------------------------------ stage 1


def own_shard(comm: MPI.Intracomm, full: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a full tensor, as a flat view into it."""
    return full.data.view(-1).tensor_split(comm.size)[comm.rank]


def sum_shard(comm: MPI.Intracomm, full: torch.Tensor, part: torch.Tensor) -> None:
    """Give `part` its shard of the gradient of `full`, summed over all ranks; drop the full gradient."""
    if full.grad is not None:  # None: already summed
        part.grad = torch.empty_like(part)
        comm.Reduce_scatter(full.grad, part.grad)  # each rank gets as much as its shard holds
        full.grad = None


def gather(comm: MPI.Intracomm, full: torch.Tensor) -> None:
    """Fill a full tensor with all ranks' shards. This rank's shard is already there: it is a view."""
    if full.untyped_storage().nbytes():  # 0 bytes: freed, nothing to fill
        comm.Allgatherv(MPI.IN_PLACE, full.data)  # mpi4py cuts it as `tensor_split` does


def update(comm: MPI.Intracomm, model: nn.Module, mine: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
    """Sum the gradients, update this rank's shards, and gather the weights."""
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_shard(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()
    for full in model.parameters():
        gather(comm, full)


# ------------------------------------------------------------------ stage 2


def sum_in_backward(comm: MPI.Intracomm, model: nn.Module, mine: Sequence[nn.Parameter]) -> None:
    """Sum a gradient, and drop the full one, as soon as backward has it."""
    for full, part in zip(model.parameters(), mine, strict=True):
        full.register_post_accumulate_grad_hook(lambda full, part=part: sum_shard(comm, full, part))


# ------------------------------------------------------------------ stage 3


def free(full: torch.Tensor) -> None:
    """Give back the memory of a full tensor; its shape and its views stay."""
    full.untyped_storage().resize_(0)


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
