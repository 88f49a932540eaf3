"""The picture of lesson 05: how many new digits each training reads rightly, epoch by epoch."""

from collections.abc import Sequence

from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_right(
    right: Sequence[Sequence[int]],
    sizes: Sequence[int],
    rates: Sequence[float],
    warm_ups: Sequence[int],
    of: int,
) -> Picture:
    """Draw for each training how many of the `of` new images are right after each epoch."""
    rows = [
        {"labels": {"epoch": n, "training": name}, "value": v, "unit": f"of {of}", "kind": "counted"}
        for values, size, rate, warm_up in zip(right, sizes, rates, warm_ups, strict=True)
        for name in [_name(size, rate, warm_up)]
        for n, v in enumerate(values, 1)
    ]
    return show(rows, x="epoch", y="new images read correctly", by="training")


def _name(size: int, rate: float, warm_up: int) -> str:
    return f"batch {size}, rate {rate}" + (", warm-up" if warm_up > 1 else "")
