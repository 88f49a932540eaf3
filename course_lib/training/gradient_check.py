"""Is a gradient right? Ask the forward pass: move a number a little, and see how the loss changes.

    gradient of w  ≈  (loss(w + h) − loss(w − h)) / 2h        central difference; its error falls with h²

Rounding spoils the difference when h is tiny: that error grows with 1/h. In float64 the two meet near
h = 1e-5, with about ten right digits. In float32 about two are left for a network, and a wrong gradient may
pass: so compute in float64. The numbers may be a tensor's: `parameter.detach().numpy()` shares its memory.

A relu or a pooling has kinks. A difference that straddles one is wrong though the gradient is right: where
there are many, as in a CNN, take h = 1e-6. No dropout, and batch norm in evaluation mode: the loss must
compute the same thing twice.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

STEP = 1e-5  # h, for numbers of about 1


def central_difference(
    loss: Callable[[], float], numbers: NDArray[np.floating], position: tuple[int, ...], h: float = STEP
) -> float:
    """How fast `loss()`, which reads `numbers`, grows with the one at `position`; none stays changed."""
    was = numbers[position]
    numbers[position] = was + h
    above = loss()
    numbers[position] = was - h
    below = loss()
    numbers[position] = was
    return float((above - below) / (2 * h))
