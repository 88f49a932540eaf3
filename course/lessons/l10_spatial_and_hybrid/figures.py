"""Tiles: a halo and its arrows, a loss, memory by image size, ways to split a training, accuracy by tile."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.patheffects import withStroke

from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_figure,
    new_panels,
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
    title = "Forward copies edge rows to the neighbours; backward returns gradients"
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
        f"ghost row{'s' if width > 1 else ''} towards each neighbour: {title}. "
        f"{pairs} solid arrows lead from edge rows to the "
        f"neighbours' "
        f"ghosts, and {pairs} dashed arrows from the ghosts back to those rows."
    )
    return Picture(figure, alt)


def _legend(axes: Axes) -> None:
    keys = [
        Patch(label="own rows (in the rank's colour)", facecolor="#cccccc", edgecolor=INK),
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


def accuracy_by_tile(
    accuracy: Mapping[int, float], *, side: int, with_halos: float | None = None, chance: float = 0.5
) -> Picture:
    """Accuracy (0 to 1) by tile size in pixels, on images of `side` pixels, with what guessing gives.

    `with_halos` is that of one judgement from all tiles of an image, of half its side, which exchange halos.
    """
    sizes = sorted(accuracy)
    smallest = sizes[0]
    title = f"One judgement per tile: {100 * accuracy[smallest]:.0f} % with tiles of {smallest} pixels"
    if with_halos is not None:
        title += f"; one judgement from all tiles: {100 * with_halos:.0f} %"
    figure, axes = new_figure(title, width=7.6, height=3.8)
    measured = [100 * accuracy[size] for size in sizes]
    axes.plot(sizes, measured, label="one judgement per tile", **series_style(0))
    said = ", ".join(
        f"{value:.0f} % with tiles of {size}" for size, value in zip(sizes, measured, strict=True)
    )
    if with_halos is not None:
        look = series_style(1) | {"linestyle": "", "markersize": 11}
        axes.plot([side / 2], [100 * with_halos], label=f"tiles of {side // 2}, halos, one judgement", **look)
        said += f"; {100 * with_halos:.0f} % with tiles of {side // 2}, halos and one judgement"
    axes.axhline(100 * chance, label="guessing", color=INK, linestyle=":", linewidth=1.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="side of a tile, pixels", ylabel="accuracy, %", ylim=(0, 105))
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="lower right")
    return Picture(figure, f"Line chart of accuracy against the side of a tile: {title}. Measured: {said}.")


# ---------------------------------------------------------------- the loss, and memory by image size


def loss_by_step(losses: Sequence[float], *, ranks: int) -> Picture:
    """The loss of every step of a training on `ranks` ranks; no curve where nothing was trained."""
    title = f"The {ranks} ranks did not train: there is no loss to draw"
    if losses:
        title = f"On {ranks} ranks the loss goes from {losses[0]:.2f} to {losses[-1]:.2f}"
    figure, axes = new_figure(title, width=7.6, height=3.2)
    axes.plot(range(1, len(losses) + 1), losses, **series_style(1))
    axes.set(xlabel="step", ylabel="training loss", ylim=(0, None))
    return Picture(figure, f"Line chart of the training loss against the step: {title}, {len(losses)} steps.")


def memory_by_side(whole: Mapping[int, float], strip: Mapping[int, float], *, ranks: int) -> Picture:
    """MiB kept for backward by the side of an image in pixels, on one rank and on each of `ranks`."""
    largest = max(whole)
    title = (
        f"At {largest}², one process keeps {whole[largest]:.1f} MiB for backward, "
        f"each of {ranks} ranks {strip[largest]:.1f} MiB"
    )
    figure, axes = new_figure(title, width=7.6, height=3.8)
    for index, (name, kept) in enumerate((("one process", whole), (f"each of {ranks} ranks", strip))):
        axes.plot(list(kept), list(kept.values()), label=name, **series_style(index))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(whole), [str(side) for side in whole])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set(xlabel="side of the image, pixels", ylabel="MiB kept for backward")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    said = ", ".join(f"{side} pixels {whole[side]:.1f} and {strip[side]:.1f} MiB" for side in whole)
    return Picture(figure, f"Line chart. {title}. Kept by one process and by each rank: {said}.")


# ---------------------------------------------------------------- ways to split a training

Block = tuple[float, float, float, float, int]  # x, y, width, height in [0, 4], and the rank


def ways_to_split() -> Picture:
    """Eight ways to split a training over four ranks: what is cut, and which rank gets which part."""
    square = [(0.6 + 1.4 * (r % 2), 0.4 + 1.4 * (r // 2), 1.4, 1.4, r) for r in range(4)]
    rows = [(0.5, 0.3 + 0.85 * r, 3.0, 0.7, r) for r in range(4)]
    columns = [(0.3 + 0.85 * r, 0.6, 0.85, 2.6, r) for r in range(4)]
    sheets = [(0.3 + 0.5 * r, 1.5 - 0.4 * r, 1.8, 1.8, r) for r in range(4)][::-1]
    tokens = [(0.05 + 0.49 * i, 1.5, 0.45, 0.8, i // 2) for i in range(8)]
    steps = [(0.1 + 0.97 * r, 1.2, 0.8, 1.4, r) for r in range(4)]
    panels: dict[str, tuple[str, Sequence[Block]]] = {
        "data": ("the batch", rows),
        "spatial": ("each image", square),
        "sequence": ("each sequence", tokens),
        "expert": ("tokens by expert", [(2.2, y, 1.6, h, r) for _, y, _, h, r in rows]),
        "pipeline": ("the layers", steps),
        "sub-graph": ("branches of a layer", [(1.2, y, 1.6, h, r) for _, y, _, h, r in rows]),
        "channel": ("channels of a layer", sheets),
        "tensor": ("a weight matrix", columns),
    }
    title = "Eight ways to split a training over four ranks, by what is cut"
    figure, axes = new_panels(title, rows=2, columns=4, height=5.2)
    for panel, (name, (what, blocks)) in zip(axes, panels.items(), strict=True):
        _blocks(panel, name, blocks)
        panel.set_title(f"{name}\n{what}", fontsize=FONT_SIZE, color=INK)
    said = "; ".join(f"{name} cuts {what}" for name, (what, _) in panels.items())
    return Picture(figure, f"Eight small diagrams, each with parts for ranks 0 to 3. {title}: {said}.")


def _blocks(axes: Axes, name: str, blocks: Sequence[Block]) -> None:
    """The parts, with the arrows that lead to them where they run one after the other or side by side."""
    for x, y, width, height, rank in blocks:
        colour = rank_colour(rank)
        axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=INK, linewidth=0.8))
        middle = (x + width - 0.25, y + 0.2) if name == "channel" else (x + width / 2, y + height / 2)
        look: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": ink_on(colour)}
        axes.text(*middle, str(rank), **look)
        if name in ("expert", "sub-graph"):
            start = 0.5 if name == "expert" else 0.2
            axes.plot([start, x], [1.9, y + height / 2], color=INK, linewidth=1)
        if name == "sub-graph":
            axes.plot([x + width, 3.8], [y + height / 2, 1.9], color=INK, linewidth=1)
    axes.set(xlim=(0, 4), ylim=(4, 0))
    axes.axis("off")
