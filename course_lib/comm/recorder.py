"""The MPI call that this rank is in, written where another process can read it.

A rank blocked inside MPI cannot answer questions. So every blocking call of a `RecordedComm` notes itself,
before it starts, in a small memory-mapped file, and erases the note when it returns. `install` puts a
`RecordedComm` in the place of `MPI.COMM_WORLD`, so that the code of a lesson is recorded as it is. One call
costs under a microsecond more.

Requests are not recorded: `request.Wait()` shows only as the line of code that a stack dump names.
"""

import faulthandler
import mmap
import os
import signal
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

_FORMAT = struct.Struct("7i")  # call, peer, other peer, tag, calls so far, size of the communicator, context
_NOTHING = -1000  # no peer: further from the ranks than ANY_SOURCE, PROC_NULL and ROOT are

# name: positions of (peer, other peer, tag) among the arguments, and their keywords. `peer` is the rank that
# this one waits for: the source, the destination, or the root.
_TO = ((1, "dest"), None, (2, "tag"))
_FROM = ((1, "source"), None, (2, "tag"))
_PROBE = ((0, "source"), None, (1, "tag"))
_BOTH = ((4, "source"), (1, "dest"), (5, "recvtag"))
_ALL = (None, None, None)


def _root(position: int) -> tuple[Any, ...]:
    return ((position, "root"), None, None)


CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend"), _TO),
    **dict.fromkeys(("Recv", "recv"), _FROM),
    **dict.fromkeys(("Probe", "probe", "Mprobe", "mprobe"), _PROBE),
    **dict.fromkeys(("Sendrecv", "sendrecv"), _BOTH),
    **dict.fromkeys(
        ("Barrier", "barrier", "Allreduce", "allreduce", "Allgather", "Allgatherv", "allgather"), _ALL
    ),
    **dict.fromkeys(("Alltoall", "Alltoallv", "alltoall", "Reduce_scatter", "Reduce_scatter_block"), _ALL),
    **dict.fromkeys(("Scan", "Exscan", "scan", "exscan"), _ALL),
    **dict.fromkeys(("Bcast", "bcast", "scatter", "gather"), _root(1)),
    **dict.fromkeys(("Scatter", "Scatterv", "Gather", "Gatherv", "reduce"), _root(2)),
    "Reduce": _root(3),
}
_MAKERS = (
    "Split",
    "Split_type",
    "Dup",
    "Clone",
    "Create",
    "Create_group",
)  # collective, and return a communicator
_NAMES = ("", *CALLS, *_MAKERS)
COLLECTIVES = frozenset(name for name, (peer, _, tag) in CALLS.items() if tag is None) | frozenset(_MAKERS)

_record: Any = bytearray(_FORMAT.size)
_calls = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A blocking MPI call that a rank is in. `peer` is who it waits for (None: everyone), -1 for anyone."""

    name: str
    peer: int | None
    other: int | None
    tag: int | None
    number: int
    size: int

    @property
    def collective(self) -> bool:
        """Whether every rank of the communicator must make this call."""
        return self.name in COLLECTIVES

    def __str__(self) -> str:
        if self.collective:
            return self.name if self.peer in (None, 0) else f"{self.name} with root {self.peer}"
        tag = "" if self.tag is None or self.tag < 0 else f", tag {self.tag}"
        if self.other is not None:
            return f"{self.name} to rank {self.other} and from {_who(self.peer)}{tag}"
        return f"{self.name} {'to' if 'send' in self.name.lower() else 'from'} {_who(self.peer)}{tag}"


def _who(peer: int | None) -> str:
    return "any rank" if peer is None or peer < 0 else f"rank {peer}"


class RecordedComm(MPI.Intracomm):
    """An intracommunicator whose blocking calls are recorded; what it splits into is recorded too."""

    def __new__(cls, comm: MPI.Comm | None = None) -> "RecordedComm":
        return super().__new__(cls, comm)


def _argument(where: Any, args: tuple[Any, ...], kwargs: dict[str, Any], default: int) -> int:
    if where is None:
        return _NOTHING
    position, keyword = where
    value = args[position] if len(args) > position else kwargs.get(keyword, default)
    return value if isinstance(value, int) else _NOTHING


def _recorded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    code = _NAMES.index(name)
    peer_at, other_at, tag_at = CALLS.get(name, _ALL)
    default_peer = 0 if peer_at and peer_at[1] == "root" else -1
    default_tag = 0 if peer_at and peer_at[1] == "dest" else -1
    pack = _FORMAT.pack_into

    def call(self: MPI.Intracomm, *args: Any, **kwargs: Any) -> Any:
        global _calls
        _calls += 1
        peer = _argument(peer_at, args, kwargs, default_peer) if peer_at else _NOTHING
        other = _argument(other_at, args, kwargs, -1) if other_at else _NOTHING
        tag = _argument(tag_at, args, kwargs, default_tag) if tag_at else _NOTHING
        pack(_record, 0, code, peer, other, tag, _calls, self.size, 0)
        try:
            return original(self, *args, **kwargs)
        finally:
            _record[0:4] = b"\0\0\0\0"

    call.__name__ = name
    call.__doc__ = original.__doc__
    return call


def _recorded_maker(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    make = _recorded(name, original)

    def call(self: MPI.Intracomm, *args: Any, **kwargs: Any) -> Any:
        made = make(self, *args, **kwargs)
        return RecordedComm(made) if made != MPI.COMM_NULL else made

    call.__name__ = name
    call.__doc__ = original.__doc__
    return call


for _name in CALLS:
    setattr(RecordedComm, _name, _recorded(_name, getattr(MPI.Intracomm, _name)))
for _name in _MAKERS:
    setattr(RecordedComm, _name, _recorded_maker(_name, getattr(MPI.Intracomm, _name)))


def call_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its current call."""
    return folder / f"rank-{rank}.call"


def stack_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` writes its Python stack when it receives SIGUSR1."""
    return folder / f"rank-{rank}.stack"


def install(folder: Path) -> tuple[int, int, int, str]:
    """Record this rank's calls in `folder`; return its rank, world size, pid and MPI library.

    From here on `MPI.COMM_WORLD` is a `RecordedComm`, and SIGUSR1 writes the Python stack to a file, also
    while the rank is blocked inside MPI. Calling it again changes nothing.
    """
    global _record
    world = MPI.COMM_WORLD
    if not isinstance(world, RecordedComm):
        path = call_file(folder, world.rank)
        path.write_bytes(bytes(_FORMAT.size))
        with open(path, "r+b") as file:
            _record = mmap.mmap(file.fileno(), _FORMAT.size)
        stack = open(stack_file(folder, world.rank), "w")  # noqa: SIM115  open as long as the engine lives
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        warnings.filterwarnings("ignore", message="To exit: use")  # advice for a terminal, not for a cell
        MPI.COMM_WORLD = RecordedComm(world)  # type: ignore[misc]
    library = MPI.Get_library_version().split(",")[0].replace("Open MPI v", "Open MPI ")
    return world.rank, world.size, os.getpid(), library


def read_call(folder: Path, rank: int) -> Call | None:
    """The blocking MPI call that `rank` is in now, or None when it is in none."""
    try:
        code, peer, other, tag, number, size, _ = _FORMAT.unpack(call_file(folder, rank).read_bytes())
    except (OSError, struct.error):
        return None
    if not 0 < code < len(_NAMES):
        return None
    values = [None if value == _NOTHING else value for value in (peer, other, tag)]
    return Call(_NAMES[code], values[0], values[1], values[2], number, size)
