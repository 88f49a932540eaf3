"""Memory that a call was given: where it is, whether it has changed, and whether anybody can see it."""

import sys
import zlib
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording.signatures import parts, signature

WHOLE = 16_384  # bytes of which every one counts for `digest`
ENDS, BETWEEN = 1_024, 64  # of more: so many bytes at both ends, and so many between them

Place = tuple[int, int]  # first address, and the one after the last


def memory_of(buffer: Any) -> memoryview | None:
    """The bytes that a message is read from or written to, if they lie together; else None."""
    if buffer is None:
        return None
    try:
        data, nbytes = buffer, None
        if isinstance(buffer, list | tuple):
            data, counts, datatype = parts(buffer)
            if data is MPI.BOTTOM or data is None or not _together(counts, datatype):
                return None
            nbytes = signature(buffer)[1]
        view = _view_of(data)
        view = view.cast("B") if view.c_contiguous else memoryview(view.obj.T).cast("B")  # type: ignore[attr-defined]
        return view if nbytes is None else view[:nbytes]
    except (TypeError, ValueError, AttributeError, BufferError, RuntimeError):
        return None


def _view_of(data: Any) -> memoryview:
    try:
        return memoryview(data)
    except TypeError:  # a tensor
        return memoryview(data.__array__())


def _together(counts: Any, datatype: Any) -> bool:
    simple = datatype is None or not isinstance(datatype, MPI.Datatype) or datatype.is_predefined
    return simple and (counts is None or isinstance(counts, int)) and not isinstance(datatype, list | tuple)


def place_of(memory: memoryview | None) -> Place | None:
    """Where it is; None if it is nowhere, or unknown."""
    if not memory:
        return None
    address = MPI.Get_address(memory)
    return address, address + memory.nbytes


def overlap(one: Place | None, other: Place | None) -> bool:
    """Whether two places have a byte in common, as far as is known."""
    return one is not None and other is not None and one[0] < other[1] and other[0] < one[1]


def digest(memory: memoryview) -> int:
    """A number that changes when the memory does; of long memory it sees a sample alone."""
    if memory.nbytes <= WHOLE:
        return zlib.crc32(memory)
    step = memory.nbytes // BETWEEN | 1  # odd: not always the same byte of a number
    ends = zlib.crc32(memory[-ENDS:], zlib.crc32(memory[:ENDS]))
    return zlib.crc32(bytes(memory[::step]), ends)


def may_share(one: Any, other: Any) -> bool:
    """Whether two arrays may overlap; quick, for every call asks it."""
    if one is other:
        return True
    try:
        base, base_of_other = one.base, other.base
    except AttributeError:
        return isinstance(one, list | tuple) or isinstance(other, list | tuple)
    return base is other or base_of_other is one or (base is not None and base is base_of_other)


# -------------------------------------------------------------------- temporaries


class _Caller:
    def call(self, *args: Any) -> int:
        return sys.getrefcount(args[0])


UNSEEN = _Caller().call(object())  # references to an argument that nobody but the call has


def is_temporary(array: Any) -> bool:
    """Whether an array to which nobody else has a reference shows its content to nobody else.

    It may be in a list such as `[array, datatype]`, which is as temporary.
    """
    if isinstance(array, list | tuple) and array:
        array = array[0]
        if sys.getrefcount(array) > 3 or not hasattr(array, "base"):
            return False
    base = getattr(array, "base", False)
    if base is None:
        return bool(array.nbytes)
    # A view: of an array that only it refers to? The three: the view's, `base`, the argument.
    return type(base) is type(array) and sys.getrefcount(base) <= 3 and is_temporary(base)
