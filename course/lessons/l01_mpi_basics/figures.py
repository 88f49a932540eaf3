"""Ranks in time, a lane for each: a bar is a call, from its beginning to its return."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Picture,
    listed,
    name_ranks,
    new_figure,
    rank_colour,
    say_seconds,
)

Call = tuple[str, float, float]  # its name, when it began and when it returned, in seconds
BARRIER, SEND, ASLEEP = "Barrier", "Send ", "asleep"
LEAST = 0.005  # the width of a bar that can be seen, in parts of the whole time
LONG = 0.1  # from here on a bar has room for its name


def timeline(calls: Sequence[Sequence[Call]]) -> Picture:
    """The calls of every rank, `calls[rank]`, in its own lane; the title says how long each Send took."""
    start = min(began for lane in calls for _, began, _ in lane)
    length = max(ended for lane in calls for _, _, ended in lane) - start
    title = title_of(calls)
    figure, axes = new_figure(title, width=8.0, height=1.6 + 0.9 * len(calls))
    for rank, lane in enumerate(calls):
        for name, began, ended in lane:
            bar = draw(axes, rank, name, began - start, max(ended - began, LEAST * length))
            say(axes, rank, (name, began - start, ended - start), bar, ended - began > LONG * length)
    name_ranks(axes, range(len(calls)))
    axes.set_ylim(len(calls) - 0.4, -0.6)
    axes.set_xlim(-0.02 * length, 1.05 * length)
    axes.set_xlabel("seconds")
    return Picture(figure, alt_of(calls, start, title))


def draw(axes: Axes, rank: int, name: str, began: float, width: float) -> float:
    """One call as a bar, thin and dotted for a Barrier, grey for sleep; returns half its height."""
    half = 0.06 if name == BARRIER else 0.15
    look = ACTIVITIES["wait"] if name == BARRIER else {"facecolor": rank_colour(rank)}
    edge = rank_colour(rank)
    if name == ASLEEP:
        look, edge = {"facecolor": "#DDDDDD"}, "#DDDDDD"
    bar = axes.barh(rank, width, left=began, height=2 * half, edgecolor=edge, linewidth=2)
    bar[0].set(**look, zorder=2 if name in (BARRIER, ASLEEP) else 3)  # a thin Send stays visible
    return half


def say(axes: Axes, rank: int, call: Call, half: float, long: bool) -> None:
    """What a call is and how long it took: below its bar, a Barrier above it; an arrow to a short Send."""
    name, began, ended = call
    words = f"{name}: {say_seconds(ended - began)}"
    style: dict[str, Any] = {"fontsize": FONT_SIZE, "color": INK}
    if name == BARRIER:
        if long:
            axes.text(began + 0.02, rank - half - 0.05, words, va="bottom", **style)
    elif name == ASLEEP:
        axes.text((began + ended) / 2, rank, words, ha="center", va="center", **style)
    elif name.startswith(SEND) and not long:
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 2, "relpos": (0.02, 1.0)}
        place = (began, rank + half + 0.22)
        axes.annotate(words, (began, rank + half), place, arrowprops=arrow, va="top", ha="left", **style)
    else:
        x, side = (began, "left") if long else (ended, "right")
        axes.text(x, rank + half + 0.05, words, va="top", ha=side, **style)


def title_of(calls: Sequence[Sequence[Call]]) -> str:
    """How long each Send took."""
    sends = [each for lane in calls for each in lane if each[0].startswith(SEND)]
    took = [f"{say_seconds(ended - began)} with {name.removeprefix(SEND)}" for name, began, ended in sends]
    return f"Send took {listed(took)}"


def alt_of(calls: Sequence[Sequence[Call]], start: float, title: str) -> str:
    """The same in words."""
    lanes = [
        f"Rank {rank}: "
        + ", ".join(
            f"{name} from {began - start:.2f} to {ended - start:.2f} s" for name, began, ended in lane
        )
        for rank, lane in enumerate(calls)
    ]
    return f"A lane per rank, seconds to the right. {title}. {'. '.join(lanes)}."
