"""How much a forward pass keeps in memory until the backward pass: the activations.

Autograd keeps what it will need to compute gradients. Two views of one tensor are counted once; weights are
there anyhow, and are not counted.
"""

from collections.abc import Callable

import torch
from torch import nn


def kept_bytes(model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """Bytes that `forward()` keeps for its backward pass, without the parameters of `model`."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(kept.values())
