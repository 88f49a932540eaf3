"""The darts of every rank on one unit square."""

from collections.abc import Sequence

import numpy as np

from mpi_classroom.figures import FONT_SIZE, INK, Picture, new_figure, rank_colour


def draw_darts(darts: Sequence[np.ndarray]) -> Picture:
    """The darts of rank r, `darts[r]` of shape (2, n), in its colour; rings where they are at one point."""
    figure, axes = new_figure("", width=6.0, height=5.2)
    angle = np.linspace(0, np.pi / 2, 100)
    axes.plot(np.cos(angle), np.sin(angle), color=INK)
    at_one_point = points_of(darts) < sum(len(x) for x, _ in darts)
    for rank, (x, y) in enumerate(darts):
        size = 13 * (1 - rank / len(darts)) if at_one_point else 7
        axes.plot(x, y, "o", markersize=size, color=rank_colour(rank), label=f"rank {rank}", clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="x", ylabel="y")
    figure.legend(loc="outside right upper", fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, alt_of(darts))


def alt_of(darts: Sequence[np.ndarray]) -> str:
    """How many darts there are, and at how many different points."""
    thrown = sum(len(x) for x, _ in darts)
    return (
        f"Unit square with a quarter circle: {thrown} darts of {len(darts)} ranks, "
        f"at {points_of(darts)} different points."
    )


def points_of(darts: Sequence[np.ndarray]) -> int:
    """At how many different points the darts are."""
    return len(np.unique(np.concatenate(darts, axis=1), axis=1).T)
