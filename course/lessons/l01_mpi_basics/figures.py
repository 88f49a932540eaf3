"""Messages in time, and ranks that wait for each other.

In a space-time diagram each rank has a lane, and time runs to the right. A bar is a call, from its
beginning to its return; an arrow is a message, from the beginning of its `Send` to the return of its `Recv`.
When the message itself arrived, neither rank can see.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

EARLY_SECONDS = 0.05  # a Send that returns less than this before its Recv counts as returning with it


@dataclass(frozen=True, slots=True)
class Message:
    """One message: when Send began and ended on its source, and Recv on its destination; in seconds."""

    name: str
    source: int
    dest: int
    send: tuple[float, float]
    recv: tuple[float, float]

    @property
    def early(self) -> float:
        """How many seconds before its Recv the Send returned; negative if it returned later."""
        return self.recv[1] - self.send[1]


# ------------------------------------------------------------------ space-time diagram


def space_time(messages: Sequence[Message]) -> Picture:
    """The messages as lanes, bars and arrows; time counts from the beginning of the first call."""
    start = min(min(m.send[0], m.recv[0]) for m in messages)
    ranks = sorted({m.source for m in messages} | {m.dest for m in messages})
    title = messages_title(messages)
    figure, axes = new_figure(title, width=8.0, height=1.8 + 0.8 * len(ranks))
    for message in messages:
        _calls(axes, message, start, ranks)
    figure.set_layout_engine("constrained", w_pad=0.1)  # room for the labels of the ranks
    name_ranks(axes, ranks)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlabel(
        "seconds; a bar is the time in a call\n"
        "An arrow joins the two calls of a message; it does not show when the bytes moved."
    )
    end = max(max(m.send[1], m.recv[1]) for m in messages) - start
    axes.set_xlim(-0.03 * end, 1.3 * end)  # room for the last label
    return Picture(figure, messages_alt(messages, start, title))


def _calls(axes: Axes, message: Message, start: float, ranks: Sequence[int]) -> None:
    """The two calls of one message, each on its lane, and the arrow between them."""
    above, below = (ranks.index(message.source), ranks.index(message.dest))
    for lane, name, (began, ended) in ((above, "Send", message.send), (below, "Recv", message.recv)):
        width = max(ended - began, 0.004)  # a call that returned at once is a thin line
        left, colour, wait = began - start, rank_colour(ranks[lane]), ACTIVITIES["wait"]
        bar = axes.barh(lane, width, left=left, height=0.3, edgecolor=colour, linewidth=2, zorder=2)
        bar[0].set(**wait)
        side = -0.22 if (lane == above) == (above < below) else 0.22
        axes.text(
            began - start,
            lane + side,
            f"{name} {message.name}: {say_seconds(ended - began)}",
            va="bottom" if side < 0 else "top",
            fontsize=FONT_SIZE,
            color=INK,
        )
    arrow = {"arrowstyle": "-|>", "color": rank_colour(message.source), "linewidth": 2}
    head, tail = (message.recv[1] - start, below), (message.send[0] - start, above)
    axes.annotate("", head, tail, arrowprops=arrow, zorder=3)


def messages_title(messages: Sequence[Message]) -> str:
    """When each Send returned, compared with its Recv."""
    early = [m for m in messages if m.early > EARLY_SECONDS]
    late = [m for m in messages if m not in early]
    parts = [f"Send of {m.name} returned {m.early:.1f} s before rank {m.dest} received it" for m in early]
    parts += [f"Send of {m.name} returned only when rank {m.dest} called Recv" for m in late]
    return ";\n".join(parts)


def messages_alt(messages: Sequence[Message], start: float, title: str) -> str:
    """The same in words."""
    lines = [
        f"{m.name} from rank {m.source} to rank {m.dest}: Send from {m.send[0] - start:.2f} to "
        f"{m.send[1] - start:.2f} s, Recv from {m.recv[0] - start:.2f} to {m.recv[1] - start:.2f} s"
        for m in messages
    ]
    words = title.replace("\n", " ")
    return (
        f"Space-time diagram: one lane per rank, time in seconds to the right. {words}. {'; '.join(lines)}."
    )


# ------------------------------------------------------------------ who waits for whom


def circular_wait(waits: Mapping[int, int], *, call: str = "Send") -> Picture:
    """Who waits for whom: `waits[rank]` is the rank that `rank` waits for, in `call`.

    Ranks that are only waited for are not blocked. The title says whether there is a circle.
    """
    ranks = sorted(set(waits) | set(waits.values()))
    title = waits_title(waits)
    figure, axes = new_figure(title, width=6.0, height=4.2)
    axes.set_xlim(-1.9, 1.9)
    axes.set_ylim(-1.35, 1.35)
    axes.set_aspect("equal")
    axes.axis("off")
    at = {rank: _on_circle(i, len(ranks)) for i, rank in enumerate(ranks)}
    for rank, other in waits.items():
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 2, "shrinkA": 30, "shrinkB": 30}
        axes.annotate("", at[other], at[rank], arrowprops=arrow)
    for rank in ranks:
        doing = f"in {call}" if rank in waits else "free"
        box = {
            "boxstyle": "round,pad=0.4",
            "facecolor": "white",
            "edgecolor": rank_colour(rank),
            "linewidth": 3,
        }
        text = f"rank {rank}\n{doing}"
        axes.text(*at[rank], text, ha="center", va="center", fontsize=FONT_SIZE, color=INK, bbox=box)
    return Picture(figure, waits_alt(waits, call, title))


def find_circle(waits: Mapping[int, int]) -> list[int]:
    """The ranks that wait in a circle, the lowest first; empty when there is no circle."""
    for first in sorted(waits):
        chain = [first]
        while (following := waits.get(chain[-1])) is not None:
            if following == first:
                return chain
            if following in chain:  # a circle further on, which its own lowest rank finds
                break
            chain.append(following)
    return []


def waits_title(waits: Mapping[int, int]) -> str:
    """Whether anyone can go on."""
    circle = find_circle(waits)
    if circle:
        return f"{_ranks(circle)} wait in a circle (arrow: waits for): none can go on"
    free = sorted(set(waits.values()) - set(waits))
    if not waits:
        return "Nobody waits"
    return f"No circle: {_ranks(free).lower()} can go on, so the others can too"


def waits_alt(waits: Mapping[int, int], call: str, title: str) -> str:
    """The same in words."""
    lines = [f"rank {rank} waits in {call} for rank {other}" for rank, other in sorted(waits.items())]
    return f"Diagram of who waits for whom. {title}. {'; '.join(lines)}."


def _on_circle(index: int, count: int) -> tuple[float, float]:
    """Where the thing `index` of `count` is on the circle, clockwise from the top."""
    angle = math.pi / 2 - 2 * math.pi * index / count
    return 1.3 * math.cos(angle), math.sin(angle)


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {listed(ranks)}"
