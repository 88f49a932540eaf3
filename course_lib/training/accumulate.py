"""Gradients that add up where they are kept: for models that see several micro-batches before an update.

    autograd    weight.grad += gradientᵀ · input     the product first, in memory of its own; then the sum
    here        the matrix product itself adds to weight.grad                "gradient accumulation fusion"

A weight of n × n numbers meets only as many rows as a micro-batch has. So with small micro-batches a second
pass over the whole weight, and fresh memory for it, take a good part of a backward. Megatron-LM has a kernel
for it; BLAS can do it anyway: C ← C + A·B.

Nobody but the optimizer waits for that product. Who has to send the gradient of the inputs away can
do that first, and compute the weights' products while it travels: they are put off on request.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

Products = list[Callable[[], None]]


def accumulate_in_place(
    *modules: nn.Module, put_off: Products | None = None
) -> AbstractContextManager[object]:
    """What the forwards of `modules` have to run in; may be entered again and again.

    With a list `put_off`, a backward leaves the weights' products there, for the caller to compute.
    DDP waits for autograd to have added a gradient: with such a module inside, autograd does.
    """
    waited_for = any(
        isinstance(one, DistributedDataParallel) for module in modules for one in module.modules()
    )
    return nullcontext() if waited_for else AccumulateInPlace(put_off)


class AccumulateInPlace(TorchFunctionMode):
    """While it is entered, `F.linear` (and so `nn.Linear`) adds weights' gradients to their .grad directly.

    Numbers are as before, to rounding. Weights with hooks, and those that are no parameters, are left to
    autograd. It is for `backward()`: `torch.autograd.grad` finds no gradient of such a weight.
    """

    def __init__(self, put_off: Products | None = None) -> None:
        super().__init__()
        self.put_off = put_off

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`func(*args, **kwargs)`, unless it is a linear layer whose weight is a plain parameter."""
        if func is F.linear and not kwargs and torch.is_grad_enabled() and _plain(*args):
            return _Linear.apply(*args, *[None] * (3 - len(args)), self.put_off)
        return func(*args, **(kwargs or {}))


def _plain(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether these are ordinary tensors, and nobody but .grad waits for the gradient of the weight."""
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    ordinary = type(weight) is nn.Parameter and weight.dtype == rows.dtype
    return ordinary and weight.requires_grad and not hooks and not torch.is_autocast_enabled("cpu")


class _Linear(torch.autograd.Function):
    """rows · weightᵀ + bias. The weight's gradient goes to its .grad, and is not returned."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        put_off: Products | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.put_off = put_off
        ctx.parameter = weight  # itself, whatever hooks make of saved tensors
        return F.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        per_row, flat = gradient.reshape(-1, gradient.shape[-1]), rows.reshape(-1, rows.shape[-1])
        if ctx.put_off is None:
            _add_product(ctx.parameter, per_row, flat)
        else:
            ctx.put_off.append(partial(_add_product, ctx.parameter, per_row, flat))
        into_rows = gradient @ weight if ctx.needs_input_grad[0] else None
        return into_rows, None, per_row.sum(0) if ctx.needs_input_grad[2] else None, None


def _add_product(weight: torch.Tensor, gradient: torch.Tensor, rows: torch.Tensor) -> None:
    """weight.grad += gradientᵀ · rows, of (rows, out) and (rows, in)."""
    with torch.no_grad():
        if weight.grad is None:
            weight.grad = gradient.t() @ rows
        else:
            weight.grad.addmm_(gradient.t(), rows)
