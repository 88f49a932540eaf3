"""send and recv: a request of MPI as a work object.

Both begin at once in the calling thread. The queue keeps every message, with its memory, until MPI is done
with it or it is cancelled: the caller may drop the work, stop waiting for it or be interrupted, and MPI
still reads or writes. MPI advances a message whenever this process calls MPI; where a future is asked for, a
thread tests it.

Behind its values a small message carries the code of its dtype, which the receiver compares. A large one
does not: one block of memory is copied by the receiver alone, while the sender computes on. With
TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks, all carry it.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from .channel import Channel, keep_forever
from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, LayoutError, MismatchError
from .gate import DTYPE_CODE, DTYPES
from .tensors import LABEL_BYTES, Spec, as_message, labelled, place_for, plain, write_back
from .waiting import LONGEST_NAP, SHORT_NAP, wait_until
from .work import Outcome

NAP = 5e-4
CANCEL_SECONDS = 1.0  # MPI takes back a receive at once, unless its message has begun to arrive
LARGE = 2**20  # bytes from which a message comes in many parts
LABELLED_BYTES = 4096  # up to here MPI sends a message at once, label and all


class Message(Outcome):
    """A send or receive under way. `finish(status)` runs when it has arrived."""

    def __init__(
        self,
        queue: "MessageQueue",
        tensor: torch.Tensor,
        values: torch.Tensor,
        words: str,
        finish: Callable[["Message"], None],
    ) -> None:
        super().__init__([tensor])
        self.queue, self.tensor, self.words, self.finish = queue, tensor, words, finish
        self.values = values  # plain: what MPI reads or writes
        self.label = np.array([DTYPE_CODE[tensor.dtype]])
        self.request = MPI.REQUEST_NULL
        self.started = False
        self.status = MPI.Status()
        self.source = -1
        self.testing = threading.Lock()  # MPI forbids two tests of one request at a time

    def start(self, begin: Callable[[Spec], MPI.Request]) -> None:
        """Begin it. The queue has it already: whatever happens meanwhile, its memory stays."""
        channel = self.queue.channel
        try:
            with channel.deferred:
                labels = self.queue.labels(self.tensor)
                with labelled(self.values, self.label) if labels else as_message(self.values) as buffer:
                    self.request = begin(buffer)
                self.started = True
        except BaseException as error:
            if self.started:  # and Ctrl-C came meanwhile
                raise
            keep_forever(self)
            self.error = (
                self.queue.failure(error, self.words)
                if isinstance(error, MPI.Exception)
                else channel.failure(error, lambda: self.words)
            )
            self.done = True
            raise self.error from None

    def is_completed(self) -> bool:
        if not self.done:
            with self.testing:
                self.test()
            if self.done:
                self.announce()
        return self.done

    def test(self) -> None:
        """Look once; the caller holds `testing`."""
        if self.done or not self.started:
            return
        try:
            self.queue.channel.check_open()
            # A request that is done is null, and its status is not to be asked for again.
            if self.request and not self.request.Test(self.status):
                return
            if self.status.Is_cancelled():
                raise ClosedGroupError(f"{self.words} was cancelled: the process group was destroyed")
            self.finish(self)
        except MPI.Exception as error:
            self.error = self.queue.failure(error, self.words)
            self.error.__cause__ = error
        except (MismatchError, LayoutError, BrokenGroupError, ClosedGroupError) as error:
            self.error = error
        if self.request:
            keep_forever(self)  # MPI is not done with it, and nobody will ask again
        self.done = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; CollectiveTimeoutError after `timeout`, and the message stays under way."""
        seconds = timeout.total_seconds() if timeout else 0.0
        seconds = seconds if seconds > 0 else self.queue.channel.seconds
        nap = SHORT_NAP if self.tensor.nbytes > LARGE else LONGEST_NAP
        if not self.is_completed() and not wait_until(self.is_completed, seconds, nap):
            raise CollectiveTimeoutError(f"{self.words} is not done after {seconds:g} s")
        self.announce()
        if self.error:
            raise self.error
        return True

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def get_future(self) -> "torch.futures.Future[Any]":
        self.queue.look_after(self)
        return super().get_future()


class MessageQueue:
    """The messages of one group that are under way."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self.sends: list[Message] = []
        self.receives: list[Message] = []
        self.watched: list[Message] = []
        self.lock = threading.Lock()
        self.watcher: threading.Thread | None = None

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Message:
        self.check(tensor, tag)
        words = f"send of {describe(tensor)} to rank {to}, tag {tag}"
        message = Message(self, tensor, plain(tensor), words, lambda message: None)
        self.add(self.sends, message)
        message.start(lambda buffer: self.channel.mail.Isend(buffer, to, tag))
        return message

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Message:
        """`source` may be MPI.ANY_SOURCE."""
        self.check(tensor, tag)
        who = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        words = f"recv of {describe(tensor)} from {who}, tag {tag}"
        message = Message(self, tensor, place_for(tensor), words, self.received)
        self.add(self.receives, message)
        message.start(lambda buffer: self.channel.mail.Irecv(buffer, source, tag))
        return message

    def add(self, messages: list[Message], new: Message) -> None:
        """Put `new` in the list, and take out what is done."""
        for message in list(messages):
            message.is_completed()  # outside the lock: a callback may send
        with self.lock:
            messages[:] = [message for message in messages if not message.done] + [new]

    def received(self, message: Message) -> None:
        """Compare what came with what was asked for, and put it where the caller wants it."""
        tensor, status = message.tensor, message.status
        message.source = status.source
        nbytes = status.Get_elements(MPI.BYTE) - LABEL_BYTES * self.labels(tensor)
        if nbytes != message.values.nbytes:
            raise MismatchError(
                f"{message.words}: rank {status.source} sent {nbytes} bytes, not {message.values.nbytes}"
            )
        if message.label[0] != DTYPE_CODE[tensor.dtype]:
            raise MismatchError(
                f"{message.words}: rank {status.source} sent {name_of(DTYPES[message.label[0]])}"
            )
        write_back(tensor, message.values)

    def check(self, tensor: torch.Tensor, tag: int) -> None:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            raise TypeError(
                f"the mpi4py backend sends dense CPU tensors, not {tensor.layout} on {tensor.device}"
            )
        if tag < 0:
            raise ValueError(f"tag {tag} is negative; use 0 or more")
        self.channel.check_open()

    def labels(self, tensor: torch.Tensor) -> bool:
        """Whether a message of this size carries its dtype."""
        return tensor.nbytes <= LABELLED_BYTES or self.detail

    def failure(self, error: MPI.Exception, words: str) -> BaseException:
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            return MismatchError(f"{words}: the message sent is larger than the tensor")
        return self.channel.failure(error, lambda: words)

    def look_after(self, message: Message) -> None:
        """Test `message` in a thread until it is done."""
        with self.lock:
            self.watched.append(message)
            if self.watcher is None or not self.watcher.is_alive():
                self.watcher = threading.Thread(target=self.watch, name="mpi4py messages", daemon=True)
                self.watcher.start()

    def watch(self) -> None:
        while True:
            with self.lock:
                self.watched = [message for message in self.watched if not message.done]
                if not self.watched or self.channel.closed:
                    self.watcher = None
                    return
                watched = list(self.watched)
            for message in watched:
                message.is_completed()
            time.sleep(NAP)

    def drain(self, seconds: float) -> bool:
        """Wait until all sends have left; False, and their memory is kept, when some have not within
        `seconds`.
        """
        return self.settle(self.sends, seconds)

    def cancel_receives(self) -> None:
        """Cancel the receives for which no message has come; what MPI does not cancel keeps its memory."""
        waiting = [message for message in self.receives if not message.is_completed()]
        if self.channel.closed or MPI.Is_finalized():
            return
        for message in waiting:
            with message.testing:
                if message.request:
                    message.request.Cancel()
        self.settle(waiting, CANCEL_SECONDS)

    def settle(self, messages: list[Message], seconds: float) -> bool:
        if wait_until(lambda: all(message.is_completed() for message in list(messages)), seconds):
            return True
        keep_forever(list(messages))
        return False


def describe(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {tuple(tensor.shape)}"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
