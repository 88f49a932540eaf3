"""The picture of lesson 09: bytes per step, of tensor parallelism and of data parallelism, by batch."""

from collections.abc import Mapping

from course_lib.rows import count
from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_bytes(counted: Mapping[int, tuple[int, int]]) -> Picture:
    """Draw the counted bytes by batch: of tensor parallelism, and of data parallelism."""
    rows = [
        count(nbytes, unit="bytes", batch=batch, parallelism=parallelism)
        for batch, both in counted.items()
        for parallelism, nbytes in zip(("tensor", "data"), both, strict=True)
    ]
    return show(rows, x="batch", y="all-reduced per step", by="parallelism")
