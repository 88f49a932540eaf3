"""Who computed, waited and transferred, when: a lane for each rank, and the times in a table beside it."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_lib.comm.spans import COMPUTE, TRANSFER, WAIT, Span, by_rank, duration, innermost, totals
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    name_ranks,
    new_panels,
    say_ranks,
    say_seconds,
    three_digits,
    time_unit,
)
from mpi_classroom.sentences import listed

WORTH_TELLING = 0.1  # the share of all time that others have to wait before one rank is called slow
MANY = 60  # bars; more of them are drawn with thinner lines
SHADES = ("#cfe8f7", "#56B4E9", "#0072B2")  # of the parts of a computation
Totals = Mapping[int, Mapping[str, float]]


def timeline(spans: Sequence[Span], *, cores: int | None = None, parts: bool = False) -> Picture:
    """One lane per rank, from the start of the first span to the end of the last; gaps were not recorded.

    `spans` are those that `Recorder.gather` gives on rank 0; `cores` is how many the ranks share, None where
    it makes no difference, as for ranks that sleep. With `parts`, compute spans of different names differ.
    """
    if not spans:
        raise ValueError("there are no spans to draw; pass what Recorder.gather() gave on rank 0")
    seconds = totals(spans)
    factor, unit = time_unit(duration(spans))
    title = timeline_title(seconds, cores)
    ratios: Look = {"width_ratios": [1.7, 1]}
    figure, (lanes, table) = new_panels(title, columns=2, height=2.1 + 0.5 * len(seconds), **ratios)
    pieces = innermost(spans)
    looks = part_looks(pieces) if parts else ACTIVITIES
    _lanes(lanes, pieces, looks, factor, unit)
    _table(table, seconds, factor, unit)
    keys = [Patch(label=name, edgecolor=INK, **look) for name, look in looks.items()]
    figure.legend(handles=keys, loc="outside lower left", ncols=len(keys), fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, timeline_alt(seconds, spans, title))


def part_looks(pieces: Sequence[Span]) -> dict[str, Look]:
    """A shade for each name of a compute span, in the order of the spans; waits and transfers as ever."""
    names = dict.fromkeys(piece.name for piece in pieces if piece.kind == COMPUTE)
    shades: dict[str, Look] = {
        name: {"facecolor": SHADES[index % len(SHADES)], "hatch": ""} for index, name in enumerate(names)
    }
    return shades | {activity: ACTIVITIES[activity] for activity in (WAIT, TRANSFER)}


def _lanes(axes: Axes, pieces: Sequence[Span], looks: Mapping[str, Look], factor: float, unit: str) -> None:
    """A bar per piece, in the look of its name, or else of its kind."""
    ranks = by_rank(pieces) or {0: []}
    first = min((piece.start for piece in pieces), default=0.0)
    width = 1.0 if len(pieces) < MANY else 0.2
    for place, rank in enumerate(ranks):
        for name, look in looks.items():
            bars = [
                (factor * (piece.start - first), factor * piece.seconds)
                for piece in ranks[rank]
                if name == (piece.kind if piece.kind in looks else piece.name)
            ]
            axes.broken_barh(bars, (place - 0.3, 0.6), edgecolor=INK, linewidth=width, **look)
    name_ranks(axes, list(ranks))
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlabel(f"{unit} since the first began")


def _table(axes: Axes, seconds: Totals, factor: float, unit: str) -> None:
    """The totals of each rank, on the height of its lane."""
    axes.axis("off")
    axes.set_ylim(len(seconds) - 0.4, -0.6)
    axes.set_xlim(0, len(ACTIVITIES))
    for column, activity in enumerate(ACTIVITIES):
        right: Look = {"ha": "right", "fontsize": FONT_SIZE, "color": INK}
        axes.text(column + 0.95, -0.65, f"{activity}\n({unit})", va="bottom", **right)
        numbers = same_decimals([factor * mine[activity] for mine in seconds.values()])
        for place, number in enumerate(numbers):
            axes.text(column + 0.95, place, number, va="center", **right)


def same_decimals(values: Sequence[float]) -> list[str]:
    """The numbers of one column, all with as many decimals as give the largest three digits."""
    largest = float(f"{max(values):.3g}")
    decimals = sum(largest < limit for limit in (100, 10, 1))
    return [f"{value:.{decimals}f}" for value in values]


def shares(seconds: Totals) -> dict[str, float]:
    """The fraction of all ranks' recorded time that each activity took; 0 if there was none."""
    whole = sum(sum(mine.values()) for mine in seconds.values())
    return {kind: sum(mine[kind] for mine in seconds.values()) / (whole or 1) for kind in ACTIVITIES}


def slow_rank(seconds: Totals) -> int | None:
    """The rank that all others waited for, if there was one: each of them five times as long as it."""
    if len(seconds) < 2 or shares(seconds)["wait"] < WORTH_TELLING:
        return None
    slowest = min(seconds, key=lambda rank: seconds[rank]["wait"])
    others = min(mine["wait"] for rank, mine in seconds.items() if rank != slowest)
    return slowest if others > 5 * seconds[slowest]["wait"] else None


def timeline_title(seconds: Totals, cores: int | None) -> str:
    """Whom the others waited for, or else what all did with their time; and whether they had a core each."""
    machine = "" if cores is None else f"{say_ranks(len(seconds), cores)}: "
    slow, rank = slow_rank(seconds), "rank" if machine else "Rank"
    if slow is not None:
        waits = {rank: mine["wait"] for rank, mine in seconds.items() if rank != slow}
        who = f"rank{'s' * (len(waits) > 1)} {listed(waits)} waited {_range(waits.values())} for it"
        longest = max(mine["compute"] for mine in seconds.values())
        busy = seconds[slow]["compute"] == longest
        did = f"computed for {say_seconds(longest)}" if busy else "came last"  # not by computing: no core?
        return f"{machine}{rank} {slow} {did}, {who}"
    share = shares(seconds)
    words = f"{share['wait']:.1%} waiting, {share['transfer']:.1%} transferring"
    return f"{machine}{share['compute']:.1%} of the time computing, {words}"


def _range(values: Collection[float]) -> str:
    low, high = say_seconds(min(values)), say_seconds(max(values))
    return low if low == high else f"{low} to {high}"


def time_table(spans: Sequence[Span]) -> str:
    """Seconds of each rank in each activity, as lines of text."""
    factor, unit = time_unit(duration(spans))
    lines = [f"{unit:>8}" + "".join(f"{activity:>10}" for activity in ACTIVITIES)]
    for rank, mine in totals(spans).items():
        numbers = "".join(f"{three_digits(factor * mine[activity]):>10}" for activity in ACTIVITIES)
        lines.append(f"rank {rank:<3}{numbers}")
    return "\n".join(lines)


def timeline_alt(seconds: Totals, spans: Sequence[Span], title: str) -> str:
    """The same in words, rank by rank."""
    lines = [
        f"rank {rank}: " + ", ".join(f"{activity} {say_seconds(mine[activity])}" for activity in ACTIVITIES)
        for rank, mine in seconds.items()
    ]
    kind = f"Timeline: one lane per rank, {say_seconds(duration(spans))} from left to right"
    return f"{kind}. {title}. {'; '.join(lines)}."
