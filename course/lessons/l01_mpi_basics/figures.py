"""Ranks in time, a lane for each: a bar is a call, from its beginning to its return; time runs to the right."""

from collections.abc import Sequence

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
SHOWN = "Send"  # the calls whose times the title gives
LEAST = 0.005  # the width of a bar that can be seen, in parts of the whole time


def timeline(calls: Sequence[Sequence[Call]]) -> Picture:
    """The calls of every rank, `calls[rank]`, in a lane of its own; the title says how long each Send took."""
    start = min(began for lane in calls for _, began, _ in lane)
    length = max(ended for lane in calls for _, _, ended in lane) - start
    title = title_of(calls)
    figure, axes = new_figure(title, width=8.0, height=1.8 + 0.9 * len(calls))
    for rank, lane in enumerate(calls):
        for name, began, ended in lane:
            left, width = began - start, max(ended - began, LEAST * length)
            bar = axes.barh(rank, width, left=left, height=0.3, edgecolor=rank_colour(rank), linewidth=2)
            bar[0].set(**ACTIVITIES["wait"])
            above = name == "Barrier"  # a Send begins where a short Barrier ends
            words, side = f"{name}: {say_seconds(ended - began)}", "bottom" if above else "top"
            place = rank - 0.2 if above else rank + 0.2
            axes.text(left, place, words, va=side, fontsize=FONT_SIZE, color=INK)
    name_ranks(axes, range(len(calls)))
    axes.set_ylim(len(calls) - 0.3, -0.7)
    axes.set_xlim(-0.02 * length, 1.25 * length)  # room for the last label
    axes.set_xlabel("seconds; where there is no bar, a rank is in no call")
    return Picture(figure, alt_of(calls, start, title))


def title_of(calls: Sequence[Sequence[Call]]) -> str:
    """How long each Send took."""
    sends = [each for lane in calls for each in lane if each[0].startswith(SHOWN)]
    return "In " + listed([f"{name}: {say_seconds(ended - began)}" for name, began, ended in sends])


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
