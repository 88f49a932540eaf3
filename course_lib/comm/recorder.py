"""The MPI call that this rank is in, written where another process can read it.

A rank blocked inside MPI cannot answer questions. So every blocking call of a `RecordedComm` notes itself,
before it starts, in a small memory-mapped file, and erases the note when it returns. The last collective
that it completed stays noted too: it tells who has made a call that others still wait in. `install` puts a
`RecordedComm` in the place of `MPI.COMM_WORLD`, so that the code of a lesson is recorded as it is.

Ranks are noted as the world numbers them, whatever communicator they are called in. Only the main thread is
recorded. Requests are not: `request.Wait()` shows only as the line of code that a stack dump names.
"""

import faulthandler
import mmap
import os
import signal
import struct
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from course_lib.comm.calls import (
    ALIKE,
    CODE_BYTES,
    END,
    MAKERS,
    NAMES,
    NOTHING,
    NOW,
    POINT_TO_POINT,
    ROOTED,
    SIZE,
    WORLD,
    call_file,
    stack_file,
)

CALLS = (*POINT_TO_POINT, *ROOTED, *ALIKE)
_NO_CALL = bytes(4)
_MAIN = threading.main_thread().ident

_record: Any = bytearray(SIZE)
_calls = _world_calls = 0


class _Recorded:
    """What a recorded communicator knows of itself."""

    _ranks: Mapping[int, int] = MappingProxyType({})  # its ranks → the world's; found at its first call
    _mask = 0  # bit r: rank r of the world is a member
    _whole = False  # whether all are
    _context = 0
    _turn = 0


class RecordedComm(_Recorded, MPI.Intracomm):
    """An intracommunicator whose blocking calls are recorded; what it splits into is recorded too."""


class RecordedCart(_Recorded, MPI.Cartcomm):
    """The same for a grid of ranks."""


def _learn_ranks(comm: Any) -> Mapping[int, int]:
    """Find out which ranks of the world `comm` has."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    comm._ranks = dict(enumerate(group.Translate_ranks(None, world)))
    comm._mask = sum(1 << rank for rank in comm._ranks.values() if 0 <= rank < 64)
    comm._whole = comm.size == MPI.COMM_WORLD.size
    group.Free()
    world.Free()
    return comm._ranks


def _point_to_point(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    code, (peer_at, other_at, tag_at, no_tag) = NAMES.index(name), POINT_TO_POINT[name]
    note, thread = NOW.pack_into, threading.get_ident

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _calls
        if thread() != _MAIN:
            return original(self, *args, **kwargs)
        _calls += 1
        ranks, given = self._ranks or _learn_ranks(self), len(args)
        peer = args[peer_at[0]] if given > peer_at[0] else kwargs.get(peer_at[1], -1)
        tag = args[tag_at[0]] if given > tag_at[0] else kwargs.get(tag_at[1], no_tag)
        other = NOTHING
        if other_at:
            other = args[other_at[0]] if given > other_at[0] else kwargs.get(other_at[1], -1)
        try:
            peer, other = ranks.get(peer, peer), ranks.get(other, other)
            note(_record, 0, peer, other, tag, _calls, _world_calls, 0, self._context, self._mask, code)
        except (TypeError, struct.error):  # no integers: MPI will say so
            note(_record, 0, *[NOTHING] * 3, _calls, _world_calls, 0, self._context, self._mask, code)
        try:
            return original(self, *args, **kwargs)
        finally:
            _record[CODE_BYTES] = _NO_CALL

    return _as(original, call)


def _collective(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    code, root_at = NAMES.index(name), ROOTED.get(name)
    note, note_end, thread = NOW.pack_into, END.pack_into, threading.get_ident
    everyone = name != "Create_group"  # only the ranks of the group call that

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _calls, _world_calls
        if thread() != _MAIN:
            return original(self, *args, **kwargs)
        ranks, root = self._ranks or _learn_ranks(self), NOTHING
        _calls += 1
        _world_calls += self._whole and everyone
        turn, context, mask = self._turn, self._context, self._mask
        if root_at:
            root = args[root_at] if len(args) > root_at else kwargs.get("root", 0)
            root = ranks.get(root, NOTHING)
        note(_record, 0, root, NOTHING, NOTHING, _calls, _world_calls, turn, context, mask, code)
        self._turn = turn + everyone
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            _record[CODE_BYTES] = _NO_CALL
            raise
        note_end(_record, CODE_BYTES.start, 0, code, turn, context, mask)
        return result

    return _as(original, call)


def _maker(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    make = _collective(name, original)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = (31 * self._context + self._turn + 1) % 2**31
        made = make(self, *args, **kwargs)
        if made == MPI.COMM_NULL:
            return made
        recorded = RecordedCart(made) if isinstance(made, MPI.Cartcomm) else RecordedComm(made)
        recorded._context = context  # the same on all its ranks: they have made the same calls
        return recorded

    return _as(original, call)


def _as(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    call.__name__, call.__doc__ = original.__name__, original.__doc__
    return call


_WRAPPERS = {
    **dict.fromkeys(CALLS, _collective),
    **dict.fromkeys(POINT_TO_POINT, _point_to_point),
    **dict.fromkeys(MAKERS, _maker),
}
for _class, _base in ((RecordedComm, MPI.Intracomm), (RecordedCart, MPI.Cartcomm)):
    for _name, _wrap in _WRAPPERS.items():
        if hasattr(_base, _name):  # only a grid has Sub
            setattr(_class, _name, _wrap(_name, getattr(_base, _name)))


def install(folder: Path) -> tuple[int, int, int, str]:
    """Record this rank's calls in `folder`; return its rank, world size, pid and MPI library.

    From here on `MPI.COMM_WORLD` is a `RecordedComm`, and SIGUSR1 writes the Python stack to a file, also
    while the rank is blocked inside MPI. Calling it again changes nothing.
    """
    global _record
    world = MPI.COMM_WORLD
    if not isinstance(world, RecordedComm):
        path = call_file(folder, world.rank)
        with open(path, "ab") as file:
            file.truncate(SIZE)
        with open(path, "r+b") as file:
            _record = mmap.mmap(file.fileno(), SIZE)
        _record[:] = bytes(SIZE)
        WORLD.pack_into(_record, SIZE - WORLD.size, world.size)
        stack = open(stack_file(folder, world.rank), "w")  # noqa: SIM115  open as long as the engine lives
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        warnings.filterwarnings("ignore", message="To exit: use")  # advice for a terminal, not for a cell
        MPI.COMM_WORLD = RecordedComm(world)  # type: ignore[misc]
        MPI.Finalize = _refuse_to_finalize
    library = MPI.Get_library_version().split(",")[0].replace("Open MPI v", "Open MPI ")
    return world.rank, world.size, os.getpid(), library


def _refuse_to_finalize() -> None:
    """In the place of MPI.Finalize: after the real one, the next MPI call ends the process."""
    raise RuntimeError("MPI.Finalize ends MPI for good; mpi4py calls it by itself when the program ends")
