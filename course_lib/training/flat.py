"""Many tensors in one flat buffer, so that one message carries them all.

weight (2, 3)   bias (3)              flat (9)
┌ a b c ┐       g h i       ⇄        a b c d e f g h i
└ d e f ┘

`flatten` and `copy_back` copy between the two. In a `FlatBuffer` nothing is copied: a model's weights, or its
gradients, are views of the buffer, and what MPI writes to the buffer is in the model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copy all `tensors` into one flat buffer, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def copy_back(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The reverse of `flatten`: overwrite the `tensors` with the contents of the flat buffer."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous `tensor` as bytes, which MPI can send: NumPy has no bfloat16."""
    return tensor.view(-1).view(torch.uint8).numpy()


class FlatBuffer:
    """A flat buffer with one view per parameter.

        weights = FlatBuffer(parameters)                  gradients = FlatBuffer(parameters, zeros=True)
        weights.attach_weights()                          gradients.attach_gradients()

    `flat` has shape (n,) and initially holds the parameters' values, or zeros; `views[i]` is the part of it
    that belongs to `parameters[i]`, with its shape; with zeros its memory layout, too, such as channels-last.
    All parameters have one dtype.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, zeros: bool = False) -> None:
        self.parameters = list(parameters)
        sizes = [parameter.numel() for parameter in self.parameters]
        if zeros:  # gradients: of the layout that autograd gives them, such as channels-last
            self.flat = torch.zeros(sum(sizes), dtype=self.parameters[0].dtype)
            strides = [parameter.stride() for parameter in self.parameters]
        else:  # weights: in the order of their elements, as `flatten` copies them; "meta" allocates nothing
            self.flat = flatten(self.parameters)
            strides = [torch.empty(parameter.size(), device="meta").stride() for parameter in self.parameters]
        self.views = [
            piece.as_strided(parameter.size(), stride)
            for piece, parameter, stride in zip(self.flat.split(sizes), self.parameters, strides, strict=True)
        ]

    def attach_weights(self) -> None:
        """Make every parameter a view of the buffer: whoever writes to the buffer updates the model."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.data = view

    def attach_gradients(self) -> None:
        """Make every gradient a view of the buffer: backward adds to it."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def check_gradients(self) -> None:
        """ValueError unless every parameter's gradient is still its view of the buffer."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not view:
                raise ValueError(
                    "a gradient left its flat buffer; clear gradients with zero_grad(set_to_none=False), "
                    "or with the zero_grad() of Zero0 or Zero1"
                )
