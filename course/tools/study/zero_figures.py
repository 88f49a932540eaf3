"""The figure of `course study --zero`: bytes and seconds of a rank, by stage, against the number of ranks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course.lessons.l07_ddp_on_mnist.figures.study import MEASURED
from mpi_classroom.figures import FONT_SIZE, Picture, new_panels, series_style, three_digits


class Point(NamedTuple):
    """A case: bytes of the rank with most, held and at the peak (None: unknown), seconds of a step, label."""

    ranks: int
    held: int
    peak: int | None
    seconds: float
    label: str


def bytes_and_seconds(points: Mapping[int, Sequence[Point]]) -> Picture:
    """Left what a rank holds and its peak, right the seconds of a step; one line per stage."""
    title = bytes_title(points)
    figure, (left, right) = new_panels(title, columns=2, height=4.6)
    for index, (stage, line) in enumerate(points.items()):
        look, ranks = series_style(index), [point.ranks for point in line]
        left.plot(ranks, [point.held / 1e6 for point in line], label=f"stage {stage}", **look)
        known = [point for point in line if point.peak is not None]
        peaks = [point.peak / 1e6 for point in known if point.peak is not None]
        hollow = look | {"markerfacecolor": "white"}
        left.plot([point.ranks for point in known], peaks, **hollow | {"linewidth": 0.8})
        right.plot(ranks, [point.seconds for point in line], **look)
        crowded = [point for point in line if point.label != MEASURED]
        hollow |= {"linestyle": ""}
        right.plot([point.ranks for point in crowded], [point.seconds for point in crowded], **hollow)
    counts = sorted({point.ranks for line in points.values() for point in line})
    many = any(point.label != MEASURED for line in points.values() for point in line)
    left.set(ylabel="MB of a rank (filled: held, open: peak)", xlabel="ranks")
    right.set(ylabel="seconds of a step", xlabel="ranks (open: more than cores)" if many else "ranks")
    for axes in (left, right):
        axes.set_xticks(counts)
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower left", ncols=len(points), fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bytes_alt(points, title))


def bytes_title(points: Mapping[int, Sequence[Point]]) -> str:
    """Which stage holds least on the most ranks, and what its step takes beside the fastest."""
    most = max(point.ranks for line in points.values() for point in line)
    there = {stage: point for stage, line in points.items() for point in line if point.ranks == most}
    least = min(there, key=lambda stage: there[stage].held)
    slower = there[least].seconds / min(point.seconds for point in there.values())
    held = three_digits(there[least].held / 1e6)
    ranks = f"{most} rank{'s' * (most != 1)}"
    return f"On {ranks} stage {least} holds least, {held} MB;\nits step takes {slower:.2f} times the fastest"


def bytes_alt(points: Mapping[int, Sequence[Point]], title: str) -> str:
    """The same in words."""
    words = [
        f"stage {stage} on {point.ranks}: held {three_digits(point.held / 1e6)} MB"
        + (f", peak {three_digits(point.peak / 1e6)} MB" if point.peak is not None else "")
        + f", {three_digits(point.seconds)} s per step"
        + (f" ({point.label})" if point.label != MEASURED else "")
        for stage, line in points.items()
        for point in line
    ]
    one_line = title.replace("\n", " ")
    return f"Lines of bytes and seconds against ranks. {one_line}. {'; '.join(words)}."
