"""The pipeline of `parallel/pipeline.py` with two optimisations of the backward; the plain one is its oracle.

    autograd    weight.grad += gradientᵀ · input     the product first, in memory of its own; then the sum
    here        the matrix product itself adds to weight.grad                "gradient accumulation fusion"

A weight of n × n numbers meets only as many rows as a micro-batch has. So with small micro-batches a second
pass over the whole weight, and fresh memory for it, take a good part of a backward. Megatron-LM has a kernel
for it; BLAS does it as well: C ← C + A·B.

    plain       gradients of inputs and weights, then send                   the previous stage waits for both
    here        gradient of the inputs, send, then those of the weights      "deferred weight gradients"

Nobody but the optimizer waits for the products of the weights, so a backward defers them until the gradient
of its inputs is under way: the first half of what zero-bubble schedules do (Qi et al. 2024, "Zero Bubble
Pipeline Parallelism"), at no cost in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from course_lib.parallel.pipeline import Modules, Neighbours, StepResult, check_schedule, run_actions
from course_lib.theory.schedules import Action, Schedule, check_finishes, owners
from course_lib.training.loop import Batch, SummedLoss

Products = list[Callable[[], None]]


def run_schedule(
    comm: MPI.Intracomm,
    schedule: Schedule,
    modules: Modules,
    loss_fn: SummedLoss,
    microbatches: list[Batch],
) -> StepResult:
    """`parallel.pipeline.run_schedule` with gradients that accumulate in place, after each message has left.

    The results agree to rounding.
    """
    check_schedule(comm, schedule, modules, len(microbatches))
    check_finishes(schedule)
    neighbours = DeferringNeighbours(comm, owners(schedule))
    inside = {key: InPlace(module, neighbours.deferred) for key, module in modules.items()}
    return run_actions(neighbours, schedule[comm.rank], inside, loss_fn, microbatches)


class DeferringNeighbours(Neighbours):
    """Neighbours that get the gradient of the inputs first; then this rank computes what it `deferred`."""

    def __init__(self, comm: MPI.Intracomm, rank_of: Mapping[tuple[int, int], int]) -> None:
        super().__init__(comm, rank_of)
        self.deferred: Products = []

    def send(self, action: Action, other_stage: int, tensor: torch.Tensor, rank: int | None = None) -> None:
        """Start to send; after a gradient, compute the products of the weights."""
        super().send(action, other_stage, tensor, rank)
        self.compute_deferred()

    def wait(self) -> None:
        """Wait until everything is sent, and no product is left."""
        self.compute_deferred()
        super().wait()

    def compute_deferred(self) -> None:
        while self.deferred:
            self.deferred.pop()()


class InPlace(nn.Module):
    """`module`, whose weights accumulate their gradients in place.

    The products are deferred if the inputs need a gradient, for which a previous stage waits.
    """

    def __init__(self, module: nn.Module, deferred: Products) -> None:
        super().__init__()
        self.module = module
        self.at_once = accumulate_in_place(module)
        self.later = accumulate_in_place(module, deferred=deferred)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The output of the module."""
        with self.later if inputs.requires_grad else self.at_once:
            return self.module(inputs)


# ---------------------------------------------------------------- gradients that add up in place


def accumulate_in_place(
    module: nn.Module, *, deferred: Products | None = None
) -> AbstractContextManager[object]:
    """The context for the forwards of `module`; it may be entered again and again.

    With a list `deferred`, a backward leaves the weights' products there, for the caller to compute. DDP
    waits for autograd to have added a gradient, so with such a module inside nothing changes.
    """
    waited_for = any(isinstance(one, DistributedDataParallel) for one in module.modules())
    return nullcontext() if waited_for else AccumulateInPlace(deferred)


class AccumulateInPlace(TorchFunctionMode):
    """While it is entered, `F.linear` (and so `nn.Linear`) adds weights' gradients to their .grad directly.

    Numbers are as before, to rounding. Weights with hooks, and those that are no parameters, are left to
    autograd. It is for `backward()`: `torch.autograd.grad` finds no gradient of such a weight.
    """

    def __init__(self, deferred: Products | None = None) -> None:
        super().__init__()
        self.deferred = deferred

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`func(*args, **kwargs)`, unless it is a linear layer whose weight is a plain parameter."""
        if func is F.linear and not kwargs and torch.is_grad_enabled() and _plain(*args):
            return _Linear.apply(*args, *[None] * (3 - len(args)), self.deferred)
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
        deferred: Products | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.deferred = deferred
        ctx.parameter = weight  # itself, whatever hooks make of saved tensors
        return F.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        per_row, flat = gradient.reshape(-1, gradient.shape[-1]), rows.reshape(-1, rows.shape[-1])
        if ctx.deferred is None:
            _add_product(ctx.parameter, per_row, flat)
        else:
            ctx.deferred.append(partial(_add_product, ctx.parameter, per_row, flat))
        into_rows = gradient @ weight if ctx.needs_input_grad[0] else None
        return into_rows, None, per_row.sum(0) if ctx.needs_input_grad[2] else None, None


def _add_product(weight: torch.Tensor, gradient: torch.Tensor, rows: torch.Tensor) -> None:
    """weight.grad += gradientᵀ · rows, of (rows, out) and (rows, in)."""
    with torch.no_grad():
        if weight.grad is None:
            weight.grad = gradient.t() @ rows
        else:
            weight.grad.addmm_(gradient.t(), rows)
