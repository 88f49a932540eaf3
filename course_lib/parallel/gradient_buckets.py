"""Gradient buckets whose sums start while backward still works: fused, and compressed if you like.

    backward     fc2 ──→ fc1 ──→ conv2 ──→ conv1          backward begins with the last layer
    bucket 0     [fc2 fc1.bias]→ · · · · · done
    bucket 1                [fc1.weight]→ · · · · done    the sum of a bucket starts when its last gradient is
    bucket 2                       [conv2 conv1]→ · done  there, and is waited for before the update

*Fusion*: neighbouring parameters share a bucket of up to `bucket_bytes`, so few messages carry many tensors.
*Overlap*: a hook on every parameter runs when its gradient is there. Hooks may fire in another order on
every rank; buckets leave in the same order on all of them, so that the sums of the same bucket meet.
*Compression*: a bucket travels as 16-bit numbers, half the bytes, and is wrong by their rounding.

Many MPI libraries move data only while some thread of the rank is inside one of their calls. So every hook
also looks at the buckets on their way: that is all the progress they make during backward.

Sergeev & Del Balso, "Horovod" (2018), fuse what is ready at the same time; Li and others, "PyTorch
Distributed" (2020), fuse once and for all, in reverse order of the parameters, as here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.polling import wait_for
from course_lib.parallel.data_parallel import equal_trainable_parameters, numbers
from course_lib.theory.partition import fused_ranges
from course_lib.training.flat import FlatGradients, check_unfrozen

BUCKET_BYTES = 2**19  # for models of a few MB; PyTorch takes 25 MiB, Horovod up to 128 MiB
TIMEOUT_SECONDS = 60.0
HALVES = (torch.float16, torch.bfloat16)
_lost: list[torch.Tensor] = []  # memory that MPI may still write to


def sum_when_ready(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
    """Overlap in its smallest form: start the sum of each gradient when backward has it.

    Returns the function that waits for all sums. Every rank has to use every parameter, in the same order,
    in one backward pass per step.
    """
    requests: list[MPI.Request] = []

    def start(parameter: Any) -> None:
        requests.append(comm.Iallreduce(MPI.IN_PLACE, numbers(parameter.grad)))

    for parameter in (each for each in model.parameters() if each.requires_grad):
        parameter.register_post_accumulate_grad_hook(start)

    def wait() -> None:
        for request in requests:
            request.Wait()
        requests.clear()

    return wait


class Bucket(FlatGradients):
    """Some parameters whose gradients are one flat buffer, and travel in one message."""

    def __init__(self, parameters: Sequence[nn.Parameter], wire_dtype: torch.dtype | None) -> None:
        super().__init__(parameters)
        self.message = self.flat if wire_dtype is None else torch.zeros_like(self.flat, dtype=wire_dtype)
        self.missing = set(parameters)
        self.request = MPI.REQUEST_NULL

    def start(self, comm: MPI.Intracomm) -> None:
        """Start the sum over `comm`; nobody may touch the gradients until `finish`."""
        self.collect()
        if self.message is not self.flat:
            self.message.copy_(self.flat)  # rounds
        self.request = comm.Iallreduce(MPI.IN_PLACE, *sent_as(self.message))

    def look(self) -> bool:
        """Whether the sum is there; lets MPI work on it."""
        return self.request.Test()

    def finish(self, seconds: float, what: str) -> None:
        """Wait for the sum, and leave it in the gradients."""
        wait_for(self.request, seconds, what)
        if self.message is not self.flat:
            self.flat.copy_(self.message)
        self.missing = set(self.parameters)


class GradientBuckets:
    """Sums the gradients of `model` over `comm` in buckets; all ranks make it together.

        buckets = GradientBuckets(comm, model)
        step = make_step(model, loss_fn, optimizer, buckets.wait)

    The gradients live in the buckets, to which they are copied after `optimizer.zero_grad()`. A gradient that
    a rank does not have counts as zeros; so all weights have one after `wait`, and weight decay and momentum
    act on them. Clear the gradients in every step, before backward: after `wait` they are sums.

    With `overlap`, buckets leave during backward; for several backward passes per step, set it to False for
    all but the last. `wire_dtype`: float16 or bfloat16, to halve the bytes. A wait longer
    than `timeout` seconds raises TimeoutError. The communicator is a duplicate: the caller's collectives may
    come in between.

    Parameters may be frozen later, on all ranks. ValueError in `wait` if one was unfrozen or converted to
    another dtype, and if a gradient was cleared or replaced while its sum was on its way.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        wire_dtype: torch.dtype | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        parameters = equal_trainable_parameters(comm, model, bucket_bytes=bucket_bytes, wire_dtype=wire_dtype)
        if bucket_bytes < 1 or wire_dtype not in (None, *HALVES):
            raise ValueError(
                f"bucket_bytes {bucket_bytes}, wire_dtype {wire_dtype}; give at least 1 byte, and "
                "torch.float16, torch.bfloat16 or None"
            )
        last_first = parameters[::-1]
        fused = fused_ranges([p.nbytes for p in last_first], bucket_bytes)
        self.comm, self.model, self.overlap, self.timeout = comm.Dup(), model, overlap, timeout
        self.buckets = [Bucket(last_first[r.start : r.stop], wire_dtype) for r in fused]
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self._left = 0  # how many buckets have left in this step
        self._hooks = [p.register_post_accumulate_grad_hook(self._ready) for p in last_first]

    def _ready(self, parameter: torch.Tensor) -> None:
        """The gradient of `parameter` is there: start what can start, in order."""
        if not self.overlap:
            return
        bucket = self._bucket_of[parameter]  # type: ignore[index]
        if parameter not in bucket.missing:
            raise ValueError(
                f"a second gradient of a parameter of shape {tuple(parameter.shape)} in one step; "
                "set `overlap` to False during all backward passes but the last"
            )
        bucket.missing.discard(parameter)
        for started in self.buckets[: self._left]:
            started.look()
        while self._left < len(self.buckets) and not self.buckets[self._left].missing:
            self._start_next()

    def _start_next(self) -> None:
        self.buckets[self._left].start(self.comm)
        self._left += 1

    def wait(self) -> None:
        """Wait until all gradients are the sums over all ranks; what has not left yet leaves now.

        Raises TimeoutError when a rank does not come; then these buckets cannot be used any more.
        """
        try:
            while self._left < len(self.buckets):
                self._start_next()
            for index, bucket in enumerate(self.buckets):
                bucket.finish(self.timeout, f"the sum of bucket {index} of {len(self.buckets)}")
        except BaseException:  # MPI still has the memory, whatever becomes of these buckets
            _lost.extend(bucket.message for bucket in self.buckets)
            raise
        self._left = 0
        for bucket in self.buckets:
            bucket.check()
        check_unfrozen(self.model, self._bucket_of)

    def close(self) -> None:
        """Take the hooks away and free the communicator; all ranks call it, between steps."""
        for hook in self._hooks:
            hook.remove()
        self.comm.Free()


# ---------------------------------------------------------------- 16-bit sums, which MPI does not have


def sent_as(message: torch.Tensor) -> tuple[Any, MPI.Op]:
    """The flat `message` as MPI sees it, and the operation that adds such messages."""
    if message.dtype in HALVES:
        return [message.view(torch.int16).numpy(), MPI.INT16_T], sum_of_halves(message.dtype)
    return message.numpy(), MPI.SUM


@cache
def sum_of_halves(dtype: torch.dtype) -> MPI.Op:
    """An MPI operation that takes 16-bit integers for numbers of `dtype` and adds them; made once."""

    def add(received: Any, total: Any, _: MPI.Datatype) -> None:
        if len(total):
            torch.frombuffer(total, dtype=dtype).add_(torch.frombuffer(received, dtype=dtype))

    return MPI.Op.Create(add, commute=True)
