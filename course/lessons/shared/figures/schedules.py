"""Pipelines: who does what when, as predicted and as measured.

A forward is light with dark digits, a backward is dark with white ones; the digit is the micro-batch. If a
rank has several stages (chunks), or stages of two replicas, each has its colour. White is time without work:
the bubble.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from course_lib.comm.spans import COMPUTE, WAIT, WEIGHTS, Span, in_order
from course_lib.theory.schedules import Action, Schedule, TimedAction
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
Spans = Sequence[TimedAction] | Sequence[Span]


@dataclass(frozen=True, slots=True)
class Box:
    """A forward or backward of a micro-batch on a rank; time counts from the first box.

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


def boxes(spans: Spans) -> list[Box]:
    """The forwards and backwards of a simulation, or of a recorder's spans (on rank 0), in time order."""
    simulated = [one for one in spans if isinstance(one, TimedAction)]
    passes = [(one.rank, repr(one.action), one.start, one.end) for one in simulated]
    passes += computed([span for span in spans if isinstance(span, Span)])
    found = [
        Box(rank, "forward" if name[0] == "F" else "backward", name[1:], start, end, name.count("'"))
        for rank, name, start, end in passes
    ]
    if not found:
        raise ValueError(
            "there is no forward and no backward to draw; pass spans of simulate or run_schedule"
        )
    first = min(box.start for box in found)
    moved = (replace(box, start=box.start - first, end=box.end - first) for box in found)
    return _in_chunks(sorted(moved, key=lambda box: (box.start, box.rank)))


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


def computed(spans: Sequence[Span]) -> list[tuple[int, str, float, float]]:
    """Rank, name, start and end of each forward and backward; it starts where the wait inside it ends."""
    found: list[Span] = []
    for span in in_order(spans):
        if span.kind == COMPUTE and span.name[:1] in ("F", "B") and span.name[1:2].isdigit():
            found.append(span)
        elif span.kind == WAIT and found and span.rank == found[-1].rank and span.end <= found[-1].end:
            found[-1] = replace(found[-1], start=span.end)
    return [(span.rank, span.name, span.start, span.end) for span in found]


def length(drawn: Sequence[Box]) -> float:
    """From the start of the first box to the end of the last."""
    return max(box.end for box in drawn)


def idle(drawn: Sequence[Box]) -> float:
    """The share of all ranks' time in which they compute nothing, from 0 to 1."""
    ranks = 1 + max(box.rank for box in drawn)
    return 1 - sum(box.end - box.start for box in drawn) / (ranks * length(drawn))


def measured_seconds(schedule: Schedule, spans: Sequence[Span]) -> Callable[[Action], float]:
    """How long each action of `schedule` took in the run that left these spans: for `simulate`."""
    seconds: dict[Action, float] = {}
    drawn = boxes(spans)
    for rank, actions in enumerate(schedule):
        mine = [box for box in drawn if box.rank == rank]
        names = [f"{box.kind[0].upper()}{box.label}" for box in mine]
        if names != [repr(action) for action in actions]:
            raise ValueError(
                f"rank {rank} did {names}, and the schedule says {actions}; give the one that ran"
            )
        seconds |= {action: box.end - box.start for action, box in zip(actions, mine, strict=True)}
    return seconds.__getitem__


def measured_weights(schedule: Schedule, spans: Sequence[Span]) -> Callable[[Action], float]:
    """How long each backward of that run took for its deferred weight gradients: for `simulate`."""
    seconds: dict[Action, float] = {}
    for rank, actions in enumerate(schedule):
        backwards = iter([action for action in actions if action.kind == "B"])
        for span in sorted((span for span in spans if span.rank == rank), key=lambda span: span.start):
            if span.kind == COMPUTE and span.name[:1] == "B":
                action = next(backwards)
            elif span.name.startswith(WEIGHTS):
                seconds[action] = span.seconds
    return lambda action: seconds.get(action, 0.0)


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
