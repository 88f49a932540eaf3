"""How one group reaches its ranks: two communicators, the gate, the lane, and what has gone wrong.

Collectives and our own messages use `comm`, the user's messages `mail`: no tag of theirs meets one of ours.
A failure that other ranks cannot know of (a timeout, a dead rank) breaks the group: what was under way may
still write to its tensors, so they are kept, and every later call says why it cannot be.
"""

import contextlib
import zlib
from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI

from course_lib.comm.polling import wait_until

from .checks import Gate
from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, MismatchError
from .shared import SharedRows, shared_rows
from .work import Finished, Lane, Outcome, Pending

Body = Callable[[], None]
NEWS_SECONDS = 0.3
LARGEST_TAG = 2**15 - 1  # every MPI has that many


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
        self.lane = Lane(name)
        self.broken: str | None = None
        self.closed = False
        self.wreck: list[Any] = []  # what MPI may still write to after a failure
        self.reports = 0  # to monitored barriers
        self.rows: SharedRows | None = None  # see find_rows
        self.searched = False

    def find_rows(self) -> SharedRows | None:
        """Memory that all ranks see, made when all are in the first collective that wants it; or None."""
        if not self.searched:
            self.rows, self.searched = shared_rows(self.comm), True
        return self.rows

    def run(
        self,
        record: bytes,
        story: Callable[[], str],
        body: Body,
        tensors: list[torch.Tensor],
        before: Body | None,
        seconds: float,
        later: bool,
    ) -> Finished | Outcome:
        """Run one collective: here and now, or `later` on the owner thread."""
        lane = self.lane
        if not later and not lane.queue and lane.lock.acquire(False):
            try:
                self.execute(record, story, body, before, seconds)
            finally:
                lane.lock.release()
            return Finished(tensors)
        self.check_open()
        work = Pending(lane, lambda: self.execute(record, story, body, before, seconds), tensors)
        lane.submit(work)
        if not later:
            work.wait()
        return work

    def execute(
        self, record: bytes, story: Callable[[], str], body: Body, before: Body | None, seconds: float
    ) -> None:
        """What comes before the gate, the gate, the collective; the calling thread holds the lane."""
        if self.broken or self.closed:
            self.check_open()
        try:
            if before:
                before()
            self.gate.enter(record, story, seconds)
            body()
        except MismatchError as mismatch:
            if isinstance(story, Refusal):
                raise story.error from mismatch
            raise
        except (MPI.Exception, CollectiveTimeoutError) as error:
            self.wreck.append(body)
            raise self.failure(error, story) from error
        finally:
            if before and self.rows:
                self.rows.filled = False

    def check_open(self) -> None:
        if self.closed:
            raise ClosedGroupError(
                f"process group {self.name} was destroyed; call init_process_group or new_group"
            )
        if self.broken:
            raise BrokenGroupError(f"process group {self.name} is of no use since: {self.broken}")

    def failure(self, error: Exception, story: Callable[[], str]) -> Exception:
        """Break the group, free the other ranks, and return what to raise."""
        if isinstance(error, CollectiveTimeoutError):
            self.broken = str(error)
            return error
        # A rank that was only told to give up may hear a moment later who died.
        wait_until(lambda: bool(dead_ranks(self.comm)), NEWS_SECONDS if is_death(error) else 0.0)
        dead = dead_ranks(self.comm)
        who = f"rank {', '.join(map(str, dead))} of the group died" if dead else str(error)
        if not dead and is_death(error):
            who = "another rank met a failure and gave the group up"
        self.broken = f"{who} during {story()}"
        self.revoke()
        return BrokenGroupError(self.broken)

    def revoke(self) -> None:
        """Wake the ranks that wait for this one (needs `mpiexec --with-ft ulfm`)."""
        for each in (self.comm, self.mail):
            with contextlib.suppress(MPI.Exception, NotImplementedError):
                each.Revoke()

    def close(self, drain: Callable[[float], bool]) -> None:
        """Finish what is under way, end the owner thread, free the communicators; once."""
        if self.closed:
            return
        patience = 0.5 if self.broken else min(self.seconds, 30.0)
        idle = drain(patience) and self.lane.close(patience)
        self.closed = True
        if idle and not self.broken and not MPI.Is_finalized():
            self.gate.close()
            self.mail.Free()
            self.comm.Free()


def is_death(error: Exception) -> bool:
    """Does MPI say that a rank died, or that another rank gave up for that?"""
    kinds = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
    return isinstance(error, MPI.Exception) and error.Get_error_class() in kinds


def dead_ranks(comm: MPI.Intracomm) -> list[int]:
    """The ranks of `comm` that MPI knows to have died; empty where it cannot tell."""
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
