"""Tiles of an image: a halo and both of its arrows, and how accuracy depends on the size of tiles."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.patheffects import withStroke

from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    listed,
    new_figure,
    rank_colour,
    series_style,
)

ROW, GAP, WIDTH = 1.0, 1.4, 5.0  # height of a row, space between strips, width of a strip


# ---------------------------------------------------------------- the halo and its arrows


def halo_arrows(rows: Sequence[int], width: int = 1) -> Picture:
    """Strips of an image, one per rank, of these `rows`: pixels go to ghosts, gradients return to owners.

    Drawn are the strips from top to bottom, each with `width` ghost rows (hatched) where it has a neighbour.
    """
    if len(rows) < 2 or min(rows) < width:
        raise ValueError(
            f"strips of {list(rows)} rows have no halo of {width}; use two or more, large enough"
        )
    title = "Forward, a halo copies edge rows to the neighbours; backward, their gradients return and add up"
    total = sum(rows) + 2 * width * (len(rows) - 1)
    height = total * ROW + GAP * (len(rows) - 1)
    figure, axes = new_figure(title, width=8.0, height=1.0 + 0.36 * height)
    top = 0.0
    edges: list[tuple[float, float, float, float]] = []  # upper ghost, first row, last row, lower ghost
    for rank, count in enumerate(rows):
        above, below = width * (rank > 0), width * (rank + 1 < len(rows))
        _strip(axes, rank, top, (above, count, below))
        edges.append((top, top + above, top + above + count - width, top + above + count))
        axes.text(-0.2, top + above + count / 2, f"rank {rank}", ha="right", va="center", fontsize=FONT_SIZE)
        top += above + count + below + GAP
    for upper in range(len(rows) - 1):
        one, other = edges[upper], edges[upper + 1]
        _arrow(axes, 1.2, other[1] + width / 2, one[3] + width / 2, "#222222", "-")
        _arrow(axes, 2.0, one[2] + width / 2, other[0] + width / 2, "#222222", "-")
        _arrow(axes, 3.4, one[3] + width / 2, other[1] + width / 2, "#D55E00", "--")
        _arrow(axes, 4.2, other[0] + width / 2, one[2] + width / 2, "#D55E00", "--")
    _legend(axes)
    axes.set(xlim=(-1.2, 8.2), ylim=(top - GAP + 0.2, -2.1))
    axes.axis("off")
    lengths = listed([str(count) for count in rows])
    pairs = 2 * (len(rows) - 1)
    alt = (
        f"Diagram, {len(rows)} strips of {lengths} rows from top to bottom, one per rank, each with "
        f"{width} hatched "
        f"ghost rows towards its neighbours: {title}. {pairs} solid arrows lead from edge rows to the "
        f"neighbours' "
        f"ghosts, and {pairs} dashed arrows from the ghosts back to those rows."
    )
    return Picture(figure, alt)


def _legend(axes: Axes) -> None:
    keys = [
        Patch(label="own rows", facecolor="#cccccc", edgecolor=INK),
        Patch(label="ghosts", facecolor="white", edgecolor=INK, hatch="///"),
    ]
    axes.legend(handles=keys, loc="lower left", bbox_to_anchor=(0.7, 0.75), fontsize=FONT_SIZE, frameon=False)
    for x, words, colour in ((1.6, "forward:\npixels", "#222222"), (3.8, "backward:\ngradients", "#D55E00")):
        axes.text(x, -0.25, words, ha="center", va="bottom", fontsize=FONT_SIZE, color=colour)


def _strip(axes: Axes, rank: int, top: float, counts: tuple[int, int, int]) -> None:
    above, own, below = counts
    colour = rank_colour(rank)
    for index in range(above + own + below):
        ghost = not above <= index < above + own
        face: Look = {"facecolor": "white", "hatch": "///"} if ghost else {"facecolor": colour}
        axes.add_patch(Rectangle((0, top + index), WIDTH, ROW, edgecolor=INK, linewidth=0.8, **face))


def _arrow(axes: Axes, x: float, start: float, end: float, colour: str, line: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (x, start),
            (x, end),
            arrowstyle="-|>",
            mutation_scale=16,
            linewidth=2,
            color=colour,
            linestyle=line,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
            path_effects=[withStroke(linewidth=5, foreground="white")],
        )
    )


# ---------------------------------------------------------------- accuracy against the size of tiles


def accuracy_by_tile(accuracy: Mapping[int, float], *, side: int, chance: float = 0.5) -> Picture:
    """Accuracy (0 to 1) by tile size in pixels, on images of `side` pixels, with what guessing gives."""
    sizes = sorted(accuracy)
    best = max(sizes, key=lambda size: accuracy[size])
    title = (
        f"With tiles of {best} of {side} pixels, {100 * accuracy[best]:.0f} % are right; "
        f"with tiles of {sizes[0]}, {100 * accuracy[sizes[0]]:.0f} %"
    )
    figure, axes = new_figure(title, width=7.0, height=3.6)
    axes.plot(sizes, [100 * accuracy[size] for size in sizes], label="measured", **series_style(0))
    axes.axhline(100 * chance, label="guessing", color=INK, linestyle=":", linewidth=1.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="side of a tile, pixels", ylabel="accuracy, %", ylim=(0, 105))
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="lower right")
    points = ", ".join(f"{100 * accuracy[size]:.0f} % with tiles of {size}" for size in sizes)
    return Picture(figure, f"Line chart of accuracy against the side of a tile: {title}. Measured: {points}.")
