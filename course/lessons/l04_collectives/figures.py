"""The film of an all-reduce: what every rank holds before the first exchange and after each."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mpi_classroom.figures import FONT_SIZE, INK, Picture, ink_on, name_ranks, new_panels
from mpi_classroom.sentences import listed

Frame = Sequence[Sequence[int]]  # by rank, then by chunk
ACROSS = 3  # frames side by side
SHADES = ("#ffffff", "#d5e8f4", "#9cc9e5", "#0072B2")  # the more ranks are in a sum, the darker


def film(films: Sequence[Mapping[str, Sequence[Sequence[int]]]], title: str) -> Picture:
    """A grid per frame, a row per rank, a column per chunk: `films[rank]["ring"][exchange][chunk]`.

    Rank r brings numbers with r zeros at the end, so the digits that are not 0 count the ranks in a sum.
    Raises ValueError for more than four ranks.
    """
    frames = {name: list(zip(*(of_rank[name] for of_rank in films), strict=True)) for name in films[0]}
    lines = {name: -(-len(each) // ACROSS) for name, each in frames.items()}
    rows = sum(lines.values())
    figure, panels = new_panels(title, rows=rows, columns=ACROSS, height=0.7 + 1.65 * rows)
    place = 0
    for name, each in frames.items():
        for number, frame in enumerate(each):
            draw(panels[place + number], frame, each[max(0, number - 1)], heading(name, number))
        for spare in panels[place + len(each) : place + ACROSS * lines[name]]:
            spare.axis("off")
        place += ACROSS * lines[name]
    told = [f"{heading(n, k)}: {said(frame)}." for n, each in frames.items() for k, frame in enumerate(each)]
    kind = "Grids, before and after each exchange, a row per rank, a column per number"
    return Picture(figure, " ".join([f"{title}. {kind}.", *told]))


def heading(name: str, exchange: int) -> str:
    """What stands above a frame."""
    return f"{name}, {exchange} done" if exchange else f"{name}, before"


def ranks_in(number: int) -> int:
    """How many ranks' numbers a sum has."""
    return len(str(number).replace("0", ""))


def draw(axes: Axes, frame: Frame, before: Frame, title: str) -> None:
    """One frame; a thick line surrounds what has changed since the one before."""
    if len(frame) > len(SHADES):
        raise ValueError(f"{len(frame)} ranks in a film of {len(SHADES)} at most; film the first four")
    axes.set_title(title, fontsize=FONT_SIZE, color=INK, loc="left")
    axes.set(xlim=(-0.05, len(frame[0]) + 0.05), ylim=(len(frame) + 0.05, -0.05), xticks=[])
    name_ranks(axes, range(len(frame)), 0.5, "")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for row, held in enumerate(frame):
        for column, number in enumerate(held):
            shade = SHADES[(ranks_in(number) * len(SHADES) - 1) // len(frame)]
            changed = number != before[row][column]
            box = Rectangle((column, row), 1, 1, facecolor=shade, edgecolor=INK, zorder=1 + changed)
            box.set_linewidth(2.8 if changed else 0.8)
            axes.add_patch(box)
            middle = column + 0.5, row + 0.5
            axes.text(*middle, str(number), ha="center", va="center", fontsize=FONT_SIZE, color=ink_on(shade))


def said(frame: Frame) -> str:
    """A frame in words."""
    return "; ".join(f"rank {rank} {listed(held)}" for rank, held in enumerate(frame))
