"""The pictures of lesson 05: what each network reads in new digits, and how many it reads rightly."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpi_classroom.figures import FONT_SIZE, Picture, new_figure
from mpi_classroom.show import show


def draw_readings(
    images: NDArray[np.floating], names: Sequence[str], readings: Sequence[Sequence[int]]
) -> Picture:
    """Draw the images (n, 64) in a row; below them, for each named network, the n digits that it reads."""
    title = "New images, and what each network reads"
    figure, axes = new_figure(title, width=7.0, height=1.3 + 0.35 * len(names))
    axes.imshow(np.hstack(list(images.reshape(-1, 8, 8))), cmap="gray_r", extent=(0, len(images), -1, 0))
    for row, digits in enumerate(readings):
        for column, digit in enumerate(digits):
            axes.text(
                column + 0.5, 0.35 + 0.6 * row, str(digit), ha="center", va="center", fontsize=FONT_SIZE
            )
    axes.set(xlim=(0, len(images)), ylim=(0.6 * len(names) + 0.1, -1.05), xticks=[])
    axes.set_yticks([0.35 + 0.6 * row for row in range(len(names))], names)
    axes.tick_params(length=0, labelsize=FONT_SIZE)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    compared = "; ".join(
        f"{name}: {_beside(readings[0], digits)}" for name, digits in zip(names, readings, strict=True)
    )
    return Picture(figure, f"{title}: a row of {len(images)} handwritten digits. {compared}.")


def _beside(uncut: Sequence[int], digits: Sequence[int]) -> str:
    """How the digits compare, in words that are the same on every processor: a lost network guesses."""
    differ = sum(one != other for one, other in zip(uncut, digits, strict=True))
    if not differ:
        return " ".join(map(str, digits))
    return (
        "mostly other digits than the first"
        if 2 * differ > len(digits)
        else "some other digits than the first"
    )


def draw_right(right: Mapping[str, Sequence[int]], of: int) -> Picture:
    """Draw for each named training how many of the `of` new images are right after each epoch."""
    rows = [
        {"labels": {"epoch": n, "training": name}, "value": v, "unit": f"of {of}", "kind": "counted"}
        for name, values in right.items()
        for n, v in enumerate(values, 1)
    ]
    return show(rows, x="epoch", y="new images read correctly", by="training")
