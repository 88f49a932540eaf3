"""Ranks in time, a lane for each: a bar is a call, from its beginning to its return."""

from collections.abc import Sequence

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
BARRIER, SEND = "Barrier", "Send "
LEAST = 0.005  # the width of a bar that can be seen, in parts of the whole time


def timeline(calls: Sequence[Sequence[Call]]) -> Picture:
    """The calls of every rank, `calls[rank]`, in its own lane; the title says how long each Send took."""
    start = min(began for lane in calls for _, began, _ in lane)
    length = max(ended for lane in calls for _, _, ended in lane) - start
    title = title_of(calls)
    figure, axes = new_figure(title, width=8.0, height=1.6 + 0.9 * len(calls))
    for rank, lane in enumerate(calls):
        for call in lane:
            draw(axes, rank, call, start, length)
    name_ranks(axes, range(len(calls)))
    axes.set_ylim(len(calls) - 0.4, -0.6)
    axes.set_xlim(-0.02 * length, 1.42 * length)  # room for the last label
    axes.set_xlabel("seconds; where there is no bar, a rank is in no call")
    return Picture(figure, alt_of(calls, start, title))


def draw(axes: Axes, rank: int, call: Call, start: float, length: float) -> None:
    """One call: a Barrier is dotted, with its name above unless it is too short; others have theirs below."""
    name, began, ended = call
    barrier, long = name == BARRIER, ended - began > 0.1 * length
    look = ACTIVITIES["wait"] if barrier else {"facecolor": rank_colour(rank)}
    width = max(ended - began, LEAST * length)
    bar = axes.barh(rank, width, left=began - start, height=0.3, edgecolor=rank_colour(rank), linewidth=2)
    bar[0].set(**look, zorder=2 if barrier else 3)  # a Send as thin as a line stays visible
    if long or not barrier:
        place, side = (rank - 0.2, "bottom") if barrier else (rank + 0.2, "top")
        words = f"{name}: {say_seconds(ended - began)}"
        axes.text(began - start, place, words, va=side, fontsize=FONT_SIZE, color=INK)


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
