"""The pictures of lesson 10: a page, whole or from strips, and its gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpi_classroom.figures import FONT_SIZE, Picture, new_panels


def draw(pictures: Mapping[str, Sequence[Any]]) -> Picture:
    """Draw pictures from 0, black, to 1, white, below their names; given as strips (1, 1, rows, W)."""
    figure, panels = new_panels("", columns=len(pictures), width=8.0, height=4.2)
    words = []
    for axes, (name, strips) in zip(panels, pictures.items(), strict=True):
        pixels = np.concatenate([strip.detach() for strip in strips], axis=2)[0, 0]
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
        axes.set_title(name, fontsize=FONT_SIZE)
        axes.axis("off")
        words.append(f"{name}{seams(pixels)}{frame(pixels)}")
    count = "A grey picture" if len(words) == 1 else f"{len(words)} grey pictures side by side"
    return Picture(figure, f"{count}: {'; '.join(words)}.")


def seams(pixels: NDArray[np.floating]) -> str:
    """In words, where four or more rows in a row are much darker than those around them."""
    means = pixels.mean(axis=1)
    around = np.array([np.median(means[max(0, row - 5) : row + 6]) for row in range(len(means))])
    dark = np.flatnonzero(means[4:-4] < 0.9 * around[4:-4]) + 4
    runs = np.split(dark, np.flatnonzero(np.diff(dark) > 1) + 1)
    found = [f"{run[0]} to {run[-1]}" for run in runs if len(run) >= 4]
    return f", dark across rows {', '.join(found)}" if found else ", without dark seams"


def frame(pixels: NDArray[np.floating]) -> str:
    """In words, whether the outermost pixels of all four sides are darker than those inside."""
    sides = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    return ", in a grey frame" if max(side.mean() for side in sides) < 0.9 * pixels[4:-4, 4:-4].mean() else ""
