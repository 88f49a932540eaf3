"""An MPI call of a rank as another process sees it: what `comm/recorder.py` writes is read here.

Every rank has a small file: the blocking call that it is in, if any, and the last collective that it has
completed. Ranks are noted as the world numbers them, whatever communicator the call is made on.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Peer, other peer, tag, calls so far, collectives of the whole world so far;
# then of the call's communicator: collectives so far, context, members; last the call's code.
NOW = struct.Struct("=7iQi")
# Zero over that code; then the last completed collective: its code, its turn and communicator as above.
END = struct.Struct("=4iQ")
WORLD = struct.Struct("=i")  # size of the world
CODE_BYTES = slice(NOW.size - 4, NOW.size)
SIZE = NOW.size - 4 + END.size + WORLD.size
NOTHING = -1000  # no peer: further from the ranks than ANY_SOURCE, PROC_NULL and ROOT are

# Position and keyword, among the arguments, of the peer that this rank waits for, of the other one that it
# does not wait for, and of the tag; the tag's default.
_TO = ((1, "dest"), None, (2, "tag"), 0)
_FROM = ((1, "source"), None, (2, "tag"), -1)
_PROBE = ((0, "source"), None, (1, "tag"), -1)
_BOTH = ((4, "source"), (1, "dest"), (5, "recvtag"), -1)
_REPLACE = ((3, "source"), (1, "dest"), (4, "recvtag"), -1)

POINT_TO_POINT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend"), _TO),
    **dict.fromkeys(("Recv", "recv"), _FROM),
    **dict.fromkeys(("Probe", "probe", "Mprobe", "mprobe"), _PROBE),
    **dict.fromkeys(("Sendrecv", "sendrecv"), _BOTH),
    "Sendrecv_replace": _REPLACE,
}
ROOTED = {  # position of the root among the arguments
    **dict.fromkeys(("Bcast", "bcast", "scatter", "gather"), 1),
    **dict.fromkeys(("Scatter", "Scatterv", "Gather", "Gatherv", "reduce"), 2),
    "Reduce": 3,
}
ALIKE = (
    *("Barrier", "barrier", "Allreduce", "allreduce", "Allgather", "Allgatherv", "allgather"),
    *("Alltoall", "Alltoallv", "Alltoallw", "alltoall", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scan", "Exscan", "scan", "exscan"),
)
MAKERS = (
    *("Split", "Split_type", "Dup", "Dup_with_info", "Clone"),
    *("Create", "Create_group", "Create_cart", "Sub"),
)
COLLECTIVES = frozenset((*ROOTED, *ALIKE, *MAKERS))
NAMES = ("", *POINT_TO_POINT, *ROOTED, *ALIKE, *MAKERS)  # by code


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator as every one of its ranks knows it: by how it was made, and its ranks in the world."""

    context: int = 0
    members: tuple[int, ...] = ()  # empty: unknown
    part: bool = False  # fewer than the world


@dataclass(frozen=True, slots=True)
class Call:
    """A blocking MPI call that a rank is in. `peer` is who it waits for (None: everyone), -1 for anyone.

    Ranks are those of the world. `number` counts all calls of the rank, `turn` the collectives before this
    one on its communicator.
    """

    name: str
    peer: int | None
    other: int | None
    tag: int | None
    number: int
    turn: int = 0
    on: Communicator = Communicator()

    @property
    def collective(self) -> bool:
        """Whether every rank of the communicator must make this call."""
        return self.name in COLLECTIVES

    @property
    def sends(self) -> bool:
        """Whether this is a send that waits for its receiver, and no more."""
        return "send" in self.name.lower() and self.other is None

    def __str__(self) -> str:
        if self.collective:
            root = "" if self.peer in (None, 0) else f" with root {self.peer}"
            among = f" of ranks {', '.join(map(str, self.on.members))}" if self.on.part else ""
            return f"{self.name}{root}{among}"
        tag = "" if self.tag is None or self.tag < 0 else f", tag {self.tag}"
        numbering = " (as COMM_WORLD numbers them)" if self.on.part else ""
        if self.other is not None:
            return f"{self.name} to rank {self.other} and from {_who(self.peer)}{tag}{numbering}"
        return f"{self.name} {'to' if self.sends else 'from'} {_who(self.peer)}{tag}{numbering}"


def _who(peer: int | None) -> str:
    return "any rank" if peer is None or peer < 0 else f"rank {peer}"


@dataclass(frozen=True, slots=True)
class Done:
    """The last collective that a rank completed, and how many it had made on that communicator before it."""

    name: str
    turn: int
    on: Communicator = Communicator()


def call_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its current call."""
    return folder / f"rank-{rank}.call"


def stack_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its Python stack when it receives SIGUSR1."""
    return folder / f"rank-{rank}.stack"


def read_call(folder: Path, rank: int) -> Call | None:
    """The blocking MPI call that `rank` is in now, or None when it is in none."""
    record = _read(folder, rank)
    *numbers, turn, context, mask, code = NOW.unpack_from(record)
    if not 0 < code < len(NAMES):
        return None
    peer, other, tag = (None if number == NOTHING else number for number in numbers[:3])
    return Call(NAMES[code], peer, other, tag, numbers[3], turn, _communicator(record, context, mask))


def read_count(folder: Path, rank: int) -> int:
    """How many collectives of the whole world `rank` has begun; the same for all ranks that are in step."""
    count: int = NOW.unpack_from(_read(folder, rank))[4]
    return count


def read_done(folder: Path, rank: int) -> Done | None:
    """The last collective that `rank` completed, or None when there was none."""
    record = _read(folder, rank)
    _, code, turn, context, mask = END.unpack_from(record, CODE_BYTES.start)
    if not 0 < code < len(NAMES):
        return None
    return Done(NAMES[code], turn, _communicator(record, context, mask))


def _read(folder: Path, rank: int) -> bytes:
    try:
        record = call_file(folder, rank).read_bytes()
    except OSError:
        record = b""
    return record if len(record) == SIZE else bytes(SIZE)


def _communicator(record: bytes, context: int, mask: int) -> Communicator:
    members = tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)
    (size,) = WORLD.unpack_from(record, SIZE - WORLD.size)
    return Communicator(context, members, 0 < len(members) < min(size, 64))
