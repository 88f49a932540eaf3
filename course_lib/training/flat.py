"""Many tensors in one flat buffer, so that one message carries them all.

weight (2, 3)   bias (3)              flat (9)
┌ a b c ┐       g h i       ⇄        a b c d e f g h i
└ d e f ┘

`flatten` and `copy_back` copy between the two. In `FlatWeights` and `FlatGradients` weights, or gradients,
are views of the buffer: what MPI writes to the buffer is in the model, and nothing is copied as long as they
stay views. `check` raises if weights have left; `collect` copies gradients that have.
"""

from collections.abc import Iterable, Sequence

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

    `flat` has shape (n,); `views[i]` is the part of it that belongs to `parameters[i]`, with its shape and
    `strides[i]`. All parameters have one dtype.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], flat: torch.Tensor, strides: Sequence[Sequence[int]]
    ) -> None:
        self.parameters, self.flat = list(parameters), flat
        pieces = flat.split([parameter.numel() for parameter in parameters])
        self.views = [
            piece.as_strided(parameter.size(), stride)
            for piece, parameter, stride in zip(pieces, parameters, strides, strict=True)
        ]

    def check_dtype(self) -> None:
        """ValueError if a parameter has been converted to another dtype since the buffer was made."""
        for parameter in self.parameters:
            if parameter.dtype != self.flat.dtype:
                raise ValueError(
                    f"a parameter is {parameter.dtype} now, and its flat buffer {self.flat.dtype}; convert "
                    "the model first, and then make what trains it on many ranks"
                )


class FlatWeights(FlatBuffer):
    """The values of the parameters, one after the other in the order of their elements."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # the strides of contiguous tensors of these shapes; on "meta", they have no memory
        strides = [torch.empty(parameter.size(), device="meta").stride() for parameter in parameters]
        super().__init__(parameters, flatten(parameters), strides)

    def attach(self) -> None:
        """Make every parameter a view of the buffer: whoever writes to the buffer updates the model."""
        self.check_dtype()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.data = view

    def check(self) -> None:
        """ValueError unless every parameter is still a view of the buffer."""
        self.check_dtype()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} has left its flat buffer; move or "
                    "convert the model first, and then make what trains it on many ranks"
                )


class FlatGradients(FlatBuffer):
    """The gradients of the parameters: views of one buffer, zeros at first, to which backward adds.

    Each view has the memory layout that autograd gives the gradient, such as channels-last.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        if not parameters:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        flat = torch.zeros(sum(map(torch.numel, parameters)), dtype=parameters[0].dtype)
        super().__init__(parameters, flat, [parameter.stride() for parameter in parameters])
        self.attach()

    def attach(self) -> None:
        """Make every gradient a view of the buffer: backward adds to it."""
        self.check_dtype()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            # detach() makes a tensor of its own: model.to(...) gives .grad other memory, but not the view
            parameter.grad = view.detach() if parameter.requires_grad else None

    def clear(self) -> None:
        """Make all gradients zeros, in their place in the buffer."""
        self.flat.zero_()
        self.attach()

    @torch.no_grad()
    def collect(self) -> None:
        """Bring every gradient back to its place in the buffer, whatever has become of it since.

        `optimizer.zero_grad()` removes gradients, and backward makes new ones: these are copied. A parameter
        that has none counts as zeros. A parameter that was frozen meanwhile keeps the gradient it has until
        `zero_grad()`, and gets no new one.
        """
        self.check_dtype()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif in_place(gradient, view):
                continue
            else:
                view.copy_(gradient.to_dense())  # to_dense() changes only that of a sparse embedding
            if parameter.requires_grad:
                parameter.grad = view.detach()

    def check(self) -> None:
        """ValueError unless every gradient is still in its place, except those of frozen parameters."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            gradient = parameter.grad
            if parameter.requires_grad and (gradient is None or not in_place(gradient, view)):
                raise ValueError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} was cleared or replaced "
                    "while its sum was on its way; do that before backward, or after the wait"
                )


def in_place(gradient: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether the `gradient` lies where `view` does, element by element."""
    return (
        gradient.layout == torch.strided
        and gradient.data_ptr() == view.data_ptr()
        and gradient.stride() == view.stride()
    )


def check_unfrozen(model: nn.Module, known: Iterable[nn.Parameter]) -> None:
    """ValueError if `model` trains a parameter that is not among the `known` ones."""
    known = set(known)
    new = [name for name, each in model.named_parameters() if each.requires_grad and each not in known]
    if new:
        raise ValueError(
            f"{new[0]} requires a gradient, and did not when its buckets were made, so it is in none; make "
            "them anew after you unfreeze or add parameters"
        )


def check_unshared(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """ValueError if two names are those of one parameter: copied layer by layer, it would become two."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in named:
        if names.setdefault(parameter, name) != name:
            raise ValueError(
                f"{names[parameter]} and {name} share one parameter of shape {tuple(parameter.shape)}, and "
                "here it would become two that train apart; give each layer its own"
            )
