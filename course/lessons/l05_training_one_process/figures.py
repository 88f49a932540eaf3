"""The picture of lesson 05: how many new digits each network reads correctly, epoch by epoch."""

from collections.abc import Sequence

from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_right(
    right: Sequence[Sequence[int]],
    sizes: Sequence[int],
    rates: Sequence[float],
    of: int,
) -> Picture:
    """Draw for each training how many of the `of` new images are right after each epoch."""
    rows = [
        {"labels": {"epoch": n, "training": name}, "value": v, "unit": f"of {of}", "kind": "counted"}
        for values, size, rate in zip(right, sizes, rates, strict=True)
        for name in [f"batch {size}, rate {rate}"]
        for n, v in enumerate(values, 1)
    ]
    return show(rows, x="epoch", y="new images read correctly", by="training")
