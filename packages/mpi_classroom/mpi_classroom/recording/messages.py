"""Blocking messages: a note of whom a call waits for, before it starts, and later of what it said.

A call in a loop says the same again and again. So of every line the last call is kept (`_Site`), with all
that follows from its partners and the types of its arrays; if the next has the same, only its counts are new.
"""

import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks, record
from mpi_classroom.recording.buffers import is_temporary, may_share
from mpi_classroom.recording.calls import CODE_WORD, CODES, COUNTS, NOTHING, NOW, TRAFFIC, TRAFFIC_AT
from mpi_classroom.recording.log import LONGEST, is_own, line_of, log
from mpi_classroom.recording.signatures import OBJECT, plain, signature

pauses = False  # before messages, so that they come in another order than without
PAUSE_SECONDS = 0.01

_NOTE = struct.Struct(f"=2i{NOW.size - COUNTS.size}s")  # the counts, and what stays the same in a line
_BYTE, _PROC_NULL = MPI.BYTE, MPI.PROC_NULL
_ANY_SOURCE, _ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_OTHER = "no array"  # in a key, before the signature of what is none
_getframe, _references = sys._getframe, sys.getrefcount
_status = MPI.Status()  # where MPI says how much it received, when the caller does not want to know
Given = tuple[Any, ...]  # the arguments of the call with its communicator, in order and complete
Run = Callable[[FrameType, tuple[Any, ...], Any, Any, "MPI.Status | None", Given], Any]
Ends = tuple[int, int, int, int]  # where in `Given`: destination and its tag, source and its tag; 0 for none


class _Site:
    """A call in a line, as it was made there last. Ranks are those of the world.

    `sends` and `takes` count messages: those to and from MPI.PROC_NULL are none.
    """

    __slots__ = (
        *("arrived", "came", "context", "dest", "key", "line", "nbytes", "note", "number"),
        *("ranks", "send_tag", "sends", "source", "table", "tag", "takes"),
    )

    def __init__(self, name: str, ends: Ends, key: Given, frame: FrameType, given: Given) -> None:
        comm = given[0]
        ranks = self.ranks = comm._ranks or record.learn_ranks(comm)
        dest, self.send_tag, source, self.tag = [given[at] if at else NOTHING for at in ends]
        on = (0, comm._context, comm._mask, 0, CODES[name])
        try:
            dest, source = ranks.get(dest, dest), ranks.get(source, source)
            waits = (source, dest, self.tag) if ends[2] else (dest, NOTHING, self.send_tag)
            self.note = NOW.pack(0, 0, *waits, *on)[COUNTS.size :]
            self.sends, self.takes = int(dest >= 0), int(ends[2] > 0 and source != _PROC_NULL)
        except (TypeError, struct.error):  # no integers: MPI will say so
            self.note, self.sends, self.takes = NOW.pack(0, 0, *(NOTHING,) * 3, *on)[COUNTS.size :], 0, 0
        self.dest, self.source = dest, source
        self.line, self.context = line_of(frame), comm._checked
        # Another may call a library the next time; and the first call of a communicator has learnt its facts.
        self.key = key if is_own(frame.f_code.co_filename) and key[1] is not None else None
        self.nbytes = record.buffer_bytes(given[1]) if self.sends else 0
        self.table: Any = None  # of the log that has the call
        self.number, self.arrived = 0, -1
        self.came: tuple[int, int] | None = None  # from whom and with which tag, where any would do


def blocking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which sends or receives a message, with a note of whom it waits for and of what it says."""
    shape, ends = _shape_of(name)
    original, sites, say = record.of_objects(name, original), dict[int, _Site](), _sayer(name)
    buffered, replaced, thread = name[0].isupper(), name.endswith("_replace"), threading.get_ident
    own_array, two_arrays = buffered and not replaced, "endrecv" in name
    begin, add_up, note, pending = _NOTE.pack_into, TRAFFIC.pack_into, record.note, checks.pending

    def run(frame: FrameType, key: Given, sent: Any, received: Any, status: Any, given: Given) -> Any:
        if thread() != record.MAIN:
            checks.distrust(given[0])
            return original(*given)
        site = sites.get(frame.f_lasti)
        try:
            again = site is not None and site.key == key
        except ValueError:  # an array in the place of a rank: MPI will say so
            again = False
        if site is None or not again:
            site = sites[frame.f_lasti] = _Site(name, ends, key, frame, given)
        if pauses:
            time.sleep(PAUSE_SECONDS * random.random())
        note.calls += 1
        note.sent += site.sends
        pickled = note.pickled
        begin(note.memory, 0, note.calls, note.sent, site.note)
        try:
            result = original(*given)
        except MPI.Exception as error:
            if site.takes and record.truncated(error) and site.context is not None:
                say(site, sent, received, status, -1)  # which types led to it
            raise
        finally:
            note.words[CODE_WORD] = 0
        arrived = -1
        if site.takes:
            arrived = (status or _status).Get_count(_BYTE)
            note.received += 1
            note.received_bytes += arrived
        elif not site.sends:
            return result
        if site.sends:
            note.sent_bytes += site.nbytes if buffered else note.pickled - pickled
        add_up(note.memory, TRAFFIC_AT, note.received, note.posted, note.sent_bytes, note.received_bytes)
        if site.context is None:
            return result
        if (
            arrived == site.arrived
            and site.table is log.table
            and (site.came is None or _came_again(site, status or _status))
        ):
            calls = log.calls  # as `log.again`, without its call: messages of 1 MB notice
            calls.append(site.number)
            if len(calls) >= LONGEST:
                log.stop()
        else:
            say(site, sent, received, status, arrived)
        if own_array and site.takes:
            if _references(received) <= _UNSEEN and is_temporary(received):
                log.find("temporary", name, site.line)
            if two_arrays and site.sends and may_share(sent, received):
                checks.share(name, site.line, sent, received)
        if pending:
            into = None if replaced or not site.takes else received
            checks.beside_pending(name, site.line, sent if site.sends else None, into)
        return result

    return record.as_original(original, shape(run))


# -------------------------------------------------------------------- what it said


def _sayer(name: str) -> Callable[[_Site, Any, Any, "MPI.Status | None", int], None]:
    """What adds to the log a call `name` that has returned and does not say the same as its line's last."""
    buffered, replaced = name[0].isupper(), name.endswith("_replace")

    def say(site: _Site, sent: Any, received: Any, status: Any, arrived: int) -> None:
        types = signature(sent) if buffered and site.sends else OBJECT
        site.arrived, site.came, again = arrived, None, True
        if site.takes:
            into = signature(received) if buffered else OBJECT
            given = (site.dest, site.send_tag, *types) if site.sends else ()
            source, tag = site.source, site.tag
            if source < 0 or tag < 0:
                came = site.came = _came(status or _status)
                source = source if source >= 0 else site.ranks.get(came[0], -1)
                tag = tag if tag >= 0 else came[1]
            if site.source < 0 and checks.note_order(site.line, source):
                again = False  # the order is that of all messages
            if 0 <= arrived < into[1] and not replaced:
                again = False  # the next call may ask for the Status, or not
                if status is None:
                    log.find("short", name, site.line, plain(*into), into[1], arrived)
            entry = ("r", site.context, source, tag, *into, arrived, name, site.line, *given)
        else:
            entry = ("s", site.context, site.dest, site.send_tag, *types, name, site.line)
        log.add(entry)
        site.number, site.table = log.table.get(entry, 0), log.table if again else None

    return say


def _came(status: MPI.Status) -> tuple[int, int]:
    return status.source, status.tag


def _came_again(site: _Site, status: MPI.Status) -> bool:
    source, tag = site.came or (0, 0)
    return bool(status.tag == tag and (site.source >= 0 or status.source == source))


# -------------------------------------------------------------------- how MPI's calls are called


def _shape_of(name: str) -> tuple[Callable[[Run], Callable[..., Any]], Ends]:
    """A function that gives a call its parameters, and where they are among its arguments."""
    if name == "Sendrecv_replace":
        return _replaces, (2, 3, 4, 5)
    if "end" in name and "recv" in name:
        return _exchanges if name[0].isupper() else _exchanges_objects, (2, 3, 5, 6)
    if "end" in name:
        return _sends if name[0].isupper() else _sends_object, (2, 3, 0, 0)
    return _receives if name[0].isupper() else _receives_object, (0, 0, 2, 3)


def _sends(run: Run) -> Callable[..., Any]:
    def call(self: Any, buf: Any, dest: int, tag: int = 0) -> Any:
        frame = _getframe(1)
        try:
            key: Given = (frame.f_code, self._facts, dest, tag, buf.dtype, buf.nbytes)
        except AttributeError:
            key = (frame.f_code, self._facts, _OTHER, dest, tag, *signature(buf))
        return run(frame, key, buf, None, None, (self, buf, dest, tag))

    return call


def _sends_object(run: Run) -> Callable[..., Any]:
    def call(self: Any, obj: Any, dest: int, tag: int = 0) -> Any:
        frame = _getframe(1)
        key = (frame.f_code, self._facts, dest, tag)
        return run(frame, key, obj, None, None, (self, obj, dest, tag))

    return call


def _receives(run: Run) -> Callable[..., Any]:
    def call(self: Any, buf: Any, source: int = _ANY_SOURCE, tag: int = _ANY_TAG, status: Any = None) -> Any:
        frame = _getframe(1)
        try:
            key: Given = (frame.f_code, self._facts, source, tag, buf.dtype, buf.nbytes)
        except AttributeError:
            key = (frame.f_code, self._facts, _OTHER, source, tag, *signature(buf))
        return run(frame, key, None, buf, status, (self, buf, source, tag, status or _status))

    return call


def _receives_object(run: Run) -> Callable[..., Any]:
    def call(
        self: Any, buf: Any = None, source: int = _ANY_SOURCE, tag: int = _ANY_TAG, status: Any = None
    ) -> Any:
        frame = _getframe(1)
        key = (frame.f_code, self._facts, source, tag)
        return run(frame, key, None, buf, status, (self, buf, source, tag, status or _status))

    return call


def _exchanges(run: Run) -> Callable[..., Any]:
    def call(
        self: Any,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
        status: Any = None,
    ) -> Any:
        frame = _getframe(1)
        try:
            types = sendbuf.dtype, sendbuf.nbytes, recvbuf.dtype, recvbuf.nbytes
            key: Given = (frame.f_code, self._facts, dest, sendtag, source, recvtag, types)
        except AttributeError:
            types = *signature(sendbuf), *signature(recvbuf)
            key = (frame.f_code, self._facts, _OTHER, dest, sendtag, source, recvtag, types)
        given = (self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status or _status)
        return run(frame, key, sendbuf, recvbuf, status, given)

    return call


def _exchanges_objects(run: Run) -> Callable[..., Any]:
    def call(
        self: Any,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
        status: Any = None,
    ) -> Any:
        frame = _getframe(1)
        key = (frame.f_code, self._facts, dest, sendtag, source, recvtag)
        given = (self, sendobj, dest, sendtag, recvbuf, source, recvtag, status or _status)
        return run(frame, key, sendobj, recvbuf, status, given)

    return call


def _replaces(run: Run) -> Callable[..., Any]:
    def call(
        self: Any,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
        status: Any = None,
    ) -> Any:
        frame = _getframe(1)
        key = (frame.f_code, self._facts, _OTHER, dest, sendtag, source, recvtag, signature(buf))
        given = (self, buf, dest, sendtag, source, recvtag, status or _status)
        return run(frame, key, buf, buf, status, given)

    return call


def _references_to_unseen() -> int:
    """References to what is received into if nobody but the calls above has one: in `run`."""
    found = []

    class Facts:
        _facts = None

    def run(frame: FrameType, key: Given, sent: Any, received: Any, status: Any, given: Given) -> None:
        found.append(_references(received))

    type("_", (Facts,), {"Recv": _receives(run)})().Recv(_Unseen())
    return found[0]


class _Unseen:
    dtype, nbytes = None, 0


_UNSEEN = _references_to_unseen()
