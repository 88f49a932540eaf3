"""The pictures of lesson 10: a page, whole or from strips, and its gradients."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpi_classroom.figures import FONT_SIZE, Picture, new_panels


def draw(pictures: Mapping[str, Sequence[NDArray[np.floating]]]) -> Picture:
    """Draw pictures from 0, black, to 1, white, below their names; given as strips (1, 1, rows, W)."""
    figure, panels = new_panels("", columns=len(pictures), width=8.0, height=4.2)
    words = []
    for axes, (name, strips) in zip(panels, pictures.items(), strict=True):
        pixels = np.concatenate(strips, axis=2)[0, 0]
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
        axes.set_title(name, fontsize=FONT_SIZE)
        axes.axis("off")
        words.append(f"{name}{dark_rows(pixels)}")
    return Picture(figure, f"{len(pictures)} grey pictures side by side: {'; '.join(words)}.")


def dark_rows(pixels: NDArray[np.floating]) -> str:
    """In words, which rows inside the picture are much darker than those around them."""
    means = pixels.mean(axis=1)
    around = np.array([np.median(means[max(0, row - 5) : row + 6]) for row in range(len(means))])
    found = [row for row in range(4, len(means) - 4) if means[row] < 0.9 * around[row]]
    return f", with dark rows {', '.join(map(str, found))}" if found else ", without dark rows"
