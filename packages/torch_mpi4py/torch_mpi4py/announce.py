"""Waits for other ranks, said aloud for a tool that watches the job.

A debugger or a recorder of MPI calls sees a rank that polls, and cannot tell a wait from work. MPI's own way
to speak to such a tool is MPI_Pcontrol, whose levels mean what the two have agreed on. mpi4py's own function
passes on levels 0 to 2 only, so a tool puts one of its own in place of `MPI.Pcontrol`; without a tool nothing
is said. A wait that only another rank can end, and that takes longer than EARLY_SECONDS, is put between two
calls of it:

    tell(WAITS)      the calling thread waits for a call of another rank
    tell(GOES_ON)    and no longer
    tell(MOVES)      some thread of this process moves data, which ends by itself; these nest
    tell(MOVED)      one of them no longer

A process is stuck until another one acts if its main thread waits and nothing moves. The wait at the gate is
announced, what comes after it is not: then all ranks are there, and only their speed counts.
"""

import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from mpi4py import MPI

from .waiting import LONGEST_NAP, wait_until

WAITS: Final = 54001
GOES_ON: Final = 54002
MOVES: Final = 54003
MOVED: Final = 54004

EARLY_SECONDS: Final = 0.1  # most waits are over by then
LOOK_SECONDS: Final = 0.5  # between two looks whether a message arrives meanwhile
OWN_TIMEOUT_SECONDS: Final = 30.0  # a wait with no longer timeout ends with its own error, unannounced


class _Arriving(Protocol):
    """A message that has begun to arrive."""

    def look(self) -> bool:
        """Whether it is complete."""
        ...


arriving: "weakref.WeakValueDictionary[int, _Arriving]" = weakref.WeakValueDictionary()  # by id


def tell(level: int) -> None:
    """Say `level` to the tool that has replaced MPI.Pcontrol, if there is one."""
    pcontrol = MPI.Pcontrol
    if pcontrol.__module__ != MPI.__name__:
        pcontrol(level)


def wait_for_ranks(done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP) -> bool:
    """Wait until `done()`, which only calls of other ranks make true; return False after `seconds`."""
    start = time.monotonic()
    if wait_until(done, min(seconds, EARLY_SECONDS), longest_nap):
        return True
    announced, moves = seconds > OWN_TIMEOUT_SECONDS, False
    try:
        if announced:
            tell(WAITS)
        while (waited := time.monotonic() - start) < seconds:
            if something_arrives() is not moves:
                moves = not moves
                tell(MOVES if moves else MOVED)
            if wait_until(done, min(seconds, waited + LOOK_SECONDS), longest_nap, waited):
                return True
        return False
    finally:
        if announced:
            tell(GOES_ON)
        if moves:
            tell(MOVED)


def something_arrives() -> bool:
    """Whether a message has begun to arrive in this process and is not complete."""
    for reference in arriving.valuerefs():
        message = reference()
        if message is not None and message.look():
            arriving.pop(id(message), None)
    return bool(arriving)


def moving(body: Callable[[], None]) -> Callable[[], None]:
    """`body`, announced as moving data."""

    def run() -> None:
        tell(MOVES)
        try:
            body()
        finally:
            tell(MOVED)

    return run
