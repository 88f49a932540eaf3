"""The MPI call that this rank is in, written where another process can read it.

A rank blocked inside MPI cannot answer questions. So every blocking call of a `RecordedComm`, and of the
requests, windows and files made on it, notes itself before it starts (`record.py`). `install` replaces
MPI's own classes by these, so that the code of a lesson is recorded as it is. A library that waits in its own
way may announce that by MPI_Pcontrol (`record.announced`).

Ranks are noted as the world numbers them, whatever communicator they are called in.
"""

import faulthandler
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks, messages, record, windows
from mpi_classroom.recording.calls import (
    ALIKE,
    MAKERS,
    OF_FILES_AND_WINDOWS,
    ON_GRIDS,
    ON_WINDOWS,
    OPENERS,
    POINT_TO_POINT,
    PROBES,
    ROOTED,
    STARTED,
    STARTED_BY_ALL,
    WAITING_PROBES,
    stack_file,
)
from mpi_classroom.recording.record import Recorded
from mpi_classroom.recording.requests import RecordedPrequest, RecordedRequest, collective_starter, starter

CALLS = (*POINT_TO_POINT, *ROOTED, *ALIKE)


class _Freed:
    """What can be freed, and should be."""

    def Free(self) -> None:
        """Free it."""
        super().Free()  # type: ignore[misc]
        checks.freed(self)


_FACTS = tuple(name for name in vars(Recorded) if name[0] == "_" and name[1] != "_")


class _WithFacts(Recorded, _Freed):
    """Keeps what every call reads in slots, which are read five times as fast as other attributes."""

    def __new__(cls, *args: Any) -> Any:
        self = super().__new__(cls, *args)
        for name in _FACTS:
            setattr(self, name, getattr(Recorded, name))
        return self


class RecordedComm(_WithFacts, MPI.Intracomm):
    """An intracommunicator whose blocking calls are recorded; what it splits into is recorded too."""

    __slots__ = _FACTS


class RecordedCart(_WithFacts, MPI.Cartcomm):
    """The same for a grid of ranks."""

    __slots__ = _FACTS


class RecordedWin(Recorded, windows.Epochs, MPI.Win):
    """A window whose blocking calls are recorded."""


class _AnyMessage(type):
    """What `mprobe` returns is a `RecordedMessage`, too."""

    def __instancecheck__(cls, value: object, of: type = MPI.Message) -> bool:
        return isinstance(value, of)


class RecordedMessage(MPI.Message, metaclass=_AnyMessage):
    """`Message.probe(comm, …)` is the same as `comm.mprobe(…)`, which is recorded."""

    Probe = staticmethod(lambda comm, *args, **kwargs: comm.Mprobe(*args, **kwargs))
    probe = staticmethod(lambda comm, *args, **kwargs: comm.mprobe(*args, **kwargs))
    Iprobe = staticmethod(lambda comm, *args, **kwargs: comm.Improbe(*args, **kwargs))
    iprobe = staticmethod(lambda comm, *args, **kwargs: comm.improbe(*args, **kwargs))


class RecordedFile(Recorded, MPI.File):
    """A file whose collective calls are recorded."""


def _maker(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    make = record.collective(name, original)
    by_all = name != "Create_group"  # which two groups may call at once

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        context, checked = _context_of_child(self), checks.context_of_child(self) if by_all else None
        made = make(self, *args, **kwargs)
        if made == MPI.COMM_NULL:
            return made
        recorded = RecordedCart(made) if isinstance(made, MPI.Cartcomm) else RecordedComm(made)
        recorded._context = context
        if checked is not None:
            recorded._checked = checked
            checks.made(recorded, name)
        record.known[id(recorded)] = recorded
        return recorded

    return record.as_original(original, call)


def _context_of_child(comm: Any) -> int:
    """A number for what `comm` makes next, the same on all its ranks: they have made the same calls."""
    return int((31 * comm._context + comm._turn + 1) % 2**31)


def _opener(kind: Any, name: str) -> Any:
    """The class method `name` of `kind`, such as Win.Allocate: all ranks of its communicator must call it."""
    short = name.partition(".")[2]

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(super(kind, cls), short)
        given = (*args, *kwargs.values())
        comm: Any = next((a for a in given if isinstance(a, RecordedComm | RecordedCart)), None)
        if comm is None:
            return original(*args, **kwargs)
        context, checked = _context_of_child(comm), checks.context_of_child(comm)
        made = record.collective(name, _without_self(original))(comm, *args, **kwargs)
        made._context, made._tally = context, comm._tally
        made._checked = checked
        if checked is not None and kind is RecordedWin:
            checks.made(made, name)
        return made

    call.__doc__ = getattr(kind, short).__doc__
    return classmethod(call)


def _without_self(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(comm: Any, /, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return call


_WRAPPERS = {
    **dict.fromkeys((*ROOTED, *ALIKE, *ON_GRIDS, *OF_FILES_AND_WINDOWS), record.collective),
    **dict.fromkeys(POINT_TO_POINT, messages.blocking),
    **dict.fromkeys((*WAITING_PROBES, *ON_WINDOWS), record.waiting_for_one),
    **dict.fromkeys(PROBES, record.prober),
    **dict.fromkeys(STARTED, starter),
    **dict.fromkeys(STARTED_BY_ALL, collective_starter),
    **dict.fromkeys(MAKERS, _maker),
}
_KINDS: tuple[tuple[Any, str], ...] = (
    *((RecordedComm, ""), (RecordedCart, "")),
    *((RecordedWin, "Win."), (RecordedFile, "File.")),
)
for _class, _prefix in _KINDS:
    for _name, _wrap in _WRAPPERS.items():
        _short = _name.removeprefix(_prefix)
        if _name.startswith(_prefix) and hasattr(_class, _short):  # only a grid has Sub
            setattr(_class, _short, _wrap(_name, getattr(_class.__bases__[-1], _short)))
    for _name in OPENERS:
        if _prefix and _name.startswith(_prefix):
            setattr(_class, _name.removeprefix(_prefix), _opener(_class, _name))


for _name in windows.EPOCHS:
    setattr(RecordedWin, _name, windows.changing(_name, getattr(RecordedWin, _name)))
for _name in windows.ACCESSES:
    setattr(RecordedWin, _name, windows.accessing(_name, getattr(MPI.Win, _name)))


# -------------------------------------------------------------------- on a rank


def install(folder: Path) -> tuple[int, int, int, str]:
    """Record this rank's calls in `folder`; return its rank, world size, pid and MPI library.

    From here on `MPI.COMM_WORLD` is a `RecordedComm`, and SIGUSR1 writes the Python stack to a file, also
    while the rank is blocked inside MPI. Calling it again changes nothing.
    """
    world = MPI.COMM_WORLD
    if not isinstance(world, RecordedComm):
        record.attach(folder, world.rank, world.size)
        record.count_pickled()
        os.register_at_fork(after_in_child=_refuse_to_forked)
        _stacks.append(open(stack_file(folder, world.rank), "w"))  # noqa: SIM115  open as long as the engine lives
        write_stacks_when_asked()
        warnings.filterwarnings("ignore", message="To exit: use")  # advice for a terminal, not for a cell
        recorded: Any = RecordedComm(world)
        recorded._checked, checks.me = 0, world.rank
        MPI.COMM_WORLD = recorded  # type: ignore[misc]
        record.known[id(MPI.COMM_WORLD)] = MPI.COMM_WORLD
        MPI.Request, MPI.Prequest = RecordedRequest, RecordedPrequest  # type: ignore[misc]
        MPI.Win, MPI.File, MPI.Message = RecordedWin, RecordedFile, RecordedMessage  # type: ignore[misc]
        MPI.Finalize = _refuse_to_finalize
        MPI.Pcontrol = record.announced(MPI.Pcontrol)  # type: ignore[assignment]
    return world.rank, world.size, os.getpid(), library_name(MPI.Get_library_version())


def library_name(text: str) -> str:
    """For example `Open MPI 5.0.11` or `MPICH 5.0.2`, from what the MPI library says of itself."""
    first = text.splitlines()[0].split(",")[0]
    return " ".join(first.replace("Open MPI v", "Open MPI ").replace(" Version:", "").split())


_stacks: list[Any] = []  # the file for them


def write_stacks_when_asked() -> None:
    """From here on SIGUSR1 writes the Python stack, whatever a cell has made of that signal before."""
    faulthandler.unregister(signal.SIGUSR1)
    faulthandler.register(signal.SIGUSR1, file=_stacks[0], all_threads=False)


def _refuse_to_forked() -> None:
    """In a process forked off this rank, every call raises: it would speak with the rank's own voice."""
    record.detach()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a process forked off a rank cannot use MPI: it would take the rank's messages")

    for kind in (RecordedComm, RecordedCart, RecordedWin, RecordedFile):
        for name in [name for name in vars(kind) if callable(getattr(kind, name)) and name[0] != "_"]:
            setattr(kind, name, refuse)


def _refuse_to_finalize() -> None:
    """Replaces MPI.Finalize: after the real one, the next MPI call ends the process."""
    raise RuntimeError("MPI.Finalize ends MPI for good; mpi4py calls it by itself when the program ends")
