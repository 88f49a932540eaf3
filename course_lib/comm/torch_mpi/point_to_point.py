"""send and recv: a request of MPI as a work object.

Both begin at once in the calling thread. A send owns its tensor until MPI is done with it, also when the
caller drops the work. MPI moves a message on whenever this process calls MPI; where a future is asked for, a
thread looks after it. Behind its values a small message carries the code of its dtype, which the receiver
compares. A large one does not: one block of memory is copied by the receiver alone, while the sender computes
on. With TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks, all carry it.
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

from course_lib.comm.polling import LONGEST_NAP, SHORT_NAP, wait_until

from .buffers import LABEL_BYTES, labelled, plain_like, readable, whole
from .channel import Channel
from .checks import DTYPE_CODE, DTYPES
from .errors import BrokenGroupError, CollectiveTimeoutError, MismatchError
from .work import Outcome

NAP = 5e-4
LARGE = 2**20  # bytes from which a message comes in many parts
LABELLED_BYTES = 4096  # up to here MPI sends a message at once, label and all


class Message(Outcome):
    """A send or receive under way. `finish(status)` runs once, when it is done."""

    def __init__(
        self,
        post: "PostBox",
        request: MPI.Request,
        tensor: torch.Tensor,
        story: str,
        finish: Callable[[MPI.Status], None],
    ) -> None:
        super().__init__([tensor])
        self.post, self.request, self.story, self.finish = post, request, story, finish
        self.tensor_bytes = tensor.nbytes
        self.status = MPI.Status()
        self.source = -1
        self.read: object = None
        self.testing = threading.Lock()  # MPI forbids two tests of one request at a time

    def is_completed(self) -> bool:
        if not self.done and self.testing.acquire(blocking=False):
            try:
                self.test()
            finally:
                self.testing.release()
            if self.done:
                self.announce()
        return self.done

    def test(self) -> None:
        """Look once; the caller holds `testing`."""
        if self.done:
            return
        try:
            if self.post.channel.broken:
                self.post.channel.check_open()
            if not self.request.Test(self.status):
                return
            self.finish(self.status)
        except MPI.Exception as error:
            self.error = self.post.failure(error, self.story)
            self.error.__cause__ = error
        except (MismatchError, BrokenGroupError) as error:
            self.error = error
        with self.guard:
            self.done = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = timeout.total_seconds() if timeout else 0.0
        seconds = seconds if seconds > 0 else self.post.channel.seconds
        nap = SHORT_NAP if self.tensor_bytes > LARGE else LONGEST_NAP
        if not self.is_completed() and not wait_until(self.is_completed, seconds, nap):
            raise CollectiveTimeoutError(f"{self.story} is not done after {seconds:g} s")
        if self.error:
            raise self.error
        return True

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def get_future(self) -> "torch.futures.Future[Any]":
        self.post.look_after(self)
        return super().get_future()


class PostBox:
    """The messages of one group that are under way."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self.sent: list[Message] = []  # sends whose tensors MPI may still read
        self.watched: list[Message] = []
        self.lock = threading.Lock()
        self.watcher: threading.Thread | None = None

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Message:
        self.check(tensor, tag)
        plain, label = readable(tensor), np.array([DTYPE_CODE[tensor.dtype]])
        with labelled(plain, label) if self.labels(tensor) else whole(plain) as spec:
            request = self.start(lambda: self.channel.mail.Isend(spec, to, tag))
        story = f"send of {describe(tensor)} to rank {to}, tag {tag}"
        message = Message(self, request, tensor, story, lambda status: None)
        message.read = (plain, label)  # what MPI reads lives as long as the message
        if not message.is_completed():
            with self.lock:
                self.sent = [other for other in self.sent if not other.is_completed()] + [message]
        return message

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Message:
        """`source` may be MPI.ANY_SOURCE."""
        self.check(tensor, tag)
        plain, label = plain_like(tensor, read=False), np.array([DTYPE_CODE[tensor.dtype]])
        with labelled(plain, label) if self.labels(tensor) else whole(plain) as spec:
            request = self.start(lambda: self.channel.mail.Irecv(spec, source, tag))
        who = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        story = f"recv of {describe(tensor)} from {who}, tag {tag}"

        def finish(status: MPI.Status) -> None:
            message.source = status.source
            got = status.Get_elements(MPI.BYTE) - LABEL_BYTES * self.labels(tensor)
            if got != plain.nbytes:
                raise MismatchError(f"{story}: rank {status.source} sent {got} bytes, not {plain.nbytes}")
            if label[0] != DTYPE_CODE[tensor.dtype]:
                raise MismatchError(f"{story}: rank {status.source} sent {name_of(DTYPES[label[0]])}")
            if plain is not tensor:
                tensor.detach().copy_(plain)

        message = Message(self, request, tensor, story, finish)
        return message

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

    def start(self, begin: Callable[[], MPI.Request]) -> MPI.Request:
        try:
            return begin()
        except MPI.Exception as error:
            raise self.failure(error, "the start of a message") from error

    def failure(self, error: MPI.Exception, story: str) -> Exception:
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            return MismatchError(f"{story}: the message sent is larger than the tensor")
        return self.channel.failure(error, lambda: story)

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
        """Wait until all sends have left; False when some have not within `seconds`."""
        return wait_until(lambda: all(message.is_completed() for message in list(self.sent)), seconds)


def describe(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {tuple(tensor.shape)}"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
