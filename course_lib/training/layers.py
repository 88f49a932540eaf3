"""Two layers for looking at pipelines: one that takes its time, one that throws the same dice everywhere."""

import time
from typing import Any

import torch
from torch import nn

from course_lib.training.models import derived_seed


class Sleep(nn.Module):
    """Emulated compute: passes numbers on, and sleeps `forward_seconds` and `backward_seconds` meanwhile.

    A sleeping rank needs no core, so that more ranks than cores can show what a schedule looks like.
    """

    def __init__(self, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, later."""
        return _Sleep.apply(x * self.scale, self.forward_seconds, self.backward_seconds)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_seconds: float, backward_seconds: float) -> torch.Tensor:
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Repeatable(nn.Module):
    """A layer with dice, such as dropout, that depend on (`seed`, `name`, how often it ran) and nothing else.

    So micro-batches get the same dice on any number of stages, as long as each layer sees them in order.
    """

    def __init__(self, layer: nn.Module, *, seed: int, name: str) -> None:
        super().__init__()
        self.layer, self.seed, self.name, self.runs = layer, seed, name, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer makes of `x`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, f"{self.name}/{self.runs}"))
            self.runs += 1
            return self.layer(x)
