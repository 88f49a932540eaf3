"""Waits for other ranks, said aloud for a tool that watches the job.

A debugger or a recorder of MPI calls sees a rank that polls, and cannot tell a wait from work. MPI's own way
to speak to such a tool is MPI_Pcontrol, whose levels mean what the two have agreed on; without a tool it
does nothing. So a wait that only another rank can end, and that takes longer than EARLY_SECONDS, is put
between two calls of it:

    MPI.Pcontrol(WAITS)      the calling thread waits for a call of another rank
    MPI.Pcontrol(GOES_ON)    and no longer
    MPI.Pcontrol(MOVES)      some thread of this process moves data, which ends by itself; these nest
    MPI.Pcontrol(MOVED)      one of them no longer

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


class Arriving(Protocol):
    """A message that has begun to arrive."""

    def look(self) -> bool:
        """Whether it is complete."""
        ...


arriving: "weakref.WeakValueDictionary[int, Arriving]" = weakref.WeakValueDictionary()  # by id


def wait_for_ranks(done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP) -> bool:
    """Wait until `done()`, which only calls of other ranks make true; return False after `seconds`."""
    start = time.monotonic()
    if wait_until(done, min(seconds, EARLY_SECONDS), longest_nap):
        return True
    announced, moves = seconds > OWN_TIMEOUT_SECONDS, False
    try:
        if announced:
            MPI.Pcontrol(WAITS)
        while (waited := time.monotonic() - start) < seconds:
            if something_arrives() is not moves:
                moves = not moves
                MPI.Pcontrol(MOVES if moves else MOVED)
            if wait_until(done, min(seconds, waited + LOOK_SECONDS), longest_nap, waited):
                return True
        return False
    finally:
        if announced:
            MPI.Pcontrol(GOES_ON)
        if moves:
            MPI.Pcontrol(MOVED)


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
        MPI.Pcontrol(MOVES)
        try:
            body()
        finally:
            MPI.Pcontrol(MOVED)

    return run
