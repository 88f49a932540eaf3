"""send and recv: a request of MPI as a torch.distributed.Work.

The queue keeps every message, with its memory, until MPI is done with it or it is cancelled: the caller may
drop the work, stop waiting for it or be interrupted, and MPI still reads or writes. MPI advances a message
whenever this process calls MPI; where a future is asked for, a thread tests it (MPI_THREAD_MULTIPLE).

Behind its values a small message carries a label, the code of its dtype, which the receiver compares. A large
one does not: one contiguous block can be copied by the receiver straight from the sender's memory, without
the sender's help; two blocks could not. With TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks, all carry one.

Sends and small receives begin at once, unless an earlier receive that could take the same message still
waits. A large receive, or an empty one, begins when its message is there and its size is known, because Open
MPI 5.0 copies a large message whole, also past the end of a shorter receive (docs/decisions/0011). Until then
a thread looks for the message, so that its sender's `wait()` ends even if this process computes or is in a
collective.
"""

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from .announce import arriving, wait_for_ranks
from .channel import Channel, keep_forever
from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, MismatchError
from .tensors import (
    DTYPE_CODE,
    LABEL_BYTES,
    Spec,
    as_message,
    free_all,
    labelled,
    place_for,
    plain,
    write_back,
)
from .waiting import LONGEST_NAP, SHORT_NAP, wait_until
from .work import Outcome

NAP = 5e-4  # between two looks of the thread, for a future
LONG_NAP = 5e-3  # and for a message that has not come
CANCEL_SECONDS = 1.0  # MPI takes back a receive at once, unless its message has begun to arrive
LARGE = 2**20  # bytes from which waiting naps are short, as the message comes in many parts
UNLIKE = {  # what a receive raises when its tensor does not fit the message
    MPI.ERR_TRUNCATE: "the message sent is larger than the tensor",
    MPI.ERR_TYPE: "the message sent has another size or dtype than the tensor",  # MPICH
}
LARGEST_LABELLED = 4096  # bytes; up to here MPI sends a message at once, label and all
# Arbitrary high bits, which data practically never ends with.
LABEL_OF = {dtype: 0x3C9A71E5D0B60000 + code for dtype, code in DTYPE_CODE.items()}
DTYPE_OF = {label: dtype for dtype, label in LABEL_OF.items()}


class Message(Outcome):
    """A send or a receive under way."""

    def __init__(self, queue: "MessageQueue", tensor: torch.Tensor, values: torch.Tensor, words: str) -> None:
        super().__init__([tensor])
        self.queue, self.tensor, self.words = queue, tensor, words
        self.values = values  # plain: what MPI reads or writes
        self.label = np.array([LABEL_OF[tensor.dtype]])
        self.request = MPI.REQUEST_NULL
        self.started = False
        self.status = MPI.Status()
        self.source = -1
        self.testing = threading.Lock()  # MPI forbids two tests of one request at a time

    def start(self, post: Callable[[Spec], MPI.Request]) -> None:
        """Begin it, or note the error. The queue has it already: its memory stays, whatever happens.

        `deferred`: Ctrl-C is raised when it has begun, not between the call and the assignment.
        """
        try:
            with self.queue.channel.deferred:
                made: list[MPI.Datatype] = []
                self.request = post(self.buffer(made))
                self.started = True
                free_all(made)
        except BaseException as error:
            if self.started:  # it has begun; a signal handler raised
                raise
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def buffer(self, made: list[MPI.Datatype]) -> Spec:
        """What MPI reads or writes: the values, and the label where there is one."""
        if self.queue.has_label(self.tensor):
            return labelled(self.values, self.label, made)
        return as_message(self.values, made)

    def fail(self, error: BaseException) -> None:
        """End it with an error of MPI or of this process."""
        keep_forever(self)
        self.error = self.queue.failure(error, self.words)
        self.error.__cause__ = error if self.error is not error else None
        self.done = True

    def cancelled(self) -> ClosedGroupError:
        return ClosedGroupError(f"{self.words} was cancelled: the process group was destroyed")

    def finish(self) -> None:
        """Do what is left when MPI is done with it."""

    def is_completed(self) -> bool:
        if self.look():
            self.announce()
        return self.done

    def look(self) -> bool:
        """Whether it is done, without running the callbacks of its future."""
        if not self.done:
            with self.testing:
                self.test()
        return self.done

    def test(self) -> None:
        """Look once; the caller holds `testing`."""
        self.queue.begin_receives()  # of all: a peer may wait for them while this process waits for a send
        if self.done or not self.started:
            return
        try:
            self.queue.channel.check_open()
            # A request that is done is null, and its status is not to be asked for again.
            if self.request and not self.request.Test(self.status):
                return
            if self.status.Is_cancelled():
                raise self.cancelled()
            self.finish()
        except MPI.Exception as error:
            self.error = self.queue.failure(error, self.words)
            self.error.__cause__ = error
        except Exception as error:  # of whatever kind: the thread goes on to the other messages
            self.error = error
        if self.request:
            keep_forever(self)  # MPI is not done with it, and nobody will ask again
        self.done = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; CollectiveTimeoutError after `timeout`, and the message stays under way."""
        seconds = timeout.total_seconds() if timeout else 0.0
        seconds = seconds if seconds > 0 else self.queue.channel.seconds
        nap = SHORT_NAP if self.tensor.nbytes > LARGE else LONGEST_NAP
        if not self.look() and not wait_for_ranks(self.look, seconds, nap):  # callbacks run behind the wait
            raise CollectiveTimeoutError(f"{self.words} is not done after {seconds:g} s")
        self.announce()
        if self.error:
            raise self.error
        return True

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank  # the name that dist.recv calls

    def get_future(self) -> "torch.futures.Future[Any]":
        self.queue.look_after(self)
        return super().get_future()


class Receive(Message):
    """A receive from `sender`, which may be MPI.ANY_SOURCE."""

    def __init__(
        self, queue: "MessageQueue", tensor: torch.Tensor, words: str, sender: int, tag: int
    ) -> None:
        super().__init__(queue, tensor, place_for(tensor), words)  # into `tensor` itself if it is contiguous
        self.sender, self.tag = sender, tag
        self.elsewhere: torch.Tensor | None = None  # the message, where it does not fit or may have a label
        # At once only if values and label together are at most LARGEST_LABELLED: a message without a label is
        # longer, so what fits has one; and Open MPI does not write past a receive made of two blocks of
        # memory. Empty values make one block, so an empty tensor waits, too.
        self.waits_for_its_size = not 0 < tensor.nbytes <= LARGEST_LABELLED - LABEL_BYTES

    def begin_if_possible(self) -> None:
        """Begin it, if it need not wait for its message or the message is there."""
        channel = self.queue.channel
        try:
            channel.check_open()
            if not self.waits_for_its_size:
                self.start(lambda buffer: channel.mail.Irecv(buffer, self.sender, self.tag))
            elif channel.mail.Iprobe(self.sender, self.tag):
                self.start(self.receive_what_came)
                arriving[id(self)] = self
        except MPI.Exception as error:
            self.fail(error)
        except (BrokenGroupError, ClosedGroupError) as error:
            self.error, self.done = error, True

    def receive_what_came(self, buffer: Spec) -> MPI.Request:
        """Begin to receive the message that is there, in the tensor only if it is surely as long."""
        message = self.queue.channel.mail.Mprobe(self.sender, self.tag, self.status)
        came = self.status.Get_elements(MPI.BYTE)
        # A message of 4097 to 4104 bytes may be a small tensor with its label: receive it elsewhere first.
        surely = self.queue.has_label(self.tensor) or came > LARGEST_LABELLED + LABEL_BYTES
        if surely and came == self.expected_nbytes:
            return message.Irecv(buffer)
        self.elsewhere = torch.empty(came, dtype=torch.uint8)
        made: list[MPI.Datatype] = []
        request = message.Irecv(as_message(self.elsewhere, made))
        free_all(made)
        return request

    @property
    def expected_nbytes(self) -> int:
        """How long the message has to be, with its label."""
        return self.tensor.nbytes + LABEL_BYTES * self.queue.has_label(self.tensor)

    def finish(self) -> None:
        """Compare what came with what was asked for, and put it where the caller wants it."""
        tensor, self.source = self.tensor, self.status.source
        came, label = self.status.Get_elements(MPI.BYTE), int(self.label[0])
        if self.elsewhere is not None:
            label = int.from_bytes(self.elsewhere[-LABEL_BYTES:].numpy().tobytes(), sys.byteorder)
            has_label = label in DTYPE_OF
        else:  # a shorter message ends inside `values`, label and all, and self.label is untouched
            has_label = self.queue.has_label(tensor) and (label in DTYPE_OF or came < self.expected_nbytes)
        sent = came - LABEL_BYTES * has_label
        if sent != tensor.nbytes:
            raise MismatchError(f"{self.words}: rank {self.source} sent {sent} bytes, not {tensor.nbytes}")
        dtype = DTYPE_OF.get(label, tensor.dtype)
        if dtype != tensor.dtype:
            raise MismatchError(f"{self.words}: rank {self.source} sent {name_of(dtype)}")
        if self.elsewhere is not None:
            self.values = self.elsewhere[:sent].view(tensor.dtype)
        write_back(tensor, self.values)


class MessageQueue:
    """The messages of one group that are under way."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self.sends: list[Message] = []
        self.receives: list[Message] = []
        self.waiting: list[Receive] = []  # those that MPI does not know yet, in the order of the calls
        self.begin_lock = threading.Lock()
        self.watched: list[Message] = []
        self.list_lock = threading.Lock()
        self.watcher: threading.Thread | None = None

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Message:
        self.check(tensor, tag)
        words = f"send of {describe(tensor)} to rank {to}, tag {tag}"
        message = Message(self, tensor, plain(tensor), words)
        self.add(self.sends, message)
        message.start(lambda buffer: self.channel.mail.Isend(buffer, to, tag))  # mail: for messages alone
        if message.error:
            raise message.error
        return message

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Receive:
        """`source` may be MPI.ANY_SOURCE."""
        self.check(tensor, tag)
        who = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        words = f"recv of {describe(tensor)} from {who}, tag {tag}"
        message = Receive(self, tensor, words, source, tag)
        self.add(self.receives, message)
        with self.begin_lock:
            self.waiting.append(message)
        self.begin_receives()
        if message.error:
            raise message.error
        if not message.started:
            self.look_after(message)
        return message

    def begin_receives(self) -> None:
        """Begin the receives that can; none overtakes an earlier one that could take the same message."""
        if not self.waiting:
            return
        with self.begin_lock:
            still_waiting: list[Receive] = []
            senders: dict[int, set[int]] = {}  # of those that still wait, for each tag
            for receive in self.waiting:
                earlier = senders.setdefault(receive.tag, set())
                # an earlier one that waits blocks this one if both could take one message
                takes_from = earlier if receive.sender == MPI.ANY_SOURCE else {receive.sender, MPI.ANY_SOURCE}
                if not (receive.done or receive.started or earlier & takes_from):
                    receive.begin_if_possible()
                if not (receive.done or receive.started):
                    still_waiting.append(receive)
                    earlier.add(receive.sender)
            self.waiting[:] = still_waiting

    def add(self, messages: list[Message], new: Message) -> None:
        """Put `new` in the list, and take out what is done."""
        for message in list(messages):
            message.is_completed()  # outside the lock: a callback may send
        with self.list_lock:
            messages[:] = [message for message in messages if not message.done] + [new]

    def check(self, tensor: torch.Tensor, tag: int) -> None:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            raise TypeError(
                f"the mpi4py backend sends dense CPU tensors, not {tensor.layout} on {tensor.device}"
            )
        if tag < 0:
            raise ValueError(f"tag {tag} is negative; use 0 or more")
        self.channel.check_open()

    def has_label(self, tensor: torch.Tensor) -> bool:
        """Whether the message of `tensor` carries its dtype."""
        return tensor.nbytes <= LARGEST_LABELLED or self.detail

    def failure(self, error: BaseException, words: str) -> BaseException:
        kind = error.Get_error_class() if isinstance(error, MPI.Exception) else MPI.SUCCESS
        if kind in UNLIKE:
            return MismatchError(f"{words}: {UNLIKE[kind]}")
        return self.channel.failure(error, lambda: words)

    def look_after(self, message: Message) -> None:
        """Test `message` in a thread until it is done."""
        with self.list_lock:
            self.watched.append(message)
            if self.watcher is None or not self.watcher.is_alive():
                self.watcher = threading.Thread(target=self.watch, name="mpi4py messages", daemon=True)
                self.watcher.start()

    def watch(self) -> None:
        while True:
            time.sleep(NAP if any(message.future for message in list(self.watched)) else LONG_NAP)
            with self.list_lock:
                if not self.watched or self.channel.closed or MPI.Is_finalized():
                    self.watcher = None
                    return
                watched = list(self.watched)
            for message in watched:
                if self.channel.closed:
                    break
                if message.is_completed():
                    with self.list_lock:
                        self.watched.remove(message)

    def stop_watching(self, seconds: float) -> None:
        """Wait until the thread that tests messages, which ends when the channel is closed, has left MPI."""
        watcher = self.watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(seconds)

    def drain(self, seconds: float) -> bool:
        """Wait until all sends have left; False, and their memory is kept, when some have not within
        `seconds`.
        """
        return self.settle(self.sends, seconds)

    def cancel_receives(self) -> None:
        """Cancel the receives for which no message has come; what MPI does not cancel keeps its memory."""
        if self.channel.closed or MPI.Is_finalized():
            return
        waiting = [message for message in self.receives if not message.is_completed()]
        with self.begin_lock:
            for message in waiting:
                if not message.started:
                    message.error, message.done = message.cancelled(), True
        for message in waiting:
            with message.testing:
                if message.request:
                    message.request.Cancel()
        self.settle(waiting, CANCEL_SECONDS)

    def settle(self, messages: list[Message], seconds: float) -> bool:
        if not MPI.Is_finalized() and wait_until(
            lambda: all(message.is_completed() for message in list(messages)), seconds
        ):
            return True
        keep_forever(list(messages))
        return False


def describe(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {tuple(tensor.shape)}"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
