"""Activation recomputation: keep what came into a stage, compute the rest again when its gradient comes.

    stored       forward  keeps every layer's input                  backward  uses them
    recomputed   forward  keeps the input of the first layer         backward  forward again, then as above

A third more computing for a fraction of the memory (Chen et al. 2016, "Training deep nets with sublinear
memory cost"). What a layer remembers, such as batch-norm's running mean, and the dice of dropout are what
they were: the second forward is the first one again, and leaves no trace.
"""

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call


class Recomputed(nn.Module):
    """`layers`, of whose activations only what comes in is kept until backward."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, entered: torch.Tensor) -> torch.Tensor:
        """What the layers make of `entered`."""
        return _Recomputed.apply(self.layers, entered, *self.layers.parameters())


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: nn.Module, entered: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.layers, ctx.dice = layers, torch.get_rng_state()
        ctx.remembered = {name: buffer.clone() for name, buffer in layers.named_buffers()}
        ctx.save_for_backward(entered)
        return layers(entered.clone())  # its first layer may work in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        entered = saved.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.dice)
            left = functional_call(ctx.layers, ctx.remembered, (entered.clone(),))
        everything = [entered, *ctx.layers.parameters()]
        wanted = [tensor for tensor in everything if tensor.requires_grad]
        found = iter(torch.autograd.grad(left, wanted, gradient, allow_unused=True))
        return None, *(next(found) if tensor.requires_grad else None for tensor in everything)


# ---------------------------------------------------------------- how much is kept


class SavedBytes(saved_tensors_hooks):
    """Counts the bytes that autograd keeps for backward while it is entered: `live` now, `peak` at most.

    Weights and buffers of `modules` do not count: they are there anyway. A tensor kept twice counts once.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(self._keep, self._give_back)
        self.live = self.peak = 0
        self.users: Counter[int] = Counter()  # of each piece of memory, by its address
        self.theirs = {
            tensor.untyped_storage().data_ptr()
            for module in modules
            for tensor in (*module.parameters(), *module.buffers())
        }

    def __enter__(self) -> "SavedBytes":  # type: ignore[override]
        super().__enter__()
        return self

    def _keep(self, tensor: torch.Tensor) -> "torch.Tensor | _Kept":
        if tensor.untyped_storage().data_ptr() in self.theirs:
            return tensor
        return _Kept(self, tensor)

    def _give_back(self, kept: "torch.Tensor | _Kept") -> torch.Tensor:
        return kept.tensor if isinstance(kept, _Kept) else kept


class _Kept:
    """A tensor that autograd keeps; counted until it lets go."""

    def __init__(self, counter: SavedBytes, tensor: torch.Tensor) -> None:
        self.counter, self.tensor = counter, tensor.detach()
        storage = tensor.untyped_storage()
        self.address, self.nbytes = storage.data_ptr(), storage.nbytes()
        if counter.users[self.address] == 0:
            counter.live += self.nbytes
            counter.peak = max(counter.peak, counter.live)
        counter.users[self.address] += 1

    def __del__(self) -> None:
        self.counter.users[self.address] -= 1
        if self.counter.users[self.address] == 0:
            self.counter.live -= self.nbytes
