"""How much a forward pass keeps in memory until the backward pass: the activations.

Autograd keeps what it will need to compute gradients. Two views of one tensor are counted once. Weights and
buffers of the model are in memory anyway, and are not counted.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


def kept_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes that `forward()` keeps for its backward pass, without the weights and buffers of `model`."""
    with SavedBytes(model) as counter:
        outputs = forward()
    found = counter.live
    del outputs  # until here the graph is needed: what it keeps is counted
    return found


class SavedBytes(saved_tensors_hooks):
    """Counts the bytes that autograd keeps for backward while it is entered: `live` now, `peak` at most.

    Weights and buffers of `modules` do not count. A tensor that is kept twice counts once.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(self._pack, self._unpack)
        self.live = self.peak = 0
        self.users: Counter[int] = Counter()  # of each piece of memory, by its address
        self.not_counted = {
            tensor.untyped_storage().data_ptr()
            for module in modules
            for tensor in (*module.parameters(), *module.buffers())
        }

    def __enter__(self) -> "SavedBytes":  # type: ignore[override]
        super().__enter__()
        return self

    def _pack(self, tensor: torch.Tensor) -> "torch.Tensor | _Saved":
        if tensor.untyped_storage().data_ptr() in self.not_counted:
            return tensor
        return _Saved(self, tensor)

    def _unpack(self, saved: "torch.Tensor | _Saved") -> torch.Tensor:
        return saved.tensor if isinstance(saved, _Saved) else saved


class _Saved:
    """A tensor that autograd keeps; counted until autograd releases it."""

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
