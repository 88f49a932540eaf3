"""When the buckets of a training step leave, and when they are back: for a picture of their overlap.

A bucket is *on its way* from the call that starts its sum to the look that finds it complete. That is not the
time that its bytes move: MPI moves them only while the rank is inside one of its calls.
"""

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import SGD

from course_lib.comm.spans import Span, duration
from course_lib.comm.trace import Recorder, Running
from course_lib.parallel.gradient_buckets import BUCKET_BYTES, Bucket, GradientBuckets
from course_lib.training.loop import Batch, summed_cross_entropy


class TracedBucket(Bucket):
    """A bucket that notes when it is on its way, as a span `bucket N` of the kind transfer."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], wire_dtype: torch.dtype | None, span: Running
    ) -> None:
        super().__init__(parameters, wire_dtype)
        self.span, self.on_its_way = span, False

    def start(self, comm: MPI.Intracomm) -> None:
        self.span.__enter__()
        super().start(comm)
        self.on_its_way = True

    def look(self) -> bool:
        there = super().look()
        if there and self.on_its_way:
            self.span.__exit__(None, None, None)
            self.on_its_way = False
        return there

    def finish(self, seconds: float, what: str) -> None:
        super().finish(seconds, what)
        self.look()


class TracedBuckets(GradientBuckets):
    """Gradient buckets that note in `recorder` when each of them is on its way."""

    def __init__(self, recorder: Recorder, model: nn.Module, *, bucket_bytes: int, overlap: bool) -> None:
        self.recorder, self.made = recorder, 0
        super().__init__(recorder.comm, model, bucket_bytes=bucket_bytes, overlap=overlap)

    def make_bucket(self, parameters: Sequence[nn.Parameter], wire_dtype: torch.dtype | None) -> Bucket:
        self.made += 1
        span = self.recorder.span(f"bucket {self.made - 1}", kind="transfer")
        return TracedBucket(parameters, wire_dtype, span)


def trace_buckets(
    comm: MPI.Intracomm,
    model: nn.Module,
    batch: Batch,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    overlap: bool = True,
    steps: int = 9,
) -> list[Span] | None:
    """The spans of a step on `batch`, this rank's shard: the median of `steps`. On rank 0; None elsewhere.

    `forward`, `backward`, `wait` and `update` follow each other; `bucket N` lies across them. The weights
    stay as they are. Ranks outside of `comm` return at once.
    """
    if comm == MPI.COMM_NULL:
        return None
    recorder = Recorder(comm)
    buckets = TracedBuckets(recorder, model, bucket_bytes=bucket_bytes, overlap=overlap)
    optimizer, traces = SGD(model.parameters(), lr=0.0), []
    for _ in range(steps):
        comm.Barrier()
        with recorder.span("forward"):
            optimizer.zero_grad()
            loss = summed_cross_entropy(model(batch.inputs), batch.targets) / batch.global_size
        with recorder.span("backward"):
            loss.backward()
        with recorder.span("wait", kind="wait"):
            buckets.wait()
        with recorder.span("update"):
            optimizer.step()
        if spans := recorder.gather():
            traces.append(spans)
    buckets.close()
    return sorted(traces, key=duration)[len(traces) // 2] if traces else None
