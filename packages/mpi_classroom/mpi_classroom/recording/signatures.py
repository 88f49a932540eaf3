"""What a call says about its memory: basic types and counts, as MPI compares them.

A signature is `(what, nbytes)`. Of an array `what` is its dtype, which costs nothing to note; `plain` makes
words of it when the cell has ended. Of anything else it is a tuple: a derived type is noted by its parts.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

Runs = tuple[
    tuple[str, int], ...
]  # basic types one after the other, each with its count: (("f8", 3), ("i4", 1))
Signature = tuple[Any, int]
NONE: Signature = (None, 0)
OBJECT: Signature = ("object", -1)
IN_PLACE: Signature = ("in place", -1)
_in_place = MPI.IN_PLACE
UNKNOWN: Signature = ("unknown", -1)  # agrees with everything
BYTES = "V1"  # agrees with everything that has as many bytes

_LONGEST = 4096  # runs of a type with many parts; of a longer one only the bytes are known


def signature(buffer: Any) -> Signature:
    """The signature of what a call was given to send, or to receive into."""
    if buffer is _in_place:
        return IN_PLACE
    try:
        return buffer.dtype, buffer.nbytes
    except AttributeError:
        return _guarded(_of_message, buffer)


def block_signature(buffer: Any) -> Signature:
    """The same of memory for all ranks: where a count is given, it is that of each rank."""
    what, nbytes = signature(buffer)
    if isinstance(what, tuple) and isinstance(buffer, list | tuple) and parts(buffer)[1] is not None:
        return ("types", what[1], (what[2],)), nbytes
    return what, nbytes


def vector_signature(buffer: Any) -> Signature:
    """The same where a count per rank is given: `[data, counts, displacements, datatype]`."""
    if isinstance(buffer, list | tuple):
        return _guarded(_of_vector, buffer)
    return UNKNOWN if buffer is not MPI.IN_PLACE else IN_PLACE


def _guarded(find: Callable[[Any], Signature], buffer: Any) -> Signature:
    try:
        return find(buffer)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, BufferError, MPI.Exception):
        return UNKNOWN


def _of_message(buffer: Any) -> Signature:
    if buffer is None:
        return NONE
    if not isinstance(buffer, list | tuple):
        runs, size, nbytes = _of_memory(buffer)
        return ("type", runs, nbytes // size), nbytes
    data, counts, datatype = parts(buffer)
    if isinstance(counts, Sequence):
        counts = counts[0]  # the other is where it begins
    runs, size, extent = _of_type(datatype, data)
    if counts is None:
        counts = memory_bytes(data) // extent
    return ("type", runs, int(counts)), int(counts) * size


def _of_vector(buffer: Any) -> Signature:
    data, counts, datatype = parts(buffer)
    if isinstance(datatype, Sequence) and not isinstance(datatype, str):
        return UNKNOWN  # a type per rank, as in Alltoallw
    if isinstance(counts, tuple):
        counts = counts[0]  # (counts, displacements)
    runs, size, _ = _of_type(datatype, data)
    each = (counts,) if isinstance(counts, int) else tuple(int(count) for count in counts)
    return ("types", runs, each), sum(each) * size


def parts(message: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Data, counts and datatype of a message such as `[data, counts, datatype]`; None for each left out."""
    data, *rest = message
    datatype = rest.pop() if rest and _is_type(rest[-1]) else None
    return data, rest[0] if rest else None, datatype


def _is_type(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], MPI.Datatype)
    return isinstance(value, MPI.Datatype | str) or (hasattr(value, "itemsize") and hasattr(value, "kind"))


def _of_memory(data: Any) -> tuple[Runs, int, int]:
    """Basic type, its size, and the bytes of an array, of `bytes` or the like."""
    if hasattr(data, "dtype"):
        name = type_name(data.dtype)
        return ((name, 1),), int(name[1:]), int(data.nbytes)
    view = memoryview(data)
    kind = {"f": "f", "d": "f", "g": "f"}.get(view.format, "u" if view.format.isupper() else "i")
    is_bytes = isinstance(data, bytes | bytearray | memoryview) and view.itemsize == 1
    name = BYTES if is_bytes or view.format == "c" else f"{kind}{view.itemsize}"
    return ((name, 1),), view.itemsize, view.nbytes


def memory_bytes(data: Any) -> int:
    """All bytes of an array or of another object with memory."""
    return int(data.nbytes) if hasattr(data, "nbytes") else memoryview(data).nbytes


def _of_type(datatype: Any, data: Any) -> tuple[Runs, int, int]:
    """What one item of `datatype` consists of, its size and its extent in bytes; of `data` without one."""
    if datatype is None:
        runs, size, _ = _of_memory(data)
        return runs, size, size
    if not isinstance(datatype, MPI.Datatype):
        datatype = MPI.Datatype.fromcode(datatype if isinstance(datatype, str) else datatype.char)
    return flattened(datatype), datatype.Get_size(), datatype.Get_extent()[1]


# -------------------------------------------------------------------- derived types

_TIMES: dict[str, Callable[[dict[str, Any]], int]] = {  # how often the inner type comes, by how it was made
    **dict.fromkeys(("DUP", "RESIZED"), lambda p: 1),
    "CONTIGUOUS": lambda p: p["count"],
    **dict.fromkeys(("VECTOR", "HVECTOR"), lambda p: p["count"] * p["blocklength"]),
    **dict.fromkeys(("INDEXED", "HINDEXED"), lambda p: sum(p["blocklengths"])),
    **dict.fromkeys(
        ("INDEXED_BLOCK", "HINDEXED_BLOCK"), lambda p: len(p["displacements"]) * p["blocklength"]
    ),
}


def flattened(datatype: MPI.Datatype) -> Runs:
    """The basic types that `datatype` consists of, in order."""
    if datatype.is_predefined:
        return basic(datatype)
    base, combiner, params = datatype.decode()
    if combiner == "STRUCT":
        kinds, counts = params["datatypes"], params["blocklengths"]
    else:
        kinds, counts = [base], [_TIMES[combiner](params) if combiner in _TIMES else 0]
        if combiner not in _TIMES:  # SUBARRAY, DARRAY
            counts = [datatype.Get_size() // base.Get_size()]
    runs: list[tuple[str, int]] = []
    for kind, count in zip(kinds, counts, strict=True):
        runs += times(flattened(kind), count)
        if not kind.is_predefined:
            kind.Free()  # decode has made a copy
    return merged(runs)


def basic(datatype: MPI.Datatype) -> Runs:
    """A type that MPI has by itself."""
    if datatype in (MPI.BYTE, MPI.PACKED, MPI.CHAR):
        return ((BYTES, 1),)
    for pair, first in _PAIRS:
        if datatype == pair:
            return merged([(first, 1), ("i4", 1)])
    return ((datatype.typestr, 1),)


_PAIRS = (
    *((MPI.FLOAT_INT, "f4"), (MPI.DOUBLE_INT, "f8"), (MPI.LONG_INT, "i8"), (MPI.SHORT_INT, "i2")),
    (MPI.TWOINT, "i4"),
)


def times(runs: Sequence[tuple[str, int]], count: int) -> Runs:
    """`runs` so many times one after the other; raises ValueError when that is too long to be compared."""
    if len(runs) == 1:
        return ((runs[0][0], runs[0][1] * count),)
    if len(runs) * count > _LONGEST:
        raise ValueError("too many parts")
    return merged([*runs] * count)


def merged(runs: Sequence[tuple[str, int]]) -> Runs:
    """The same with neighbours of one type put together."""
    found: list[tuple[str, int]] = []
    for name, count in runs:
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + count
        elif count:
            found.append((name, count))
    return tuple(found)


# -------------------------------------------------------------------- in words of their own


def type_name(dtype: Any) -> str:
    """`f8` for float64 of NumPy or of torch."""
    kind, size = getattr(dtype, "kind", ""), getattr(dtype, "itemsize", 0)
    if kind:
        return BYTES if kind in "VS" else f"{kind}{size}"
    name = str(dtype).removeprefix("torch.")
    kind = {"bool": "b", "bfloat": "bf"}.get(name.rstrip("0123456789"), name[0])
    return f"{kind}{size}"


def plain(what: Any, nbytes: int) -> Any:
    """A signature as it leaves the rank: text, None, or `(runs, count)`; a count per rank is a tuple."""
    if what is None or isinstance(what, str):
        return what
    if isinstance(what, tuple):
        return what[1:]
    name = type_name(what)
    return ((name, 1),), nbytes // (int("".join(filter(str.isdigit, name))) or 1)
