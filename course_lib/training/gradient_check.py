"""Is a backward pass right? Ask the forward pass: move each number a little, and see how the loss changes.

    gradient of w  ≈  (loss(w + h) − loss(w − h)) / 2h        central difference; its error falls with h²

Rounding spoils the difference when h is tiny: that error grows with 1/h. In float64 the two meet near
h = 1e-5, with about ten right digits. In float32 about two are left for a network, and a wrong gradient may
pass: so float64 is asked for. The numbers may be a tensor's: `parameter.detach().numpy()` shares its memory.

A relu or a pooling has kinks. A difference that straddles one is wrong though the gradient is right: where
there are many, as in a CNN, take h = 1e-6.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # only check_model knows of torch
    from torch import nn

    from course_lib.training.loop import Batch, SummedLoss

Numbers = NDArray[np.float64]
Position = tuple[int, ...]

STEP = 1e-5  # h, for numbers of about 1
TOLERANCE = 1e-6  # of a relative error: far above rounding, far below a mistake
TINY = 1e-12  # gradients of this size are zero but for rounding


def central_difference(
    loss: Callable[[], float], numbers: Numbers, position: Position, h: float = STEP
) -> float:
    """How fast `loss()`, which reads `numbers`, grows with the one at `position`; none is changed."""
    was = numbers[position]
    numbers[position] = was + h
    above = loss()
    numbers[position] = was - h
    below = loss()
    numbers[position] = was
    return (above - below) / (2 * h)


def gradient_errors(
    loss: Callable[[], float],
    numbers: Mapping[str, Numbers],
    gradients: Mapping[str, Numbers],
    *,
    h: float = STEP,
    most: int = 100,
) -> dict[str, float]:
    """For each array in `numbers`, how far `gradients` are from central differences, relative to their size.

    About 1e-9 is right, 1 is nothing in common. In an array, at most `most` positions are looked at.
    """
    errors = {}
    for name, values in numbers.items():
        if values.dtype != np.float64:
            raise ValueError(f"{name} is {values.dtype}, too coarse for differences; use float64")
        positions = some_positions(values.shape, most)
        slopes = np.array([central_difference(loss, values, position, h) for position in positions])
        claimed = np.array([gradients[name][position] for position in positions])
        size = float(np.linalg.norm(slopes) + np.linalg.norm(claimed))
        errors[name] = float(np.linalg.norm(slopes - claimed)) / max(size, TINY)
    return errors


def some_positions(shape: tuple[int, ...], most: int) -> list[Position]:
    """All positions of an array of this shape, or `most` of them, always the same."""
    positions = np.random.default_rng(0).permutation(int(np.prod(shape)))[:most]
    return [tuple(int(i) for i in np.unravel_index(position, shape)) for position in sorted(positions)]


def check_model(
    model: "nn.Module", loss_fn: "SummedLoss", batch: "Batch", *, h: float = STEP, most: int = 100
) -> dict[str, float]:
    """`gradient_errors` of autograd's gradients, for each parameter of a `model` of float64.

    The model must compute the same thing twice: no dropout, and batch-norm in evaluation mode.
    """

    def loss() -> float:
        return loss_fn(model(batch.inputs), batch.targets).item() / batch.global_size

    model.zero_grad()
    (loss_fn(model(batch.inputs), batch.targets) / batch.global_size).backward()
    parameters = dict(model.named_parameters())
    numbers = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    gradients = {
        name: np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        for name, parameter in parameters.items()
    }
    return gradient_errors(loss, numbers, gradients, h=h, most=most)
