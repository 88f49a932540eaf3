"""What a collective made by hand asks of its arrays: numbers, in one contiguous block of memory.

MPI moves the bytes of such a block, whatever they mean. So a rank checks its own arrays before it sends, and
raises ValueError, with the remedy, for one that cannot be used. The checks take the array, then its name for
the error message.
"""

import operator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array = NDArray[Any]


def flat(buffer: Array, name: str = "buffer", *, written: bool = True) -> Array:
    """`buffer` as one dimension: a view, so writing to it writes to `buffer`.

    Raises ValueError as `must_be_numbers` does.
    """
    must_be_numbers(buffer, name, written=written)
    return buffer if buffer.ndim == 1 else buffer.reshape(-1)


def must_be_numbers(array: Array | None, name: str, *, written: bool, split: bool = False) -> None:
    """Raise ValueError unless `array` holds numbers, in native byte order, in one contiguous memory block.

    `written`: the collective writes to it, so it must not be read-only. `split`: the collective cuts its
    first dimension into chunks, so it must have one.
    """
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is of type {type(array).__name__}; pass a NumPy array: np.asarray({name})")
    if array.dtype.kind not in "iufc" or not array.dtype.isnative:
        raise ValueError(
            f"{name} holds {array.dtype}; convert it with astype to numbers in native byte order"
        )
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(
            f"{name} of shape {array.shape} and strides {array.strides} is not contiguous;"
            f" use np.ascontiguousarray({name}), and copy the result back where there is one"
        )
    if written and not flags.writeable:
        raise ValueError(f"{name} is written to, but is read-only; pass {name}.copy()")
    if split and array.ndim == 0:
        raise ValueError(f"{name} is a single number and cannot be cut into chunks; give it a dimension")


def must_match(array: Array, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless `array` has this shape and dtype."""
    if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (shape, dtype):
        is_now = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {is_now} and must be {shape} {dtype}: np.empty({shape}, '{dtype}')")


def must_be_filled(array: Array, name: str, received: MPI.Status) -> None:
    """Raise ValueError when a message was shorter than the `array` that it was received into."""
    nbytes = received.Get_count(MPI.BYTE)
    if nbytes != array.nbytes:
        raise ValueError(f"{name} has {array.nbytes} bytes, but rank {received.source} sent {nbytes}")


def must_be_apart(first: Array, second: Array, names: str) -> None:
    """Raise ValueError when two arrays share memory."""
    if np.may_share_memory(first, second):
        raise ValueError(f"{names} share memory; one is read while the other is written: pass a copy")


def must_be_rank(comm: MPI.Comm, root: int) -> None:
    """Raise ValueError unless `root` is a rank of `comm`."""
    if not 0 <= operator.index(root) < comm.size:
        raise ValueError(f"root {root} is not one of {comm.size} ranks; pass 0 to {comm.size - 1}")
