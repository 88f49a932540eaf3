"""The pictures of lesson 03: times by strips, and predicted times beside them."""

from collections.abc import Mapping

from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_times(
    measured: Mapping[str, Mapping[int, float]], predicted: Mapping[str, Mapping[int, float]] | None = None
) -> Picture:
    """Draw seconds by strips: a curve per name in `measured`, and a dashed one per name in `predicted`."""
    rows = [
        {"labels": {"strips": strips, "on": name}, "value": seconds, "kind": kind}
        for kind, curves in (("measured", measured), ("predicted", predicted or {}))
        for name, times in curves.items()
        for strips, seconds in times.items()
    ]
    return show(rows, x="strips", y="time", by="on")
