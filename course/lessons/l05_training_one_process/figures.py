"""The picture of lesson 05: how many new digits each training reads rightly, epoch by epoch."""

from collections.abc import Mapping, Sequence

from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_right(right: Mapping[str, Sequence[int]], of: int) -> Picture:
    """Draw for each named training how many of the `of` new images are right after each epoch."""
    rows = [
        {"labels": {"epoch": n, "training": name}, "value": v, "unit": f"of {of}", "kind": "counted"}
        for name, values in right.items()
        for n, v in enumerate(values, 1)
    ]
    return show(rows, x="epoch", y="new images read correctly", by="training")
