"""The picture of lesson 09: bytes per step, of tensor parallelism and of data parallelism, by batch."""

from collections.abc import Mapping

from course_lib.rows import count, predicted
from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_bytes(tensor: Mapping[int, int], data: int) -> Picture:
    """Draw the counted bytes of tensor parallelism by batch, beside the `data` bytes at any batch."""
    rows = [
        count(nbytes, unit="bytes", batch=batch, parallelism="tensor") for batch, nbytes in tensor.items()
    ]
    rows += [predicted(data, unit="bytes", batch=batch, parallelism="data") for batch in tensor]
    return show(rows, x="batch", y="all-reduced per step", by="parallelism")
