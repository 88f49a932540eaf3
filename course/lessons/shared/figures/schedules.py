"""Pipelines: who does what when, as `simulate` predicts.

A forward is light with dark digits, a backward is dark with white ones; the digit is the micro-batch. If a
rank has several stages (chunks), or stages of two replicas, each has its colour. White is time without work:
the bubble.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from course_lib.theory.schedules import TimedAction
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    name_ranks,
    new_panels,
)

# The looks of the passes through a rank's first stage, or replica 0's; through its second, or replica 1's; …
PASSES: Sequence[Mapping[str, Look]] = (
    {"forward": {"facecolor": "#BFE3F7", "hatch": ""}, "backward": {"facecolor": "#0072B2", "hatch": ""}},
    {"forward": {"facecolor": "#FBE0B0", "hatch": ""}, "backward": {"facecolor": "#A85400", "hatch": ""}},
    {"forward": {"facecolor": "#BDE9DA", "hatch": ""}, "backward": {"facecolor": "#00664A", "hatch": ""}},
)
LETTERS = {"forward": INK, "backward": "white"}
ONE_FORWARD = "time (slots; a forward through a stage takes 1)"  # the unit of simulations
WIDE_ENOUGH = 0.019  # of the panel: a box that has room for its digit


@dataclass(frozen=True, slots=True)
class Box:
    """A forward or backward of a micro-batch on a rank.

    `chunk` numbers the stages of this rank from the first: always 0 if a replica has one stage per rank.
    """

    rank: int
    kind: str  # of PASSES
    label: str
    start: float
    end: float
    replica: int = 0
    chunk: int = 0

    @property
    def colour(self) -> int:
        """Which of the PASSES it looks like."""
        return (self.replica or self.chunk) % len(PASSES)


def boxes(simulated: Sequence[TimedAction]) -> list[Box]:
    """The forwards and backwards of a simulation, in time order."""
    kinds = {"F": "forward", "B": "backward"}
    return _in_chunks(
        [
            Box(
                one.rank, kinds[one.action.kind], repr(one.action)[1:], one.start, one.end, one.action.replica
            )
            for one in simulated
        ]
    )


def _in_chunks(drawn: Sequence[Box]) -> list[Box]:
    """The same boxes with their chunks: a micro-batch goes forward through a rank's stages in their order,
    and backward in the opposite one."""
    passes = Counter((box.rank, box.kind, box.label) for box in drawn)
    before: Counter[tuple[int, str, str]] = Counter()
    found = []
    for box in drawn:
        key = box.rank, box.kind, box.label
        chunk = before[key] if box.kind == "forward" else passes[key] - 1 - before[key]
        before[key] += 1
        found.append(replace(box, chunk=chunk))
    return found


def length(drawn: Sequence[Box]) -> float:
    """From the start of the first box to the end of the last."""
    return max(box.end for box in drawn)


def idle(drawn: Sequence[Box]) -> float:
    """The share of all ranks' time in which they compute nothing, from 0 to 1."""
    ranks = 1 + max(box.rank for box in drawn)
    return 1 - sum(box.end - box.start for box in drawn) / (ranks * length(drawn))


# ---------------------------------------------------------------- who does what when


def schedule_grids(schedules: Mapping[str, Sequence[TimedAction]]) -> Picture:
    """A panel for each schedule, one row per rank, on one scale of time; schedules by name, as simulated."""
    drawn = {name: boxes(spans) for name, spans in schedules.items()}
    labels = {
        name: f"{name}: {length(found):g} slots, {idle(found):.0%} idle" for name, found in drawn.items()
    }
    ranks = 1 + max(box.rank for found in drawn.values() for box in found)
    colours = sorted({box.colour for found in drawn.values() for box in found})
    owner = "replica" if any(box.replica for found in drawn.values() for box in found) else "chunk"
    height = 1.35 + 0.25 * (len(colours) > 1) + len(drawn) * (0.55 + 0.34 * ranks)
    figure, panels = new_panels("", rows=len(drawn), height=height, sharex=True)
    longest = max(length(found) for found in drawn.values())
    for panel, (name, found) in zip(panels, drawn.items(), strict=True):
        _grid(panel, found, longest, ranks)
        panel.set_title(labels[name], fontsize=FONT_SIZE, color=INK, loc="left")
    panels[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[-1].set_xlabel(ONE_FORWARD)
    keys = [
        Patch(label=f"{kind}, {owner} {colour}" if len(colours) > 1 else kind, edgecolor=INK, **look)
        for colour in colours
        for kind, look in PASSES[colour].items()
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    rows = "; ".join(f"{name}, {row}" for name, found in drawn.items() for row in in_words(found))
    kind = "Grid of forwards and backwards, one row per rank" + f", {len(drawn)} panels" * (len(drawn) > 1)
    return Picture(figure, f"{kind}. {'; '.join(labels.values())}. {rows}.")


def _grid(axes: Axes, found: Sequence[Box], longest: float, ranks: int) -> None:
    for box in found:
        width, look = box.end - box.start, PASSES[box.colour][box.kind]
        axes.broken_barh([(box.start, width)], (box.rank - 0.4, 0.8), edgecolor=INK, linewidth=0.6, **look)
        if width > WIDE_ENOUGH * longest:
            middle: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": LETTERS[box.kind]}
            axes.text(box.start + width / 2, box.rank, box.label, **middle)
    name_ranks(axes, range(ranks))
    axes.grid(False)
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xlim(0, 1.01 * longest)  # room for the last edge


def in_words(found: Sequence[Box]) -> list[str]:
    """What each rank does, in its order: rank 0 F0 F1 B0 B1.

    If a rank has several chunks: rank 0 chunk 0 F0 F1, chunk 1 F0 F1 B0 B1, chunk 0 B0 B1.
    """
    several = any(box.chunk for box in found)
    rows = []
    for rank in range(1 + max(box.rank for box in found)):
        mine = [box for box in found if box.rank == rank]
        runs = [
            f"chunk {chunk} " * several + " ".join(box.kind[0].upper() + box.label for box in run)
            for chunk, run in groupby(mine, key=lambda box: box.chunk)
        ]
        rows.append(f"rank {rank} " + ", ".join(runs))
    return rows
