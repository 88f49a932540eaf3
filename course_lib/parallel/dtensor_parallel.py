"""The same cut by PyTorch: DTensor, a tensor that knows how it is laid out over a mesh of ranks.

A plan says, layer by layer, how the weights are cut; what has to be sent where follows from the layouts:

    ColwiseParallel        weight Shard(0): columns of x @ A, for PyTorch keeps Aᵀ      our ColumnLinear
    RowwiseParallel        weight Shard(1); of an embedding Shard(0)                    our RowLinear
    Partial → Replicate    an all-reduce

The default process group may be of any backend, "gloo" or "mpi4py" of `torch_mpi4py`.
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
"""

import warnings
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

from course_lib.training.transformer import Block, FeedForward, Transformer

COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.up")
ROWS = ("attention.project", "mlp.down")


def dtensor_feed_forward(mesh: DeviceMesh, net: FeedForward) -> nn.Module:
    """`net` itself, its first layer cut by columns and its second by rows."""
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def dtensor_transformer(mesh: DeviceMesh, net: Transformer) -> Transformer:
    """`net` itself, cut over `mesh`: heads, hidden features and vocabulary. Its logits are DTensors.

    DTensor knows nothing of heads, so the ranks must divide them.
    """
    for block in cast(Iterable[Block], net.blocks):
        heads = block.attention.query.out_features // block.attention.head_width
        if heads % mesh.size():
            raise ValueError(
                f"{heads} heads cannot be distributed evenly over {mesh.size()} ranks, and DTensor would cut "
                f"one in two; use a number of ranks that divides {heads}, or ParallelTransformer"
            )
        plan: dict[str, ParallelStyle] = dict.fromkeys(COLUMNS, ColwiseParallel())
        parallelize_module(block, mesh, plan | dict.fromkeys(ROWS, RowwiseParallel()))
    ends = {
        "embedding.token": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    return parallelize_module(net, mesh, ends)  # type: ignore[return-value]


def dtensor_loss_backward(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of logits that are cut by vocabulary, after its backward pass."""
    with loss_parallel():
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
    return loss.detach()


def collectives_of(step: Callable[[], object]) -> int:
    """How many collectives DTensor calls on this rank while `step()` runs."""
    # Not at the top: it imports torch's compiler, which takes seconds and more packages than torch itself.
    from torch.distributed.tensor.debug import CommDebugMode

    with warnings.catch_warnings(), CommDebugMode() as counter:
        warnings.filterwarnings(
            "ignore", "Full backward hook"
        )  # the counter's hooks: tokens have no gradient
        step()
    return counter.get_total_counts()
