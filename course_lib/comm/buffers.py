"""What a collective by hand demands of its arrays, and how it cuts them.

MPI moves the bytes of one stretch of memory. So every array is checked before the first message leaves, and
is then seen as a flat view: what is written to the view is written to the array.

A sum over ranks is made in pieces that the caches hold: a received piece is added while it is still there,
and the memory that it was received into is small enough to be used again and again.
"""

import operator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from course_lib.theory.partition import even_ranges

PIECE_BYTES = 2**20  # as large as a common second-level cache
_WHOLE = [slice(None)]


def flat_view(name: str, array: NDArray[Any] | None, *, written: bool) -> NDArray[Any]:
    """`array` as one dimension, sharing its memory; `name` is what an error calls it.

    Raises ValueError when it is no array of numbers in one stretch of memory, or may not be `written` to.
    """
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is of type {type(array).__name__}; give a NumPy array: np.asarray({name})")
    dtype = array.dtype
    if dtype.kind not in "iufc" or not dtype.isnative:
        raise ValueError(f"{name} holds {dtype}, not this machine's numbers; convert it with astype")
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(
            f"{name} of shape {array.shape} and strides {array.strides} is not contiguous;"
            f" use np.ascontiguousarray({name}), and copy the result back where there is one"
        )
    if written and not flags.writeable:
        raise ValueError(f"{name} is written to, but is read-only; give {name}.copy()")
    return array if array.ndim == 1 else array.reshape(-1)


def shards(name: str, whole: NDArray[Any] | None, size: int, *, written: bool) -> list[NDArray[Any]]:
    """The parts that `np.array_split(whole, size)` has, as views. Raises ValueError as `flat_view` does."""
    flat_view(name, whole, written=written)
    if whole is None or whole.ndim == 0:
        raise ValueError(f"{name} is a single number and cannot be dealt out; give it a dimension")
    return split(whole, size)


def split(array: NDArray[Any], parts: int) -> list[NDArray[Any]]:
    """What `np.array_split(array, parts)` gives, in a fraction of the 5 µs that it takes."""
    return [array[part.start : part.stop] for part in even_ranges(len(array), parts)]


def must_match(name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless `array` has this shape and dtype."""
    if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (shape, dtype):
        is_now = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {is_now} and must be {shape} {dtype}: np.empty({shape}, '{dtype}')")


def must_be_filled(name: str, array: NDArray[Any], received: MPI.Status) -> None:
    """Raise ValueError when a message was shorter than the `array` that it came into."""
    nbytes = received.Get_count(MPI.BYTE)
    if nbytes != array.nbytes:
        raise ValueError(f"{name} has {array.nbytes} bytes, and rank {received.source} has {nbytes} for it")


def must_be_apart(names: str, first: NDArray[Any], second: NDArray[Any]) -> None:
    """Raise ValueError when two arrays lie in the same memory."""
    if np.may_share_memory(first, second):
        raise ValueError(f"{names} share memory; one is read while the other is written: give a copy")


def must_be_rank(comm: MPI.Comm, root: int) -> None:
    """Raise ValueError unless `root` is a rank of `comm`."""
    if not 0 <= operator.index(root) < comm.size:
        raise ValueError(f"root {root} is not one of {comm.size} ranks; give 0 to {comm.size - 1}")


def pieces(flat: NDArray[Any]) -> list[slice]:
    """Consecutive slices of `flat`, each of up to PIECE_BYTES; one when it is empty."""
    length = PIECE_BYTES // flat.itemsize
    if flat.size <= length:
        return _WHOLE
    return [slice(start, start + length) for start in range(0, flat.size, length)]
