"""What is noted of every call for `mistakes`, and the mistakes that a rank sees by itself.

Each entry of the log is a tuple: what happened, on which communicator (its context), with whom, which types,
and in which line. A receive is noted where it was posted, for MPI hands out messages in that order.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording.buffers import (
    UNSEEN,
    Place,
    digest,
    is_temporary,
    may_share,
    memory_of,
    overlap,
    place_of,
)
from mpi_classroom.recording.log import Line, is_own, line_of, log, packed
from mpi_classroom.recording.signatures import (
    OBJECT,
    UNKNOWN,
    block_signature,
    plain,
    signature,
    vector_signature,
)

MOST_PENDING = 64  # requests that are compared with a new one; with more, overlaps are not looked for
_IN_PLACE = MPI.IN_PLACE
_getframe, _references = sys._getframe, sys.getrefcount
Partners = tuple[int, int, int]  # peer, other peer and tag, as the world numbers ranks
_UNSEEN = UNSEEN + 1  # in a function that has found the argument itself


def _line(depth: int) -> Line:
    return line_of(_getframe(depth + 1))


# -------------------------------------------------------------------- messages


ordered = False  # whether it is noted in which order messages from any source came
MOST_ORDERED = 1000  # messages of a line


def note_order(line: Line, source: int) -> bool:
    """Note who sent a message to a receive from any source, and return True, if the order is noted."""
    if ordered and len(sources := log.order.setdefault(line, [])) < MOST_ORDERED:
        sources.append(source)
    return ordered


def _send_tag(args: Any, kwargs: Any) -> int:
    return args[2] if len(args) > 2 else kwargs.get("sendtag", 0)


def matched(comm: Any, status: Any) -> None:
    """Note a message that a probe took out of its order: whoever receives it, and into what, is not known."""
    if comm._checked is not None:
        source = comm._ranks.get(status.source, -1)
        log.add(("r", comm._checked, source, status.tag, *UNKNOWN, -1, "Mprobe", _line(3)))


def share(name: str, line: Line, sent: Any, received: Any) -> None:
    if overlap(place_of(memory_of(sent)), place_of(memory_of(received))):
        log.find("overlap", name, line)


# -------------------------------------------------------------------- what all ranks must call

_VECTORS = ("Scatterv", "Gatherv", "Allgatherv", "Alltoallv")
_CHECKED = (  # whose types are compared: of the rest, the names are
    *("Bcast", "Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scatter", "Gather", "Allgather", "Alltoall", *_VECTORS),
)
me = -1  # this rank in the world


def collective_note(name: str) -> Callable[..., tuple[Any, Any]]:
    """What notes a call that all ranks must make, once it has returned or been started.

    It returns what was sent and what was received into.
    """
    base = _base(name)
    sides = _sides(base)
    code: Any = None  # of the last call: who has called, where, and what it said
    last: Any = None
    at, line, number, table = 0, ("", 0), 0, dict[Any, int]()

    def note(comm: Any, args: Any, kwargs: Any, root: int, operator: int) -> tuple[Any, Any]:
        nonlocal code, at, line, last, number, table
        context, frame = comm._checked, _getframe(2)
        if context is None:
            return None, None
        if frame.f_lasti != at or frame.f_code is not code:
            line, at, code = line_of(frame), frame.f_lasti, frame.f_code
            if not is_own(code.co_filename):
                code = None  # who has called a library may be another the next time
        sent, received, given, taken = sides(args, kwargs, root)
        entry = ("c", context, comm._mask, name, root, operator, given, taken, line)
        if entry == last and table is log.table:
            log.again(number)
        else:
            log.add(entry)
            last, table, number = entry, log.table, log.table.get(entry, 0)
        if sent is not None and received is not None and sent is not _IN_PLACE and may_share(sent, received):
            share(name, line, sent, received)
        if received is not None and _references(received) <= _UNSEEN and is_temporary(received):
            log.find("temporary", name, line)
        if pending:
            beside_pending(name, line, sent, received)
        return sent, received

    return note


def _base(name: str) -> str:
    """Which blocking collective `name` is: Bcast for Ibcast and Bcast_init."""
    name = name.removesuffix("_init")
    return name if name in _CHECKED or name[0] != "I" else name[1:].capitalize()


_SIGNATURES = {  # of what is sent and received where that is not one message
    "Scatter": (block_signature, signature),
    "Scatterv": (vector_signature, signature),
    **dict.fromkeys(("Gather", "Allgather"), (signature, block_signature)),
    **dict.fromkeys(("Gatherv", "Allgatherv"), (signature, vector_signature)),
    "Alltoall": (block_signature, block_signature),
    "Alltoallv": (vector_signature, vector_signature),
}
Sides = tuple[Any, Any, Any, Any]  # what is sent, what is received into, and the signatures of both


def _sides(base: str) -> Callable[[Any, Any, int], Sides]:
    """A function of the arguments and the root of a collective that finds what counts on this rank."""
    sends, receives = _SIGNATURES.get(base, (signature, signature))
    from_root, to_root = base.startswith("Scatter"), base in ("Gather", "Gatherv", "Reduce")

    def nothing(args: Any, kwargs: Any, root: int) -> Sides:
        return None, None, None, None

    def of_bcast(args: Any, kwargs: Any, root: int) -> Sides:
        buffer = args[0] if args else kwargs.get("buf")
        sent, received = (buffer, None) if root == me else (None, buffer)
        return sent, received, signature(buffer), None

    def of_two(args: Any, kwargs: Any, root: int) -> Sides:
        sent = received = given = taken = None
        if root == me or not from_root:
            sent = args[0] if args else kwargs.get("sendbuf")
            given = sends(sent)
        if root == me or not to_root:
            received = args[1] if len(args) > 1 else kwargs.get("recvbuf")
            taken = receives(received)
        return sent, received, given, taken

    return nothing if base not in _CHECKED else of_bcast if base == "Bcast" else of_two


# -------------------------------------------------------------------- requests


class Transfer:
    """What a request does to memory from its start to its end."""

    def __init__(self, name: str, line: Line, sent: Any, received: Any) -> None:
        self.name, self.line = name, line
        self.sent, self.received = sent, received
        memory, into = memory_of(sent), memory_of(received)
        self.reads, self.writes = place_of(memory), place_of(into)
        self.digest = None if memory is None else digest(memory)
        self.request: Any = lambda: None
        self.entry: tuple[Any, ...] | None = None  # of a receive that has not completed
        self.at, self.generation = 0, log.generation
        self.ranks: Any = {}  # of the communicator, by its own numbers
        self.cancelled = self.told = self.wild = False


pending: dict[int, Transfer] = {}


def started(request: Any, name: str, comm: Any, args: Any, kwargs: Any, partners: Partners) -> None:
    """Note a message that `request` starts."""
    context = comm._checked
    if context is None:
        return
    peer, other, tag = partners
    kind, line = name.lower(), _line(2)
    buffered, both = name[0].isupper(), "sendrecv" in kind
    sends, receives = "send" in kind, "recv" in kind
    sent = received = entry = None
    dest = other if both else peer
    if sends and dest >= 0:
        sent = args[0] if args else kwargs.get("sendbuf" if name == "Isendrecv" else "buf")
        send_tag = _send_tag(args, kwargs) if both else tag
        log.add(("s", context, dest, send_tag, *(signature(sent) if buffered else OBJECT), name, line))
    if receives and peer != MPI.PROC_NULL:
        at = 3 if name == "Isendrecv" else 0
        received = args[at] if len(args) > at else kwargs.get("recvbuf" if at else "buf")
        if (
            buffered
            and "replace" not in kind
            and _references(received) <= UNSEEN + 2
            and is_temporary(received)
        ):
            log.find("temporary", name, line)
        entry = ["r", context, peer, tag, *(signature(received) if buffered else OBJECT), -1, name, line]
    if not buffered:
        sent = received = None
    transfer = Transfer(name, line, None if received is sent else sent, received)
    transfer.ranks = comm._ranks
    _begin(request, transfer, context, entry)


def all_started(request: Any, name: str, comm: Any, sent: Any, received: Any) -> None:
    """Note a collective that `request` starts; `collective_note` has noted the call."""
    if comm._checked is not None:
        sent = None if sent is _IN_PLACE or sent is received else sent
        _begin(request, Transfer(name, _line(3), sent, received), comm._checked, None)


def _begin(request: Any, transfer: Transfer, context: Any, entry: list[Any] | None) -> None:
    if entry is not None:
        wild = entry[2] < 0 or entry[3] < 0
        transfer.at, transfer.generation = (
            log.add(("o", context, id(transfer)) if wild else tuple(entry)),
            log.generation,
        )
        transfer.entry, transfer.wild = tuple(entry), wild
    if transfer.reads and overlap(transfer.reads, transfer.writes):
        log.find("overlap", transfer.name, transfer.line)
    elif pending:
        _compare(transfer.name, transfer.line, transfer.reads, transfer.writes)
    transfer.request = weakref.ref(request)
    pending[id(transfer)] = transfer
    request._transfer = transfer


def beside_pending(name: str, line: Line, sent: Any, received: Any) -> None:
    """Compare the memory of a blocking call with that of the requests that are not complete."""
    _compare(name, line, place_of(memory_of(sent)), place_of(memory_of(received)))


def _compare(name: str, line: Line, reads: Place | None, writes: Place | None) -> None:
    if len(pending) > MOST_PENDING:
        return
    for other in pending.values():
        if overlap(other.writes, reads) or overlap(other.writes, writes) or overlap(other.reads, writes):
            log.find("in use", name, line, other.name, other.line)


def completed(request: Any, status: Any, asked: bool) -> None:
    """Note that `request` is complete: look at its memory, and at what has arrived."""
    transfer: Transfer | None = request._transfer
    if transfer is None or pending.pop(id(transfer), None) is None:
        return
    request._transfer = None
    memory = memory_of(transfer.sent)
    if (place_of(memory), place_of(memory_of(transfer.received))) != (transfer.reads, transfer.writes):
        log.find("moved", transfer.name, transfer.line)
    elif memory is not None and digest(memory) != transfer.digest:
        log.find("changed", transfer.name, transfer.line, _line(3), memory.nbytes)
    if transfer.received is not None:
        log.found.setdefault(("received", transfer.name, transfer.line, _line(3)), 1)
    if transfer.entry is not None:
        _received(transfer, transfer.entry, status, asked)


def _received(transfer: Transfer, entry: tuple[Any, ...], status: Any, asked: bool) -> None:
    kind, context, peer, _, what, nbytes, _, name, line = entry
    if transfer.cancelled and status.Is_cancelled():
        entry = ("n",)
    else:
        arrived = status.Get_count(MPI.BYTE)
        if peer < 0:
            peer = transfer.ranks.get(status.source, -1)
            note_order(line, peer)
        entry = (kind, context, peer, status.tag, what, nbytes, arrived, name, line)
        if arrived < nbytes and not asked:
            log.find("short", name, line, plain(what, nbytes), nbytes, arrived)
    if transfer.generation is log.generation:
        log.put(transfer.at, entry)
    elif transfer.wild:
        log.add(("d", context, id(transfer), entry))
    elif entry[0] == "n":
        log.add(("x", context))


def started_twice(request: Any) -> None:
    """Note that a persistent request was started while it had not ended."""
    transfer = request._transfer
    if transfer is not None:
        log.find("twice", transfer.name, transfer.line, _line(2))


def distrust(comm: Any) -> None:
    """Another thread uses `comm`: the order of its calls is not known, and they are not compared any more."""
    if comm._checked is not None:
        log.add(("x", comm._checked))
        comm._checked, comm._facts = None, object()


# -------------------------------------------------------------------- communicators and windows


def context_of_child(comm: Any) -> int | None:
    """A number for what `comm` makes next: the same on all its ranks, and no other's."""
    return None if comm._checked is None else (1_000_003 * comm._checked + comm._turn + 1) % 2**61


_made: dict[
    object, tuple[Line, str, object, Any]
] = {}  # what has not been freed: where and by what it was made


def made(thing: Any, name: str) -> None:
    """Note a communicator or a window that was made."""
    thing._key = object()
    _made[thing._key] = _line(2), name, log.generation, weakref.ref(thing)


def freed(thing: Any) -> None:
    """Note that it was freed."""
    _made.pop(getattr(thing, "_key", None), None)


def _find_leaks() -> None:
    for key, (line, name, cell, thing) in list(_made.items()):
        if thing() is None:  # nobody can free it any more
            del _made[key]
            if cell is log.generation:  # made and lost in one cell: in a loop, not by running a cell again
                log.find("leak", name, line)


# -------------------------------------------------------------------- the end of a cell


def _find_unfinished(last: bool) -> None:
    for key, transfer in list(pending.items()):
        request = transfer.request()
        if request is None:
            log.find("dropped", transfer.name, transfer.line)
            if transfer.wild and transfer.entry:
                log.add(
                    ("l", transfer.entry[1], id(transfer), ("n",))
                )  # which message it takes will not be known
        elif request == MPI.REQUEST_NULL:
            pass  # it was freed, or waited for in a way of its own
        elif last:
            log.find("never waited", transfer.name, transfer.line)
        elif transfer.told:
            continue
        else:
            transfer.told = True
            log.find("not waited", transfer.name, transfer.line)
            continue
        del pending[key]


def collect(last: bool = False) -> bytes:
    """The log of this rank since it was collected last, for `mistakes`; b"" if there is nothing in it.

    `last`: the program ends here, and waits for nothing any more.
    """
    _find_unfinished(last)
    _find_leaks()
    table, calls = log.kept if log.full else (log.table, log.calls)
    once = {
        details[: 3 if details[0] == "short" else None]: details for details in log.found
    }  # one count is enough
    found = [(*details, log.found[details]) for details in once.values()]
    found += [("order", line, tuple(sources), 1) for line, sources in log.order.items()]
    data = packed([_plain(entry) for entry in table], calls, found, log.full) if calls or found else b""
    log.clear()
    return data


def _plain(entry: Any) -> Any:
    if entry[0] == "d":
        return *entry[:3], _plain(entry[3])
    if entry[0] not in "src":
        return entry
    if entry[0] == "c":
        both = (given and plain(*given) for given in entry[6:8])
        return *entry[:6], *both, entry[8]
    given = (*entry[9:11], plain(*entry[11:]), *entry[12:]) if len(entry) > 9 else ()
    return *entry[:4], plain(entry[4], entry[5]), *entry[5:9], *given
