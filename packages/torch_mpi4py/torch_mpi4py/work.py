"""Work objects, and the lane on which a group's collectives run one after the other.

MPI matches the collectives of a communicator by their order, so all of one group must begin in the order
in which they were called, also when some are asynchronous. An asynchronous collective is a Pending in the
group's lane. Whoever holds the lane's lock runs the next one: the owner thread, a thread that waits for its
result, or a blocking collective that came later. A blocking collective on an empty lane runs where it was
called, with no thread and no queue.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .announce import OWN_TIMEOUT_SECONDS, WAIT_BEGAN, WAIT_ENDED, as_work, tell, wait_for_ranks
from .errors import CollectiveTimeoutError

Result = list[torch.Tensor]


class Outcome(dist.Work):
    """What Finished, Pending and Message share: an end, an error, a future that tells of it."""

    def __init__(self, tensors: Result) -> None:
        super().__init__()
        self.tensors = tensors
        self.error: BaseException | None = None
        self.done = False
        self.guard = threading.Lock()
        self.ended: torch.futures.Future[Any] | None = None
        self.future: torch.futures.Future[Any] | None = None
        self.announcing = threading.Lock()

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Result:
        self.wait()
        return self.tensors

    def get_future(self) -> "torch.futures.Future[Any]":
        # `set_exception` hides an error from C++, which then reads a tensor that is not there; an exception
        # out of a callback arrives.
        with self.guard:
            if self.future is None:
                self.ended = torch.futures.Future()
                self.future = self.ended.then(lambda _: self.value())
            done = self.done
        if done:
            self.announce()
        return self.future

    def value(self) -> Result | None:
        if self.error:
            raise self.error
        return self.tensors or None

    def announce(self) -> None:
        """Complete the future; its callbacks run here and may start collectives.

        Only the first call does, however often and on however many threads it is called: an interrupt may
        have come between the end of the work and its announcement.
        """
        ended = self.ended
        if ended is not None and not ended.done() and not self.announcing.locked():
            with self.announcing:
                if not ended.done():
                    as_work(lambda: ended.set_result(None))()  # a callback may compute for long


class Finished(Outcome):
    """The work of a collective that is done."""

    def __init__(self, tensors: Result) -> None:
        super().__init__(tensors)
        self.done = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class Pending(Outcome):
    """An asynchronous collective: `execute` runs it, once, on whatever thread holds the lane."""

    def __init__(self, lane: "Lane", execute: Callable[[], None], tensors: Result, seconds: float) -> None:
        super().__init__(tensors)
        self.lane, self.execute = lane, execute
        self.seconds = seconds  # its timeout

    def run(self) -> None:
        """Run it. An interrupt ends the work, and goes on to the thread that it reached."""
        try:
            self.execute()
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.done = True
            self.execute = nothing  # and with it go the tensors that only it holds

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.done:
            self.lane.help(self, timeout.total_seconds() if timeout else 0.0)
        self.announce()
        if self.error:
            raise self.error
        return True


def nothing() -> None:
    """What a work that is done still has to do."""


class Many(dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return sum(work.wait(timeout) for work in self.works) == len(self.works)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return sum(work.is_completed() for work in self.works) == len(self.works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self.works)

    def exception(self) -> BaseException | None:
        return next((work.exception() for work in self.works if work.exception()), None)

    def result(self) -> Result:
        return [tensor for work in self.works for tensor in work.result()]

    def get_future(self) -> "torch.futures.Future[Any]":
        everyone = torch.futures.collect_all([work.get_future() for work in self.works])
        return everyone.then(lambda done: [tensor for future in done.value() for tensor in future.value()])


class Lane:
    """The order of one group's collectives.

    The lock is held in `with` blocks only: an interrupt between acquiring it and a `try` would leave it
    locked.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.lock = threading.Lock()  # whoever holds it runs a collective
        self.call_seconds = seconds  # timeout of the collective that runs
        self.queue: deque[Pending] = deque()
        self.announcements: deque[Pending] = deque()  # works that may have ended unannounced
        self.tickets = threading.Semaphore(0)
        self.owner: threading.Thread | None = None
        self.closing = False

    def submit(self, work: Pending) -> None:
        """Queue `work`; the owner thread begins with it as soon as it can."""
        self.announcements.append(work)
        self.queue.append(work)
        if self.owner is None:
            self.owner = threading.Thread(target=self.own, name=f"mpi4py group {self.name}", daemon=True)
            self.owner.start()
        self.tickets.release()

    def own(self) -> None:
        while True:
            self.tickets.acquire()
            if self.closing:
                return
            self.step()
            self.announce_all()

    def step(self, work: Pending | None = None) -> None:
        """Run the next in the queue, unless `work` is done meanwhile."""
        announced = self.all_timeouts_long()
        try:
            # If the lock is taken, its holder is in a collective: it waits for the other ranks, or announces
            # that it moves data.
            if announced:
                tell(WAIT_BEGAN)
            with self.lock:
                if announced:
                    tell(WAIT_ENDED)
                ran = None if work and work.done else self.run_next()
        finally:
            if announced:  # again: an interrupt may have come while this thread waited for the lock
                tell(WAIT_ENDED)
        if ran:
            ran.announce()

    def all_timeouts_long(self) -> bool:
        """Return whether to announce a wait for the lane: no collective in it has a short timeout.

        One that has ends soon with its own error.
        """
        timeouts = [self.call_seconds, *(work.seconds for work in tuple(self.queue))]
        return min(timeouts) > OWN_TIMEOUT_SECONDS

    def run_next(self) -> Pending | None:
        """Run the next in the queue and return it; the caller holds the lock."""
        while self.queue and self.queue[0].done:  # an interrupt came before it was taken out
            self.queue.popleft()
        if not self.queue:
            return None
        work = self.queue[0]
        work.run()
        self.queue.popleft()  # only now: until then a blocking call must not overtake it
        return work

    def announce_all(self) -> None:
        """Announce what has ended, for the threads that were interrupted before they could."""
        while self.announcements and self.announcements[0].done:
            self.announcements.popleft().announce()

    def help(self, work: Pending, seconds: float) -> None:
        """Run what is queued until `work` is done; with a limit of `seconds`, watch the owner thread do it.

        Raises CollectiveTimeoutError after `seconds`; the collective goes on.
        """
        if seconds > 0:
            if not wait_for_ranks(lambda: work.done, seconds):
                raise CollectiveTimeoutError(
                    f"the collective is not done: timeout after {seconds:g} s; it goes on"
                )
            return
        while not work.done:
            self.step(work)

    def close(self, seconds: float) -> bool:
        """Finish what is queued and end the owner thread; False when that takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while self.queue and self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                ran = self.run_next()
            finally:
                self.lock.release()
            if ran:
                ran.announce()
        self.closing = True
        if self.owner is None or self.owner is threading.current_thread():
            return not self.queue
        self.tickets.release()
        self.owner.join(max(0.1, deadline - time.monotonic()))
        return not self.queue and not self.owner.is_alive()
