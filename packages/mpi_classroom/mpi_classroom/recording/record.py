"""The note that this rank keeps of its MPI calls, and the wrappers that write it.

A call notes itself before it starts, in a small memory-mapped file, and erases the note when it returns. The
last collective that was completed stays noted too: it shows who has made a call that others still wait in.
Only the main thread is recorded.
"""

import mmap
import pickle
import struct
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks
from mpi_classroom.recording.calls import (
    CODE_AT,
    CODE_WORD,
    CODES,
    COUNTS,
    END,
    IN_LIBRARY,
    NOTHING,
    NOW,
    ON_WINDOWS,
    OPERATORS,
    POINT_TO_POINT,
    POLLED,
    POLLED_AT,
    PROBES,
    REDUCTIONS,
    ROOTED,
    SAME_CALL,
    SIZE,
    STARTED,
    TALLIES,
    TALLIES_AT,
    TALLY,
    TRAFFIC,
    TRAFFIC_AT,
    WORLD,
    WORLD_AT,
    call_file,
)

_BYTE = MPI.BYTE
# The same as NOW, END and TALLY, with what stays the same in a loop as bytes.
_NOW_AGAIN, _END_AGAIN = struct.Struct("=2i12si20s"), struct.Struct("=3i20s")
_note_counts, _LAST_CALL = struct.Struct("=Q3I12s").pack_into, struct.Struct("=3i")
MAIN = threading.main_thread().ident
_PARTNERS = POINT_TO_POINT | STARTED | ON_WINDOWS | PROBES

Operation = tuple[int, int, int, int, int, int, int]  # as NOW has it, without the counts and the call's code
Partners = tuple[int, int, int]  # peer, other peer and tag: ranks of the world
_NOBODY: Partners = (NOTHING, NOTHING, NOTHING)
NO_OPERATION: Operation = (NOTHING, NOTHING, NOTHING, 0, 0, 0, 0)


class Note:
    """Where this rank's note is, and what it counts: calls, messages, bytes, open requests."""

    __slots__ = (
        *("calls", "memory", "pickled", "posted", "words"),
        *("received", "received_bytes", "sent", "sent_bytes"),
    )

    def __init__(self) -> None:
        self.keep(bytearray(SIZE))
        self.calls = self.sent = self.received = self.posted = 0
        self.sent_bytes = self.received_bytes = self.pickled = 0

    def keep(self, memory: Any) -> None:
        """Keep the note in `memory` from here on."""
        self.memory = memory
        self.words = memoryview(memory).cast("i")  # the same as integers, which are quicker to set

    def add_up(self) -> None:
        """Write what was received, posted and sent."""
        traffic = self.received, self.posted, self.sent_bytes, self.received_bytes
        TRAFFIC.pack_into(self.memory, TRAFFIC_AT, *traffic)


note = Note()
known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # communicators, by id


def attach(folder: Path, rank: int, size: int) -> None:
    """Keep the note of `rank`, in a world of `size`, in `folder` from here on."""
    path = call_file(folder, rank)
    with open(path, "ab") as file:
        file.truncate(SIZE)
    with open(path, "r+b") as file:
        note.keep(mmap.mmap(file.fileno(), SIZE))
    note.memory[:] = bytes(SIZE)
    WORLD.pack_into(note.memory, WORLD_AT, size)


def detach() -> None:
    """From here on this process, which was forked off a rank, writes to nobody's note."""
    note.keep(bytearray(SIZE))


class Recorded:
    """What a recorded communicator, window or file knows of itself."""

    _ranks: Mapping[int, int] = MappingProxyType({})  # its ranks → the world's; found at its first call
    _mask = 0  # bit r: rank r of the world is a member
    _tally: "Tally | None" = None  # None: its collectives are not compared
    _context = 0
    _checked: int | None = None  # the context, if calls are compared with those of other ranks
    _facts: object = None  # stands for all the above, from the first call on
    _turn = 0
    _repeated = 0  # of those: starts of persistent collectives


def learn_ranks(comm: Any) -> Mapping[int, int]:
    """Find out which ranks of the world `comm` has; return them by their numbers in `comm`.

    It may be a window or a file, whose tally is that of the communicator it was made on (`recorder._opener`).
    """
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    comm._ranks = dict(enumerate(group.Translate_ranks(None, world)))
    comm._mask = sum(1 << rank for rank in comm._ranks.values() if 0 <= rank < 64)
    comm._facts = object()
    if not isinstance(comm, MPI.Win | MPI.File):
        comm._tally = _tally_of(comm._ranks.values(), comm._mask, world.size)
    group.Free()
    world.Free()
    return comm._ranks


# -------------------------------------------------------------------- messages


def partners_of(name: str) -> Callable[..., Partners]:
    """A function of the arguments of `name` that finds peer, other peer and tag: ranks of the world."""
    (peer_at, peer_name), second, (tag_at, tag_name), no_tag = _PARTNERS[name]
    other_at, other_name = second or (0, "")

    def partners(ranks: Mapping[int, int], args: Any, kwargs: Any) -> Partners:
        given = len(args)
        peer = args[peer_at] if given > peer_at else kwargs.get(peer_name, -1) if peer_name else NOTHING
        tag = args[tag_at] if given > tag_at else kwargs.get(tag_name, no_tag)
        other = NOTHING
        if other_name:
            other = args[other_at] if given > other_at else kwargs.get(other_name, -1)
            other = ranks.get(other, other)
        return ranks.get(peer, peer), other, tag

    return partners


def messages_of(name: str) -> Callable[[int, int], tuple[int, int]]:
    """A function of peer and other peer: how many messages the request of `name` sends and receives."""
    if "sendrecv" in name.lower():
        return lambda peer, other: (other >= 0, peer != MPI.PROC_NULL)
    if "send" in name.lower():
        return lambda peer, other: (peer >= 0, 0)
    return lambda peer, other: (0, peer != MPI.PROC_NULL)


def waiting_for_one(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, a probe or a call on a window, with a note of whom it waits for."""
    code, partners, takes = CODES[name], partners_of(name), name in ("Mprobe", "mprobe")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != MAIN:
            checks.distrust(self)
            return original(self, *args, **kwargs)
        note.calls += 1
        ranks, on = self._ranks or learn_ranks(self), (0, self._context, self._mask, 0, code)
        try:
            NOW.pack_into(note.memory, 0, note.calls, note.sent, *partners(ranks, args, kwargs), *on)
        except (TypeError, struct.error):  # no integers: MPI will say so
            NOW.pack_into(note.memory, 0, note.calls, note.sent, *_NOBODY, *on)
        if takes:
            status = kwargs["status"] = (args[2] if len(args) > 2 else kwargs.get("status")) or _status
            args = args[:2]
        try:
            result = original(self, *args, **kwargs)
        finally:
            note.words[CODE_WORD] = 0
        if takes:
            message_matched(self, status)
        return result

    return as_original(original, call)


def message_matched(comm: Any, status: Any) -> None:
    """Count a message that a probe has taken, and note it."""
    if status.source != MPI.PROC_NULL:
        note.received += 1
        note.received_bytes += status.Get_count(_BYTE)
        note.add_up()
        checks.matched(comm, status)


def truncated(error: BaseException) -> bool:
    """Whether more arrived than there was memory for."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_TRUNCATE


# -------------------------------------------------------------------- bytes

_status = MPI.Status()  # where MPI says how much it received, when the caller does not want to know
BUFFER_NAMES = {"Isendrecv": "sendbuf"}  # others: buf


def buffer_bytes(buffer: Any) -> int:
    """Bytes of an array, or of a list such as [array, count, datatype]; 0 where they are unknown."""
    try:
        return int(buffer.nbytes)
    except AttributeError:
        pass
    try:
        if not isinstance(buffer, list | tuple):
            return memoryview(buffer).nbytes
        data, *count, datatype = buffer
        if count and isinstance(count[0], int) and isinstance(datatype, MPI.Datatype):
            return count[0] * datatype.Get_size()
        return buffer_bytes(data)
    except (TypeError, ValueError):
        return 0


def count_pickled() -> None:
    """From here on the bytes of pickled messages are counted."""

    def dumps(*args: Any, **kwargs: Any) -> bytes:
        global _unsent
        try:
            data = pickle.dumps(*args, **kwargs)
        except Exception as error:
            if not _sends_objects or threading.get_ident() != MAIN:
                raise
            _unsent = error
            data = pickle.dumps(_Unsent(f"{type(error).__name__}: {error}"))
        note.pickled += len(data)
        return data

    MPI.pickle.__init__(dumps, pickle.loads, MPI.pickle.PROTOCOL)  # type: ignore[misc]


# An object that cannot be pickled is an error of its rank. Those that wait for it would wait for ever, so
# they get a message that raises when it is unpickled.
_sends_objects = False  # whether the main thread is in a call that pickles
_unsent: BaseException | None = None


class _Unsent:
    """What takes the place of an object that could not be pickled."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __reduce__(self) -> tuple[Callable[[int, str], None], tuple[int, str]]:
        return _refuse, (MPI.COMM_WORLD.rank, self.reason)


def _refuse(rank: int, reason: str) -> None:
    raise RuntimeError(f"rank {rank} could not pickle what it was to send: {reason}")


def of_objects(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`; if it sends objects, one that cannot be pickled raises here and where it is received."""
    if name[0].isupper():
        return original

    def call(*args: Any, **kwargs: Any) -> Any:
        global _sends_objects, _unsent
        if threading.get_ident() != MAIN:
            return original(*args, **kwargs)
        _sends_objects = True
        try:
            return original(*args, **kwargs)
        finally:
            error, _unsent, _sends_objects = _unsent, None, False
            if error is not None:
                raise error from None

    return as_original(original, call)


def pickled_so_far() -> int:
    """Bytes of all messages that this rank has pickled."""
    return note.pickled


def request_started(sent: int, received: int, nbytes: int) -> None:
    """Count a request that starts now: the messages of it, and the bytes that it sends."""
    note.sent += sent
    note.received += received
    note.sent_bytes += nbytes
    note.posted += 1
    COUNTS.pack_into(note.memory, 0, note.calls, note.sent)
    note.add_up()


def request_completed(nbytes: int) -> None:
    """Count a request that has completed, and the bytes that it has received."""
    note.received_bytes += nbytes
    note.posted -= 1
    note.add_up()


# -------------------------------------------------------------------- what all ranks must call


class Tally:
    """The collectives that this rank has begun on all communicators with the same members (`Collectives`).

    All members make the same calls on each of these communicators. So a sum over all calls, each times its
    position on its communicator, is the same on all members, in whatever order they make and use the
    communicators: nobody needs to know which one of a member is which of another's.
    """

    __slots__ = ("_at", "_calls", "_digest", "_mask", "_operators")

    def __init__(self, at: int, mask: int) -> None:
        self._at, self._mask = TALLIES_AT + at * TALLY.size, mask
        self._calls = self._digest = self._operators = 0
        TALLY.pack_into(note.memory, self._at, mask, 0, 0, 0, 0, 0, 0)

    def add(self, position: int, same_code: int, code: int, root: int, operator: int) -> None:
        """Count a call; `same_code` is the code of the name that stands for it in the digest."""
        self.count(position, 4096 * same_code + root, operator, _LAST_CALL.pack(code, root, operator))

    def count(self, position: int, digest: int, operator: int, last: bytes) -> None:
        """The same with what stays the same in a loop: its part of the digest, and `last` in bytes."""
        self._calls += 1
        self._digest = (self._digest + position * digest) & 0xFFFFFFFF
        if operator:
            self._operators = (self._operators + position * operator) & 0xFFFFFFFF
        _note_counts(note.memory, self._at, self._mask, self._calls, self._digest, self._operators, last)


_everyone = Tally(0, 0)
_tallies: dict[int, Tally] = {}  # of the other communicators, by their mask


def _tally_of(ranks: Collection[int], mask: int, world: int) -> Tally | None:
    """The tally of the communicators of `ranks`; None for one rank alone and where the file has no room.

    A mask has room for the ranks of a world of 64.
    """
    if len(ranks) == world:
        return _everyone
    if len(ranks) == 1 or min(ranks) < 0 or world > 64:
        return None
    if mask not in _tallies and len(_tallies) + 1 < TALLIES:
        _tallies[mask] = Tally(len(_tallies) + 1, mask)
    return _tallies.get(mask)


_elsewhere = threading.Lock()  # of what other threads than the main one note


def collective(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` with a note that all must make this call, and which of theirs it is."""
    code, root_at, operator_at = CODES[name], ROOTED.get(name), REDUCTIONS.get(name)
    begin, end, thread = _NOW_AGAIN.pack_into, _END_AGAIN.pack_into, threading.get_ident
    everyone = name != "Create_group"  # only the ranks of the group call that
    check, check_elsewhere = checks.collective_note(name), checks.collective_note(name)
    original = of_objects(name, original)
    last: tuple[Any, _SameCall] = None, _SameCall(name, NO_OPERATION, 0)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        ranks, root, operator = self._ranks or learn_ranks(self), NOTHING, 0
        if root_at:
            root = root_of(root_at, ranks, args, kwargs)
        if operator_at:
            plain = not kwargs and len(args) <= operator_at
            operator = _SUM if plain else operator_of(operator_at, args, kwargs)
        turn, saying = self._turn, (self._facts, root, operator)
        said, same = last  # at once, as other threads may call too
        if said != saying:
            same = _SameCall(name, (root, NOTHING, NOTHING, turn, self._context, self._mask, 0), operator)
            last = saying, same
        if everyone and self._tally is not None:
            self._tally.count(turn - self._repeated + 1, same.digest, operator, same.last)
        self._turn = turn + everyone
        if thread() != MAIN:
            result = original(self, *args, **kwargs)
            with _elsewhere:
                check_elsewhere(self, args, kwargs, root, operator)
            return result
        note.calls += 1
        begin(note.memory, 0, note.calls, note.sent, same.who, turn, same.rest)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            note.words[CODE_WORD] = 0
            if everyone and truncated(error):
                check(self, args, kwargs, root, operator)
            raise
        end(note.memory, CODE_AT, 0, code, turn, same.end)
        if everyone:
            check(self, args, kwargs, root, operator)
        return result

    return as_original(original, call)


class _SameCall:
    """What stays the same in the notes of a collective that is called again on its communicator."""

    __slots__ = ("digest", "end", "last", "rest", "who")

    def __init__(self, name: str, operation: Operation, operator: int) -> None:
        root, _, _, _, context, mask, _ = operation
        now = NOW.pack(0, 0, *operation, CODES[name])
        self.who, self.rest = now[8:20], now[24:]
        self.end = END.pack(0, 0, 0, context, mask, root, operator)[12:]
        self.last = _LAST_CALL.pack(CODES[name], root, operator)
        self.digest = 4096 * CODES[SAME_CALL.get(name, name)] + root


def root_of(at: int, ranks: Mapping[int, int], args: Any, kwargs: Any) -> int:
    """The root among the arguments, as the world numbers it."""
    root = args[at] if len(args) > at else kwargs.get("root", 0)
    return ranks.get(root, NOTHING)


_NUMBERS = {getattr(MPI, name).py2f(): number for number, name in enumerate(OPERATORS) if name}
_SUM = OPERATORS.index("SUM")


def operator_of(at: int, args: Any, kwargs: Any) -> int:
    """The number of the operator among the arguments; 0 for one of one's own."""
    operator = args[at] if len(args) > at else kwargs.get("op", MPI.SUM) if kwargs else MPI.SUM
    if operator is MPI.SUM:
        return _SUM
    return _NUMBERS.get(operator.py2f(), 0) if isinstance(operator, MPI.Op) else 0


def begin_collective(comm: Any, root: int, operator: int, code: int, repeated: bool) -> Operation:
    """Count a collective request that starts now; return what it is for.

    `repeated`: it is persistent, so each rank may start it before or after other calls; it has no position.
    """
    turn, context, mask = comm._turn, comm._context, comm._mask
    if comm._tally is not None:
        comm._tally.add(1 if repeated else turn - comm._repeated + 1, code, code, root, operator)
    comm._turn, comm._repeated = turn + 1, comm._repeated + repeated
    request_started(0, 0, 0)
    END.pack_into(note.memory, CODE_AT, 0, code, turn, context, mask, root, operator)
    return root, NOTHING, NOTHING, turn, context, mask, code


# -------------------------------------------------------------------- waiting for what was started


def waiting(name: str, of: Operation, wait: Callable[..., Any], *args: Any) -> Any:
    """What `wait(*args)` returns, with a note of what it waits for."""
    if threading.get_ident() != MAIN:
        return wait(*args)
    note.calls += 1
    NOW.pack_into(note.memory, 0, note.calls, note.sent, *of, CODES[name])
    try:
        return wait(*args)
    finally:
        note.words[CODE_WORD] = 0


# What a library reports by MPI_Pcontrol of the waits that no wrapper sees, because it calls MPI on threads
# and communicators of its own: any library may, `torch_mpi4py` does. A rank is noted as waiting while its
# main thread waits and no thread works.
WAIT_BEGAN, WAIT_ENDED = 54001, 54002  # the calling thread waits for a call of another rank; no longer
WORK_BEGAN, WORK_ENDED = 54003, 54004  # a thread works: it moves data or runs a callback; it has finished
_library_waits = False
_library_works = 0  # threads that work
_announcing = threading.RLock()  # a signal handler may announce inside it
_LIBRARY = CODES[IN_LIBRARY]


def announced(pcontrol: Callable[[int], None]) -> Callable[[int], None]:
    """Return a replacement for MPI.Pcontrol that notes the waits that a library reports.

    Other levels go to `pcontrol`.
    """

    def call(level: int) -> None:
        global _library_waits, _library_works
        if level not in (WAIT_BEGAN, WAIT_ENDED, WORK_BEGAN, WORK_ENDED):
            return pcontrol(level)
        if level in (WAIT_BEGAN, WAIT_ENDED) and threading.get_ident() != MAIN:
            return None
        with _announcing:
            if level in (WAIT_BEGAN, WAIT_ENDED):
                _library_waits = level == WAIT_BEGAN
            else:
                _library_works = max(0, _library_works + (1 if level == WORK_BEGAN else -1))
            if (
                level == WAIT_BEGAN
            ):  # in no other call, then; the main thread's last polls may have left a note
                note.words[CODE_WORD] = 0
            if _library_waits and not _library_works:
                if note.words[CODE_WORD] in (0, _LIBRARY):
                    note.calls += 1  # also for the same wait, when a thread has worked meanwhile
                    NOW.pack_into(note.memory, 0, note.calls, note.sent, *NO_OPERATION, CODES[IN_LIBRARY])
            elif note.words[CODE_WORD] == _LIBRARY:
                note.words[CODE_WORD] = 0
        return None

    return call


def forget_library_wait() -> None:
    """Erase the note of a library's wait: an interrupt may have ended it in place of WAIT_ENDED."""
    global _library_waits
    with _announcing:
        _library_waits = False
        if note.words[CODE_WORD] == _LIBRARY:
            note.words[CODE_WORD] = 0


_COMPUTED = 1e-3  # seconds of computing between two tests, after which they are no longer one wait
_polls: tuple[Operation, int] | None = None  # what was tested last without success, after how many calls
_polls_noted = False
_polled_at = 0.0  # in seconds of computing of this thread


def polled(
    name: str,
    of: Operation,
    test: Callable[..., Any],
    *args: Any,
    succeeded: Callable[[Any], bool],
    **kwargs: Any,
) -> Any:
    """What `test(*args, **kwargs)` returns, with a note while this rank does little else than repeat it.

    `succeeded` finds in that result whether there is nothing left to wait for. The note stays between two
    tests, and is true for POLL_SECONDS after the last. A rank that computes between its tests, to overlap the
    message with work, does not wait and is not noted.
    """
    global _polls, _polls_noted, _polled_at
    if threading.get_ident() != MAIN:
        return test(*args, **kwargs)
    computed = time.thread_time() - _polled_at
    result = test(*args, **kwargs)
    done = succeeded(result)
    alone = _polls is not None and _polls[1] == note.calls  # no other call since the last test
    again = alone and _polls == (of, note.calls) and computed < _COMPUTED
    if _polls_noted and (done or not again):
        if alone:
            note.words[CODE_WORD] = 0
        _polls_noted = False
    if done:
        _polls = None
        return result
    if again and not _polls_noted:
        note.calls += 1
        NOW.pack_into(note.memory, 0, note.calls, note.sent, *of, CODES[name])
        _polls_noted = True
    _polls = of, note.calls
    if _polls_noted:
        POLLED.pack_into(note.memory, POLLED_AT, time.monotonic())
    _polled_at = time.thread_time()
    return result


def prober(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which looks for a message and returns at once, with a note while a rank repeats it."""
    partners, takes = partners_of(name), name in ("Improbe", "improbe")
    found = (lambda message: message is not None) if takes else bool

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if takes:
            status = kwargs["status"] = (args[2] if len(args) > 2 else kwargs.get("status")) or _status
            args = args[:2]
        try:
            peer, other, tag = partners(self._ranks or learn_ranks(self), args, kwargs)
            of = (int(peer), other, int(tag), 0, self._context, self._mask, 0)
        except (TypeError, ValueError):  # no integers: MPI will say so
            of = NO_OPERATION
        message = polled(name, of, original, self, *args, succeeded=found, **kwargs)
        if takes and message is not None:
            message_matched(self, status)
        return message

    return as_original(original, call)


def as_original(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` under the name and with the documentation of `original`."""
    call.__name__, call.__doc__ = original.__name__, original.__doc__
    return call
