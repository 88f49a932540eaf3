"""The same cut by PyTorch: DTensor, a tensor that knows how it is laid out over a mesh of ranks.

A plan says, layer by layer, how the weights are cut; what has to be sent where follows from the layouts:

    ColwiseParallel        weight Shard(0): columns of x @ A, for PyTorch keeps Aᵀ      our ColumnLinear
    RowwiseParallel        weight Shard(1)                                              our RowLinear
    Partial → Replicate    an all-reduce

The default process group may be of any backend, "gloo" or "mpi4py" of `torch_mpi4py`.
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
"""

import warnings
from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.training.transformer import FeedForward


def dtensor_feed_forward(mesh: DeviceMesh, net: FeedForward) -> nn.Module:
    """`net` itself, its first layer cut by columns and its second by rows."""
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


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
