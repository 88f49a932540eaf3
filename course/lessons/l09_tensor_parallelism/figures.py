"""A pair of layers, split: matrices as blocks in the ranks' colours, with the all-reduces marked; and bars.

    x (all) @ A (columns) → hidden (columns) @ B (rows) → parts of y ─ all-reduce → y (all)

`cut_layers` is given what was counted: the columns of A on each rank, and the all-reduces each way.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_panels,
    rank_colour,
)

WHOLE = "#e6e6e6"  # what every rank has
SUM: Look = {"facecolor": "#fff3c4", "edgecolor": INK, "boxstyle": "round,pad=0.35", "linewidth": 1.5}
SAMPLES, WIDTH, HIDDEN = 1.8, 1.3, 3.0  # as drawn; a block's width is the height of its factor on the right
WIDTHS = {"x": WIDTH, "A": HIDDEN, "hidden": HIDDEN, "B": WIDTH, "y": WIDTH}
HEIGHTS = {"x": SAMPLES, "A": WIDTH, "hidden": SAMPLES, "B": HIDDEN, "y": SAMPLES}
GAP, LOW, MIDDLE = 0.75, 0.4, 2.9


def cut_layers(columns: Sequence[int], *, forward: int, backward: int) -> Picture:
    """y = gelu(x @ A) @ B with A split by columns, `columns[rank]` each, and B by the same rows.

    `forward` and `backward` are the all-reduces that were counted each way.
    """
    title = layers_title(columns, forward, backward)
    figure, (axes,) = new_panels(title, height=3.5)
    lefts, left = {}, 0.0
    for name, width in WIDTHS.items():
        lefts[name] = left
        left += width + (2.6 if name == "B" else GAP)
    shares = [count / sum(columns) for count in columns]
    for name, note in (
        ("x", "x\non all ranks"),
        ("A", "A\nby columns"),
        ("hidden", "hidden = gelu(x @ A)\nby columns"),
        ("B", "B\nby rows"),
        ("y", "y\non all ranks"),
    ):
        _block(axes, name, lefts[name], shares)
        _write(axes, lefts[name] + WIDTHS[name] / 2, MIDDLE + HEIGHTS[name] / 2 + 0.15, note, va="bottom")
    for before, sign in (("x", "@"), ("A", "→"), ("hidden", "@")):
        _write(axes, lefts[before] + WIDTHS[before] + GAP / 2, MIDDLE, sign)
    _write(axes, lefts["hidden"] - GAP / 2, MIDDLE - SAMPLES / 2 - 0.35, "number = rank")
    _sum(axes, lefts["B"] + WIDTHS["B"] + 1.3, MIDDLE, forward)
    reduce_at, right = lefts["A"] + HIDDEN / 2 + 0.6, lefts["y"] + WIDTHS["y"]
    _write(axes, WIDTH / 2, LOW, "gradient of x")
    _arrow(axes, reduce_at, WIDTH / 2 + 1.2, LOW)
    _arrow(axes, right, reduce_at + 1.2, LOW)
    _sum(axes, reduce_at, LOW, backward)
    _write(axes, (reduce_at + 1.2 + right) / 2, LOW + 0.12, "backward: gradients", va="bottom")
    axes.set(xlim=(-0.6, right + 0.6), ylim=(0, MIDDLE + 2.5), xticks=[], yticks=[], aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return Picture(figure, layers_alt(columns, title))


def _block(axes: Axes, name: str, left: float, shares: Sequence[float]) -> None:
    """A matrix, split by columns, by rows, or not at all."""
    width, height, bottom = WIDTHS[name], HEIGHTS[name], MIDDLE - HEIGHTS[name] / 2
    if name in ("x", "y"):
        axes.add_patch(Rectangle((left, bottom), width, height, facecolor=WHOLE, edgecolor=INK))
        return
    done = 0.0
    for rank, share in enumerate(shares):
        by_columns = name != "B"
        corner = (left + done * width, bottom) if by_columns else (left, bottom + (1 - done - share) * height)
        sizes = (share * width, height) if by_columns else (width, share * height)
        colour = rank_colour(rank)
        axes.add_patch(Rectangle(corner, *sizes, facecolor=colour, edgecolor="white"))
        middle = (corner[0] + sizes[0] / 2, corner[1] + sizes[1] / 2)
        _write(axes, *middle, str(rank), color=ink_on(colour))
        done += share


def _write(axes: Axes, x: float, y: float, text: str, **look: object) -> None:
    settings: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": INK, **look}
    axes.text(x, y, text, **settings)


def _sum(axes: Axes, x: float, y: float, count: int) -> None:
    """The mark of an all-reduce, as often as it was counted."""
    words = "all-reduce" if count == 1 else f"{count} all-reduces" if count else "nothing sent"
    _write(axes, x, y, words, bbox=SUM, zorder=5)


def _arrow(axes: Axes, start: float, end: float, height: float) -> None:
    axes.add_patch(
        FancyArrowPatch((start, height), (end, height), arrowstyle="-|>", mutation_scale=18, color=INK)
    )


def layers_title(columns: Sequence[int], forward: int, backward: int) -> str:
    """What was counted, as the conclusion."""
    ranks = f"{len(columns)} ranks share" if len(columns) > 1 else "1 rank has"
    return f"{ranks} two layers: {_times(forward)} forward, {_times(backward)} backward"


def _times(count: int) -> str:
    return f"{count} all-reduce{'s' * (count != 1)}"


def layers_alt(columns: Sequence[int], title: str) -> str:
    """The same in words."""
    kind = "Matrices as blocks from left to right: x, A, the hidden layer, B, y"
    shares = listed(f"rank {rank} has {count}" for rank, count in enumerate(columns))
    return (
        f"{kind}. {title}. Every rank has all of x and y. Of the columns of A and of the hidden layer, and "
        f"of the rows of B, {shares}. The forward sum stands before y, the backward one before the gradient "
        "of x."
    )


# ------------------------------------------------------------------ what a rank keeps


def kept_bars(kept: Mapping[str, float], *, ranks: int) -> Picture:
    """Bytes of activations on the rank that keeps most, one bar per way of splitting; first, one process."""
    title = kept_title(kept, ranks)
    figure, (axes,) = new_panels(title, height=1.5 + 0.55 * len(kept))
    whole = next(iter(kept.values()))
    colours = [WHOLE, *[ACTIVITIES["compute"]["facecolor"]] * (len(kept) - 1)]
    axes.barh(list(kept), [nbytes / 1000 for nbytes in kept.values()], color=colours, ec=INK)
    for row, nbytes in enumerate(kept.values()):
        share = f" {nbytes / 1000:.0f} kB, {100 * nbytes / whole:.0f} %"
        axes.text(nbytes / 1000, row, share, va="center", fontsize=FONT_SIZE)
    axes.set(
        xlim=(0, 1.4 * max(kept.values()) / 1000),
        xlabel="kB of activations on the rank that keeps most (counted)",
    )
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    words = listed(f"{name} {nbytes / 1000:.0f} kB" for name, nbytes in kept.items())
    kind = "Bar chart, one bar per way of splitting, kB of activations on the rank that keeps most"
    return Picture(figure, f"{kind}. {title}. Kept: {words}.")


def kept_title(kept: Mapping[str, float], ranks: int) -> str:
    """Which way keeps least, and how far that is from an even share; the first is one process."""
    least = min(kept, key=lambda name: kept[name])
    share = 100 * kept[least] / next(iter(kept.values()))
    return f"{least.capitalize()}: a rank keeps at most {share:.0f} % (an even share: {100 / ranks:.0f} %)"
