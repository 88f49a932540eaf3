"""An MPI call of a rank as another process sees it: what `recorder.py` writes is read here.

Every rank has a small file: the blocking call that it is in, if any, and the last collective that it has
completed. Ranks are noted as the world numbers them, whatever communicator the call is made on.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COUNTS = struct.Struct("=2i")  # of this rank so far: calls, messages sent
# The counts; the call's peer, other peer and tag; of its communicator: collectives so far, context, members;
# the operation that the call waits for, if that was started before; the call's code.
NOW = struct.Struct("=2i3i2iQ2i")
# Zero over that code; then the last completed collective: its code, its turn and communicator as above, its
# root and its operator.
END = struct.Struct("=4iQ2i")
WORLD = struct.Struct("=i")  # size of the world
POLLED = struct.Struct("=d")  # when this rank last tested a request in vain, on the monotonic clock
# What changes when a call has returned: messages received, requests posted and not complete, bytes sent,
# bytes received.
TRAFFIC = struct.Struct("=2i2q")
# The collectives so far on all communicators that have the same members: those members (bit r: rank r of the
# world), their number, two digests; the last one's code, root and operator. The first tally is the world's.
TALLY = struct.Struct("=Q3I3i")
TALLIES = 32  # enough for every subset of 6 ranks
CODE_AT = NOW.size - 4
CODE_WORD = CODE_AT // 4  # in the record as integers of 4 bytes
WORLD_AT = NOW.size - 4 + END.size
POLLED_AT = WORLD_AT + WORLD.size
TRAFFIC_AT = POLLED_AT + POLLED.size
TALLIES_AT = TRAFFIC_AT + TRAFFIC.size
SIZE = TALLIES_AT + TALLIES * TALLY.size
POLL_SECONDS = 1.0  # a rank that has not tested for so long does something else
NOTHING = -1000  # no peer: further from the ranks than ANY_SOURCE, PROC_NULL and ROOT are

# Position and keyword, among the arguments, of the peer that this rank waits for, of the other one that it
# may wait for, too (Sendrecv), and of the tag; the tag's default.
_TO = ((1, "dest"), None, (2, "tag"), 0)
_FROM = ((1, "source"), None, (2, "tag"), -1)
_PROBE = ((0, "source"), None, (1, "tag"), -1)
_BOTH = ((4, "source"), (1, "dest"), (5, "recvtag"), -1)
_REPLACE = ((3, "source"), (1, "dest"), (4, "recvtag"), -1)
_OF = ((0, "rank"), None, (9, ""), NOTHING)  # a window's part on another rank

WAITING_PROBES = ("Probe", "probe", "Mprobe", "mprobe")
POINT_TO_POINT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend"), _TO),
    **dict.fromkeys(("Recv", "recv"), _FROM),
    **dict.fromkeys(WAITING_PROBES, _PROBE),
    **dict.fromkeys(("Sendrecv", "sendrecv"), _BOTH),
    "Sendrecv_replace": _REPLACE,
}
ROOTED = {  # position of the root among the arguments
    **dict.fromkeys(("Bcast", "bcast", "scatter", "gather"), 1),
    **dict.fromkeys(("Scatter", "Scatterv", "Gather", "Gatherv", "reduce"), 2),
    "Reduce": 3,
}
# Position of the operator among the arguments of what reduces; without one it is SUM.
REDUCTIONS = {
    **dict.fromkeys(("Reduce", "Allreduce", "Reduce_scatter_block", "Scan", "Exscan"), 2),
    **dict.fromkeys(("reduce", "allreduce", "scan", "exscan"), 1),
    "Reduce_scatter": 3,
}
OPERATORS = (  # by number; the first stands for an operator of one's own, and for none
    *("", "SUM", "MAX", "MIN", "PROD", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"),
    *("MAXLOC", "MINLOC", "REPLACE", "NO_OP"),
)
SAME_CALL = {"barrier": "Barrier", "Clone": "Dup"}  # two names of one MPI function: ranks may mix them
ALIKE = (
    *("Barrier", "barrier", "Allreduce", "allreduce", "Allgather", "Allgatherv", "allgather"),
    *("Alltoall", "Alltoallv", "Alltoallw", "alltoall", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scan", "Exscan", "scan", "exscan"),
)
ON_GRIDS = (
    *("Neighbor_allgather", "Neighbor_allgatherv", "neighbor_allgather"),
    *("Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw", "neighbor_alltoall"),
)
MAKERS = (
    *("Split", "Split_type", "Dup", "Dup_with_info", "Clone"),
    *("Create", "Create_group", "Create_cart", "Sub"),
)

# What starts and is waited for later: by the request that it returns, every time that this is started anew.
_BUFFERED = [name for name in (*ROOTED, *ALIKE, *ON_GRIDS) if name[0].isupper()]
STARTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("Isend", "Issend", "Irsend", "Ibsend", "isend", "issend", "ibsend"), _TO),
    **dict.fromkeys(("Irecv", "irecv"), _FROM),
    "Isendrecv": _BOTH,
    "Isendrecv_replace": _REPLACE,
    **dict.fromkeys(("Send_init", "Ssend_init", "Rsend_init", "Bsend_init"), _TO),
    "Recv_init": _FROM,
}
STARTED_BY_ALL = {  # name → position of the root, or None
    name: ROOTED.get(of) for of in _BUFFERED for name in (f"I{of.lower()}", f"{of}_init")
}
STARTED_REDUCTIONS = {
    name: at for of, at in REDUCTIONS.items() if of[0].isupper() for name in (f"I{of.lower()}", f"{of}_init")
}
WAITS = (
    *("Wait", "Waitall", "Waitany", "Waitsome"),
    *("wait", "waitall", "waitany", "waitsome"),
)
# These return at once; a rank that repeats one and does little else waits.
PROBES = dict.fromkeys(("Iprobe", "iprobe", "Improbe", "improbe"), _PROBE)
POLLS = (
    *("Test", "Testall", "Testany", "Testsome"),
    *("test", "testall", "testany", "testsome"),
    *PROBES,
)
ON_WINDOWS = {  # calls that wait for what another rank does with its part of the window
    **{f"Win.{name}": _OF for name in ("Lock", "Unlock", "Flush", "Flush_local")},
    **{f"Win.{name}": ((9, ""), None, (9, ""), NOTHING) for name in ("Start", "Complete", "Post", "Wait")},
    **{f"Win.{name}_all": ((9, ""), None, (9, ""), NOTHING) for name in ("Lock", "Unlock", "Flush")},
}
OPENERS = ("Win.Create", "Win.Allocate", "Win.Allocate_shared", "Win.Create_dynamic", "File.Open")
OF_FILES_AND_WINDOWS = (
    *("Win.Fence", "Win.Free", "File.Close", "File.Set_view", "File.Set_size", "File.Preallocate"),
    *("File.Read_all", "File.Write_all", "File.Read_at_all", "File.Write_at_all"),
    *("File.Read_ordered", "File.Write_ordered", "File.Sync"),
)

# A wait that a library announces by MPI_Pcontrol (`record.announced`): which call of the library it is, only
# the Python stack shows.
IN_LIBRARY = "a library that uses MPI"
OF_TORCH = "torch.distributed"  # how the calls begin that the stack names
TORCH_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "Work.wait for a message")

NUMBERING = "as COMM_WORLD numbers them"  # of ranks in a part of the world, which have other numbers there

COLLECTIVES = frozenset((*ROOTED, *ALIKE, *MAKERS))
_BY_ALL = COLLECTIVES | {*ON_GRIDS, *STARTED_BY_ALL, *OPENERS, *OF_FILES_AND_WINDOWS}
NAMES = (  # by code
    *("", *POINT_TO_POINT, *ROOTED, *ALIKE, *MAKERS, *ON_GRIDS, *STARTED, *STARTED_BY_ALL),
    *(*WAITS, *POLLS, *ON_WINDOWS, *OPENERS, *OF_FILES_AND_WINDOWS, IN_LIBRARY),
)
CODES = {name: code for code, name in enumerate(NAMES)}


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator as every one of its ranks knows it: by how it was made, and its ranks in the world."""

    context: int = 0
    members: tuple[int, ...] = ()  # () when unknown; of a world above 64 ranks only ranks below 64
    part: bool = False  # fewer than the world


@dataclass(frozen=True, slots=True)
class Call:
    """A blocking MPI call that a rank is in.

    `peer` is who it waits for, or the root of a collective (-1: anyone; None: everyone, or nobody knows).
    Ranks are those of the world. `number` counts all calls of the rank, `turn` the collectives before this
    one on its communicator. `of` is what a wait waits for: an operation that was started before.
    `interruptible`: it is known from the stack alone, and an interrupt may end it.
    """

    name: str
    peer: int | None
    other: int | None
    tag: int | None
    number: int
    turn: int = 0
    on: Communicator = Communicator()
    of: str = ""
    interruptible: bool = False

    @property
    def operation(self) -> str:
        """What is to be completed: the call itself, or what it waits for."""
        return self.of or self.name

    @property
    def collective(self) -> bool:
        """Whether every rank of the communicator must make this call."""
        return self.operation in _BY_ALL

    @property
    def on_window(self) -> bool:
        """Whether it waits for what another rank does with a window."""
        return self.name in ON_WINDOWS

    @property
    def in_library(self) -> bool:
        """Whether it is a library's call, of which no more is known than at most its name."""
        return self.name == IN_LIBRARY or self.name.startswith(OF_TORCH)

    @property
    def sends(self) -> bool:
        """Whether this is a send that waits for its receiver, and no more; a Sendrecv has an `other`."""
        return "send" in self.operation.lower() and self.other is None

    def __str__(self) -> str:
        name = f"{self.name} for {self.of}" if self.of else self.name
        if self.in_library:
            return name
        if self.collective:
            root = "" if self.peer in (None, 0) else f" with root {self.peer}"
            among = f" of ranks {', '.join(map(str, self.on.members))}" if self.on.part else ""
            return f"{name}{root}{among}{f' ({NUMBERING})' if root and among else ''}"
        if self.peer is None and (self.on_window or self.name in (*WAITS, *POLLS)):
            return name
        tag = "" if self.tag is None or self.tag < 0 else f", tag {self.tag}"
        named = any(rank is not None and rank >= 0 for rank in (self.peer, self.other))
        numbering = f" ({NUMBERING})" if self.on.part and named else ""
        if self.other is not None:
            return f"{name} to {_who(self.other)} and from {_who(self.peer)}{tag}{numbering}"
        preposition = "of" if self.on_window else "to" if self.sends else "from"
        return f"{name} {preposition} {_who(self.peer)}{tag}{numbering}"


def _who(peer: int | None) -> str:
    if peer is None or peer == -1:
        return "any rank"
    return f"rank {peer}" if peer >= 0 else "nobody"


@dataclass(frozen=True, slots=True)
class Done:
    """The last collective that a rank completed, and how many it had made on that communicator before it.

    `operator` is what it reduced with, such as "SUM"; "" for none, or for one of one's own.
    """

    name: str
    turn: int
    on: Communicator = Communicator()
    root: int | None = None
    operator: str = ""

    def __str__(self) -> str:
        operator = [f"op={self.operator}"] * bool(self.operator)
        root = [] if self.root is None else [f"root={self.root}"]
        return f"{self.name}({', '.join(operator + root)})"


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A message on its way, or some of the same kind; ranks are those of the world."""

    source: int
    dest: int
    tag: int
    nbytes: int


def call_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its current call."""
    return folder / f"rank-{rank}.call"


def stack_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its Python stack when it receives SIGUSR1."""
    return folder / f"rank-{rank}.stack"


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives that a rank has begun on all communicators with the same members.

    `digest` stands for their names and roots in the order of each communicator, `operators` for what they
    reduced with: on members that made the same calls, both grow by as much. `last` is the last call, such
    as "bcast(root=1)"; its root is numbered as in the world.
    """

    calls: int = 0
    digest: int = 0
    operators: int = 0
    last: str = ""


EVERYONE = ()  # as the members of a communicator: all ranks of the world


@dataclass(frozen=True, slots=True)
class Counts:
    """What a rank has begun or done since it was started.

    `collectives` has those of each set of members, by their ranks in the world. Messages and bytes are those
    of point-to-point calls: sent once the call that sends has returned, received once the message is here.
    `posted` counts the requests that were started and are not known to be complete, `calls` all calls.
    """

    collectives: Mapping[tuple[int, ...], Collectives] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    posted: int = 0
    calls: int = field(default=0, compare=False)

    def made_calls_since(self, before: "Counts") -> bool:
        """Whether the rank has made any MPI call since it counted `before`."""
        return self.calls != before.calls or self != before

    def on(self, members: tuple[int, ...]) -> Collectives | None:
        """The collectives on communicators of `members`; None if unknown, because the file has no room."""
        room = len(self.collectives) < TALLIES
        return self.collectives.get(members, Collectives() if room else None)


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What a rank's file says: the call that it waits in now, the last collective it completed, its counts.

    `call` is a blocking call, or a `Test` or `Iprobe` that the rank repeats; None while it waits in none.
    """

    call: Call | None
    done: Done | None
    counts: Counts


def decode(record: bytes, now: float) -> RankRecord:
    """What a rank's `record` says; `now` is when it was read, on the monotonic clock of the rank's machine.

    Of a rank that has written nothing, or nonsense: nothing done yet.
    """
    calls, sent = COUNTS.unpack_from(record)
    received, posted, sent_bytes, received_bytes = TRAFFIC.unpack_from(record, TRAFFIC_AT)
    counts = Counts(_collectives_in(record), sent, received, sent_bytes, received_bytes, posted, calls)
    return RankRecord(_call_in(record, now), _done_in(record), counts)


def _collectives_in(record: bytes) -> dict[tuple[int, ...], Collectives]:
    found = {}
    for at in range(TALLIES_AT, SIZE, TALLY.size):
        mask, count, digest, operators, *last = TALLY.unpack_from(record, at)
        if at > TALLIES_AT and not mask:
            break
        members = _members(mask) if at > TALLIES_AT else EVERYONE
        found[members] = Collectives(count, digest, operators, _last(*last))
    return found


def _last(code: int, root: int, operator: int) -> str:
    if not (0 < code < len(NAMES) and 0 <= operator < len(OPERATORS)):
        return ""
    return str(Done(NAMES[code], 0, root=None if root == NOTHING else root, operator=OPERATORS[operator]))


def _call_in(record: bytes, now: float) -> Call | None:
    count, _, peer, other, tag, turn, context, mask, of, code = NOW.unpack_from(record)
    if not (0 < code < len(NAMES) and 0 <= of < len(NAMES)):
        return None
    if NAMES[code] in POLLS and now - POLLED.unpack_from(record, POLLED_AT)[0] > POLL_SECONDS:
        return None
    peer, other, tag = (None if number == NOTHING else number for number in (peer, other, tag))
    return Call(NAMES[code], peer, other, tag, count, turn, _communicator(record, context, mask), NAMES[of])


def _done_in(record: bytes) -> Done | None:
    _, code, turn, context, mask, root, operator = END.unpack_from(record, CODE_AT)
    if not (0 < code < len(NAMES) and 0 <= operator < len(OPERATORS)):
        return None
    on = _communicator(record, context, mask)
    return Done(NAMES[code], turn, on, None if root == NOTHING else root, OPERATORS[operator])


def read_record(folder: Path, rank: int) -> bytes:
    """The SIZE bytes that rank `rank` of this machine has written; zeros if it has not."""
    try:
        record = call_file(folder, rank).read_bytes()
    except OSError:
        record = b""
    return record if len(record) == SIZE else bytes(SIZE)


def _communicator(record: bytes, context: int, mask: int) -> Communicator:
    members = _members(mask)
    (size,) = WORLD.unpack_from(record, WORLD_AT)
    return Communicator(context, members, 0 < len(members) < min(size, 64))


def _members(mask: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)
