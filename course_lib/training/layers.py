"""Layers for experiments with pipelines: one that sleeps, and random layers that are the same on any rank."""

import time
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from course_lib.training.models import derived_seed


class Sleep(nn.Module):
    """Emulated compute: returns its input, and sleeps `forward_seconds` and `backward_seconds` meanwhile.

    A sleeping rank needs no core, so more ranks than cores can show what a schedule looks like.
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
    """A layer such as dropout whose random numbers depend on (`seed`, `name`, how often it ran) alone.

    So micro-batches get the same random numbers on any number of stages, if each layer sees them in order.
    """

    runs: torch.Tensor

    def __init__(self, layer: nn.Module, *, seed: int, name: str) -> None:
        super().__init__()
        self.layer, self.seed, self.name = layer, seed, name
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer makes of `x`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, f"{self.name}/{int(self.runs)}"))
            self.runs += 1
            return self.layer(x)


def with_repeatable_dropout(model: nn.Module, *, seed: int) -> nn.Module:
    """`model`, each of its dropout layers made `Repeatable` in place; give it to ranks before it is cut."""
    for name, parent in list(model.named_modules()):
        for child, layer in parent.named_children():
            if isinstance(layer, _DropoutNd) and not isinstance(parent, Repeatable):
                setattr(parent, child, Repeatable(layer, seed=seed, name=f"{name}.{child}"))
    return model
