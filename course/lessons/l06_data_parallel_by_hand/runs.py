"""What the ranks of lesson 06 run: a training step with the clock read around the average of the "
"gradients."""

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

from course.lessons.l06_data_parallel_by_hand.fused import Fusion
from course_lib.comm.spans import Span, duration
from course_lib.comm.timing import seconds_on
from course_lib.comm.trace import Recorder
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import gradient_arrays, shard_batches
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.training.loop import shuffled_batches, summed_cross_entropy

Average = Callable[[MPI.Intracomm, Sequence[NDArray[Any]], int], object]


def trace_step(
    comm: MPI.Intracomm,
    average_gradients: Average,
    model: nn.Module,
    data: Dataset,
    *,
    batch_size: int,
    steps: int = 9,
) -> list[Span] | None:
    """When each rank computed, waited and transferred in a training step: the median one of `steps`.

    Spans of all ranks on rank 0; None on the others, and outside of `comm`. The weights stay as they are.
    """
    if comm == MPI.COMM_NULL:
        return None
    recorder, gradients, traces = Recorder(comm), gradient_arrays(model), []
    optimizer = SGD(model.parameters(), lr=0.0)
    order = shuffled_batches(len(data.train_labels), batch_size, seed=0)[:steps]
    for batch in shard_batches(comm, data.train_images, data.train_labels, order):
        comm.Barrier()
        with recorder.span("step"):
            optimizer.zero_grad(set_to_none=False)
            summed_cross_entropy(model(batch.inputs), batch.targets).backward()
            with recorder.span("average of gradients", kind="collective"):
                average_gradients(comm, gradients, batch.global_size)
            optimizer.step()
        if spans := recorder.gather():
            traces.append(spans)
    return sorted(traces, key=duration)[len(traces) // 2] if traces else None


def messages_and_seconds(comm: MPI.Intracomm, model: nn.Module, limit: int) -> Fusion | None:
    """The messages that sum the gradients of `model` with this fusion threshold; None outside of `comm`."""
    if comm == MPI.COMM_NULL:
        return None
    buckets = GradientBuckets(comm, model, overlap=False, bucket_bytes=limit)
    return Fusion(limit, len(buckets.buckets), seconds_on(comm, buckets.wait, repetitions=15) or 0.0)
