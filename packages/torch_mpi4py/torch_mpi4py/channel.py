"""How one group reaches its ranks: two communicators, the gate, the lane, and what has gone wrong.

Collectives and our own messages use `comm`, the user's messages `mail`: no tag of theirs meets one of ours.

    run(call)      the order: here and now, or later on the owner thread
    execute(call)  the gate, then the body that moves the data
    complete(…)    every wait inside a body, with the deadline of the call

A failure that other ranks cannot know of (a timeout, an interrupt, a dead rank) breaks the group: every
later call says why, and the memory that MPI may still write to is kept for the rest of the process. Whoever
comes to a collective that another rank has given up waits for it until the deadline, and no longer.
"""

import contextlib
import ctypes
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from mpi4py import MPI

from .announce import WAIT_BEGAN, WAIT_ENDED, as_work, tell
from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, LayoutError, MismatchError
from .gate import Gate
from .interrupts import Deferred
from .shared import SharedRows, original, shared_rows
from .waiting import SHORT_NAP, wait_until
from .work import Finished, Lane, Outcome, Pending

NEWS_SECONDS = 0.3
CLOSE_SECONDS = 2.0  # so long a rank that closes its group waits for the others, to free what they share
INTERRUPT_SECONDS = 1.0  # so long a rank that was interrupted inside a collective still waits for the others
LOOK_SECONDS = 0.05  # between two looks whether the group was closed
FAULT_TOLERANT = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112  mpiexec --with-ft ulfm
LARGEST_TAG = 2**15 - 1  # every MPI has that many

_channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()


class Call(NamedTuple):
    """One collective of one rank, made in the calling thread."""

    record: bytes  # what it shows at the gate
    describe: Callable[[], str]
    body: Callable[[], None]  # runs when all ranks have come with records that agree
    tensors: list[torch.Tensor]  # the result
    show: tuple[int, int] | None = None  # address and bytes of what the others may read from the gate on
    local: bool = False  # whether the body needs the others no more, once it is shown

    def announced(self) -> "Call":
        """Return this call for a thread that the main thread may wait for: its body is announced as work."""
        return self._replace(body=as_work(self.body))


class Refusal:
    """The words of a rank that cannot take part, and the error it raises itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> str:
        return f"refused: {self.error}"

    def body(self) -> None:
        raise MismatchError(self())


class Channel:
    """The communicators of one group. `comm` becomes the channel's own."""

    def __init__(self, comm: MPI.Intracomm, seconds: float, name: str) -> None:
        self.comm, self.mail = comm, comm.Dup()
        for each in (self.comm, self.mail):
            each.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self.seconds, self.name = seconds, name
        self.gate = Gate(comm)
        self.lane = Lane(name, seconds)
        self.deferred = Deferred()
        self.broken: str | None = None
        self.closed = False
        self.reports = 0  # to monitored barriers
        self.rows: SharedRows | None = None  # see find_rows
        self.searched = False
        _channels.add(self)

    # ------------------------------------------------------------------------------ one collective

    def run(self, call: Call, seconds: float, later: bool) -> Outcome:
        """Run one collective: here and now, or `later` on the owner thread."""
        self.check_open()
        lane = self.lane
        if not later:
            waits = bool(lane.queue) or lane.lock.locked()  # for an earlier one, which another thread runs
            announced = waits and lane.all_timeouts_long()
            try:
                if announced:
                    tell(WAIT_BEGAN)
                with lane.lock:  # not acquire and release: an interrupt in between would leave it locked
                    if announced:
                        tell(WAIT_ENDED)
                    if not lane.queue:
                        on_main = threading.get_ident() == self.deferred.main
                        self.execute(call if on_main else call.announced(), seconds)
                        return Finished(call.tensors)
            finally:
                if announced:  # again: an interrupt may have come while this thread waited for the lock
                    tell(WAIT_ENDED)
        announced_call = call.announced()
        work = Pending(lane, lambda: self.execute(announced_call, seconds), call.tensors, seconds)
        lane.submit(work)
        if not later:
            work.wait()
        return work

    def execute(self, call: Call, seconds: float) -> None:
        """The gate, then the body; the calling thread holds the lane."""
        self.check_open()
        try:
            self.lane.call_seconds = seconds
            if self.rows:
                self.rows.before_gate(call.show)
            self.gate.enter(call.record, call.describe, seconds)
            if self.rows:  # shown by all, or by none: what only some have shown counts for nothing
                self.rows.after_gate(self.gate.all == call.record * self.size)
            if call.local and self.rows:
                call.body()
            else:
                with self.deferred:
                    call.body()
        except MismatchError as mismatch:
            if isinstance(call.describe, Refusal):
                raise call.describe.error from mismatch
            raise
        except LayoutError:
            raise
        except BaseException as error:
            self.deferred.restore()
            keep_forever(call, self.gate)
            failure = self.failure(error, call.describe)
            if failure is error:
                raise
            raise failure from error

    def complete(self, request: MPI.Request | list[MPI.Request], *memory: object) -> None:
        """Wait until `request` is done; CollectiveTimeoutError when a rank has left this collective.

        `memory` is whatever MPI reads or writes meanwhile: after a failure it must outlive this call.
        """
        test = all_done(request) if isinstance(request, list) else request.Test
        if not test():
            try:
                self.wait(test)
            except BaseException:
                keep_forever(request, memory)
                raise

    def wait(self, test: Callable[[], bool]) -> None:
        """Wait, inside a body, until `test()`: for so long as the call allows, less after Ctrl-C."""
        deadline = time.monotonic() + self.lane.call_seconds
        step = min(self.lane.call_seconds, INTERRUPT_SECONDS)
        while not wait_until(test, step, SHORT_NAP):
            if self.deferred.pending or time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"all {self.size} ranks came, and one of them has given up since: "
                    f"timeout after {self.lane.call_seconds:g} s"
                )

    def find_rows(self) -> SharedRows | None:
        """Return memory that all ranks see, made in the first collective that wants it, or None.

        Making it blocks inside MPI until all ranks have come. So a thread makes it, and goes on when the
        caller leaves, interrupted or too late: a rank that has begun never leaves the others alone.
        """
        if not self.searched:
            making = threading.Thread(target=self.make_rows, name="mpi4py shared memory", daemon=True)
            making.start()
            self.wait(lambda: not making.is_alive())
            if not self.searched:
                raise RuntimeError("the shared memory of the ranks could not be made: see the error above")
        return self.rows

    def make_rows(self) -> None:
        """Make the shared memory when all ranks have come to this, however long that takes."""
        everyone = self.comm.Ibarrier()
        while not wait_until(everyone.Test, LOOK_SECONDS):
            if self.closed:
                keep_forever(everyone)
                return
        self.rows, self.searched = shared_rows(self.comm, self.wait), True

    # ------------------------------------------------------------------------------ failures and end

    def check_open(self) -> None:
        if self.closed:
            raise ClosedGroupError(
                f"process group {self.name} was destroyed; call init_process_group or new_group"
            )
        if self.broken:
            raise BrokenGroupError(f"process group {self.name} cannot be used any more: {self.broken}")

    def failure(self, error: BaseException, describe: Callable[[], str]) -> BaseException:
        """Break the group, free the other ranks, and return what to raise."""
        if isinstance(error, CollectiveTimeoutError):
            text = str(error)
            if not text.startswith(describe()):
                text = f"{describe()}: {text}"
            self.broken = text
            return CollectiveTimeoutError(text)
        if not isinstance(error, MPI.Exception):
            self.broken = f"{type(error).__name__} on this rank during {describe()}"
            self.revoke()
            return error
        # A rank that was only told to give up may hear a moment later who died.
        wait_until(lambda: bool(dead_ranks(self.comm)), NEWS_SECONDS if is_death(error) else 0.0)
        dead = dead_ranks(self.comm)
        ranks = "rank" if len(dead) == 1 else "ranks"
        who = f"{ranks} {', '.join(map(str, dead))} of the group died" if dead else str(error)
        if not dead and is_death(error):
            who = "another rank met a failure and gave the group up"
        self.broken = f"{who} during {describe()}"
        self.revoke()
        return BrokenGroupError(self.broken)

    def revoke(self) -> None:
        """Wake the ranks that wait for this one, in a job that was started with `mpiexec --with-ft ulfm`.

        In any other job Open MPI revokes the communicator on this rank alone: nobody is woken, and this rank
        drops what the others still send. The threads that make the shared memory would wait for ever.
        """
        if not FAULT_TOLERANT:
            return
        for each in (self.comm, self.mail):
            with contextlib.suppress(MPI.Exception, NotImplementedError):
                each.Revoke()

    def close(self, drain: Callable[[float], bool]) -> None:
        """Finish what is under way, end the owner thread, free communicators and memory; once."""
        if self.closed:
            return
        seconds = 0.5 if self.broken else min(self.seconds, 30.0)
        idle = drain(seconds) and self.lane.close(seconds)
        self.closed = True
        if (
            not idle
            or self.broken
            or MPI.Is_finalized()
            or (self.rows and not self.rows.close(CLOSE_SECONDS))
        ):
            keep_forever(self)
            return
        self.gate.close()
        self.mail.Free()
        self.comm.Free()


def all_done(requests: list[MPI.Request]) -> Callable[[], bool]:
    testall = original(MPI.Request).Testall
    return lambda: testall(requests)


def keep_forever(*things: object) -> None:
    """Never free these, not even when the interpreter ends: MPI may still write to them while it is
    finalised.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


def forget_in_fork() -> None:
    """In a process forked off a rank: nothing here may touch MPI, which belongs to the rank."""
    for channel in list(_channels):
        channel.broken = f"this is process {os.getpid()}, a fork of a rank, and MPI works in the rank alone"
        channel.lane.queue.clear()


def is_death(error: BaseException) -> bool:
    """Does MPI say that a rank died, or that another rank gave up for that?"""
    kinds = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
    return isinstance(error, MPI.Exception) and error.Get_error_class() in kinds


def dead_ranks(comm: MPI.Intracomm) -> list[int]:
    """The ranks of `comm` that MPI knows to have died; empty where it cannot say."""
    try:
        MPI.COMM_SELF.Iprobe()  # MPI hears news only while it is called
        failed = comm.Get_failed()
        everyone = comm.Get_group()
        return sorted(MPI.Group.Translate_ranks(failed, list(range(failed.size)), everyone))
    except (MPI.Exception, NotImplementedError):
        return []


def create_from(comm: MPI.Intracomm, ranks: list[int]) -> MPI.Intracomm:
    """A communicator of these ranks of `comm`; only they take part.

    The tag keeps groups apart that are made at the same time. It comes from the ranks: torch's name of a
    group counts the groups a rank is in, and so differs between members that are in others too.
    """
    tag = zlib.crc32(repr(ranks).encode()) % LARGEST_TAG
    return comm.Create_group(comm.Get_group().Incl(ranks), tag)
