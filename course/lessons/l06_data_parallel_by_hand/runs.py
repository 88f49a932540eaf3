"""What the ranks of lesson 06 run: a training step with the clock read around the average of the "
"gradients."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

from course.lessons.l06_data_parallel_by_hand.results import Fusion, Run
from course_lib.comm.spans import Span, duration
from course_lib.comm.timing import seconds_on
from course_lib.comm.trace import Recorder
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import (
    broadcast_weights,
    evaluate_shard,
    flatten,
    gradient_arrays,
    replicas_agree,
    shard_batches,
    weight_hash,
)
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.training.loop import Batch, make_step, shuffled_batches, summed_cross_entropy
from course_lib.training.metrics import Score
from course_lib.training.models import build

Batches = Sequence[NDArray[np.int64]]
Train = Callable[[MPI.Intracomm, Batches], tuple[nn.Module, NDArray[np.float64]]]
Average = Callable[[MPI.Intracomm, Sequence[NDArray[Any]], int], object]


def step_alone(comm: MPI.Intracomm, batch: Batch) -> tuple[str, str]:
    """The weight hashes after a broadcast, and after a step along the gradient of our `batch` alone."""
    model = build("cnn", seed=comm.rank)
    broadcast_weights(comm, model)
    before = weight_hash(model)
    make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.05))(batch)
    return before, weight_hash(model)


def weights_on(comm: MPI.Intracomm, n: int, train: Train, batches: Batches) -> torch.Tensor | None:
    """All weights (n,) after `train` on the first `n` ranks of `comm`; None on the others."""
    team = comm.Split(0 if comm.rank < n else MPI.UNDEFINED, comm.rank)
    if team == MPI.COMM_NULL:
        return None
    model, _ = train(cast(MPI.Intracomm, team), batches)
    return flatten(list(model.parameters()))


def timed(comm: MPI.Intracomm, train: Train, batches: Batches, data: Dataset) -> Run | None:
    """Call `train(comm, batches)` on all ranks; seconds, losses and test score. None outside of `comm`."""
    if comm == MPI.COMM_NULL:
        return None
    comm.Barrier()
    start = MPI.Wtime()
    model, losses = train(comm, batches)
    comm.Barrier()
    seconds = MPI.Wtime() - start
    scores = comm.allgather(evaluate_shard(comm, model, data.test_images, data.test_labels))
    agree = replicas_agree(comm, model)
    return Run(comm.size, seconds, tuple(losses.tolist()), sum(scores, Score()).accuracy, agree)


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
