"""Report to a tool that watches the job when this rank waits for other ranks.

A rank that waits here polls MPI, so a debugger or a recorder of MPI calls cannot distinguish it from a rank
that computes. MPI's own call for such a tool is MPI_Pcontrol, whose levels mean what the two have agreed on.
mpi4py's own function passes on levels 0 to 2 only, so a tool puts one of its own in place of `MPI.Pcontrol`;
without a tool nothing is called. A wait that only another rank can end is put between two calls of it. Waits
in `wait_for_ranks` are announced after EARLY_SECONDS, waits for the lane and for a new group at once:

    tell(WAIT_BEGAN)    the calling thread waits for a call of another rank
    tell(WAIT_ENDED)    it goes on
    tell(WORK_BEGAN)    a thread of this process works: it moves data or runs a callback; several may at once
    tell(WORK_ENDED)    one of them has finished

A rank can go on only by a call of another rank if its main thread waits, no thread works and the user's
program has no threads of its own. Before a collective moves data, all ranks meet at a gate (gate.py). The
wait there is announced. Behind it all ranks are present, and only their speed counts. A callback counts as
work even while it waits in a collective, so a tool does not notice a hang there. That is the safe side: if
work were announced as a wait, a tool might end a correct program.
"""

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mpi4py import MPI

from .waiting import LONGEST_NAP, wait_until

if TYPE_CHECKING:
    from .messages import Message

WAIT_BEGAN: Final = 54001
WAIT_ENDED: Final = 54002
WORK_BEGAN: Final = 54003
WORK_ENDED: Final = 54004

EARLY_SECONDS: Final = 0.1  # most waits are over by then
LOOK_SECONDS: Final = 0.5  # between two looks whether a message arrives meanwhile
# Waits with a timeout up to this are not announced: the caller sees this backend's own error first.
OWN_TIMEOUT_SECONDS: Final = 30.0


# Filled by messages.py. Weak: a message that was dropped is over. A dict by id, because a WeakSet may not
# change while somebody iterates over it.
arriving: "weakref.WeakValueDictionary[int, Message]" = weakref.WeakValueDictionary()


def tell(level: int) -> None:
    """Report `level` to the tool that has replaced MPI.Pcontrol, if there is one."""
    pcontrol = MPI.Pcontrol
    # A tool's function may have mpi4py's name, by functools.wraps, or be compiled by Cython, too.
    if type(pcontrol) is not type(MPI.Get_version) or pcontrol.__module__ != MPI.__name__:
        pcontrol(level)


def wait_for_ranks(done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP) -> bool:
    """Wait until `done()` is true, and announce the wait; return whether that was within `seconds`.

    Only calls of other ranks can make it true, and it must not run callbacks.
    """
    start = time.monotonic()
    if wait_until(done, min(seconds, EARLY_SECONDS), longest_nap):
        return True
    announced, moves = seconds > OWN_TIMEOUT_SECONDS, False
    try:
        if announced:
            tell(WAIT_BEGAN)
        while (waited := time.monotonic() - start) < seconds:
            # Also in a wait that is not announced: another thread's may be.
            if (arrives := something_arrives()) is not moves:
                tell(WORK_BEGAN if arrives else WORK_ENDED)
                moves = arrives  # only now: an interrupt may come instead of the call
            until = min(seconds, waited + LOOK_SECONDS)
            if wait_until(done, until, longest_nap, waited):
                return True
        return False
    finally:
        try:
            if announced:
                tell(WAIT_ENDED)
        finally:
            if moves:
                tell(WORK_ENDED)


def something_arrives() -> bool:
    """Test the messages that have begun to arrive in this process; return whether one is incomplete.

    Without cross-memory attach a large message advances by one part per test, so a wait with long naps may
    take many seconds although nothing hangs. A message stays incomplete for as long as its sender makes no
    MPI call, so a sender that never makes one is noticed at the timeout only.
    """
    for reference in arriving.valuerefs():
        message = reference()
        if message is not None and message.look():
            arriving.pop(id(message), None)
    return bool(arriving)


def as_work(body: Callable[[], None]) -> Callable[[], None]:
    """Return `body` between two calls of `tell`: this process works."""

    def run() -> None:
        tell(WORK_BEGAN)
        try:
            body()
        finally:
            tell(WORK_ENDED)

    return run
