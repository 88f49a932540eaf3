"""Batch-norm of tiles: statistics, forward and backward, are those of the whole images.

    mean = sum over all tiles / all pixels         so a gradient of one tile reaches the pixels of every tile

Each tile with its own statistics would be another layer, and a learning curve that depends on the tiles.
"""

from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.tiles import Tiled, Tiles, all_sum


class SpatialBatchNorm(Tiled):
    """Batch-norm with the statistics of the whole images: with those of a tile it would be another layer."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(self, tiles: Tiles, whole: nn.BatchNorm2d) -> None:
        super().__init__(tiles)
        self.eps, self.momentum = whole.eps, whole.momentum
        for name in ("weight", "bias"):
            parameter = getattr(whole, name)
            mine = None if parameter is None else nn.Parameter(parameter.detach().clone())
            self.register_parameter(name, mine)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            buffer = getattr(whole, name)
            self.register_buffer(name, None if buffer is None else buffer.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w), normalised."""
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        mean, variance, count = statistics(self.tiles.comm, x.detach())
        if self.training and self.running_mean is not None:
            self.track(mean, variance * count / (count - 1))
        return _Normalise.apply(self.tiles.comm, x, mean, variance, count, self.weight, self.bias, self.eps)

    def track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics towards these, as torch does."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def statistics(comm: MPI.Intracomm, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and variance of each channel of `x` (N, C, h, w) over all tiles, and how many numbers that are."""
    count = comm.allreduce(x.numel() // x.shape[1])
    if count < 2:
        raise ValueError(f"{count} number a channel has no variance; use more samples or larger images")
    mean = all_sum(comm, x.sum(dim=(0, 2, 3))) / count
    variance = all_sum(comm, (x - mean[:, None, None]).square_().sum(dim=(0, 2, 3))) / count
    return mean, variance, count


class _Normalise(torch.autograd.Function):
    """Batch-norm with given statistics, which depend on the pixels of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        comm: MPI.Intracomm,
        x: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count: int,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        ctx.comm, ctx.count = comm, count
        ctx.save_for_backward(x, mean, variance.add(eps).rsqrt(), weight)
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, mean, scale, weight = ctx.saved_tensors
        normal = (x - mean[:, None, None]).mul_(scale[:, None, None])
        to_bias = gradient.sum(dim=(0, 2, 3))  # of this tile: a part of the sum
        to_weight = (gradient * normal).sum(dim=(0, 2, 3))
        means = all_sum(ctx.comm, torch.stack([to_bias, to_weight])) / ctx.count  # of all tiles
        to_x = gradient - means[0][:, None, None]
        to_x -= normal.mul_(means[1][:, None, None])
        to_x *= (scale if weight is None else scale * weight)[:, None, None]
        has_weight, has_bias = ctx.needs_input_grad[5:7]
        return (
            None,
            to_x,
            None,
            None,
            None,
            to_weight if has_weight else None,
            to_bias if has_bias else None,
            None,
        )
