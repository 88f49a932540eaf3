"""What the ranks of lesson 06 run: training on one rank and on several, and a step with the clock read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

from course.lessons.l06_data_parallel_by_hand.results import Fusion, Run
from course_lib.comm.polling import wait_for
from course_lib.comm.spans import Span, duration
from course_lib.comm.timing import seconds_of_each, seconds_on
from course_lib.comm.trace import Recorder
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import (
    broadcast_weights,
    evaluate_shard,
    gradient_arrays,
    replicas_agree,
    shard_batches,
    weight_hash,
)
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.parallel.parameter_server import Service
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, make_step, shuffled_batches, summed_cross_entropy
from course_lib.training.metrics import Score
from course_lib.training.models import build

Batches = Sequence[NDArray[np.int64]]
Started = tuple[nn.Module, list[NDArray[np.float32]], SGD]
Start = Callable[[MPI.Intracomm], Started]
Train = Callable[[MPI.Intracomm, Started, Batches], NDArray[np.float64]]
Average = Callable[[MPI.Intracomm, Sequence[NDArray[Any]], int], object]

BLOCK = 10  # steps that one team takes before the other one goes on
LONGEST_TURN = 250.0  # seconds that a rank sleeps while others take their block
FLUSHED = 2**25  # bytes that push the gradients out of a core's caches, as a backward pass does


def step_alone(comm: MPI.Intracomm, batch: Batch) -> tuple[str, str]:
    """The weight hashes after a broadcast, and after a step with the gradient of our `batch` alone."""
    model = build("cnn", seed=comm.rank)
    broadcast_weights(comm, model)
    before = weight_hash(model)
    make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.05))(batch)
    return before, weight_hash(model)


def weights_on(
    comm: MPI.Intracomm, n: int, start: Start, train: Train, batches: Batches
) -> torch.Tensor | None:
    """All weights (n,) after training in float64 on the first `n` ranks of `comm`; None on the others.

    Not in float32: rounding there can decide which pixel is the maximum of a pooling. Then the whole gradient
    of an image takes another way, and the weights end as far apart as after a mistake.
    """
    team = comm.Split(0 if comm.rank < n else MPI.UNDEFINED, comm.rank)
    if team == MPI.COMM_NULL:
        return None
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model, gradients, optimizer = start(cast(MPI.Intracomm, team))
    finally:
        torch.set_default_dtype(usual)
    model.register_forward_pre_hook(lambda _, inputs: tuple(each.double() for each in inputs))
    train(cast(MPI.Intracomm, team), (model, gradients, optimizer), batches)
    return flatten(list(model.parameters()))


def alternate(
    team: MPI.Intracomm, start: Start, train: Train, batches: Batches, data: Dataset
) -> tuple[Run | None, Run | None]:
    """Train on rank 0 of `team` alone and on all of `team`, in turns of `BLOCK` steps.

    What else runs on the cores therefore disturbs both alike. While rank 0 is alone, the other ranks sleep.
    The first result is None on all ranks but 0, both are None outside of `team`.
    """
    if team == MPI.COMM_NULL:
        return None, None
    alone = team.Split(0 if team.rank == 0 else MPI.UNDEFINED)
    runs = [Training(cast(MPI.Intracomm, members), start, train) for members in (alone, team) if members]
    for first in range(0, len(batches), BLOCK):
        for run in runs:
            if run.comm is team:
                wait_for(team.Ibarrier(), LONGEST_TURN, "the block of rank 0 alone")
            run.go_on(batches[first : first + BLOCK])
    done = [run.done(data) for run in runs]
    return (done[0] if team.rank == 0 else None), done[-1]


class Training:
    """A training on the ranks of `comm` that goes on block by block, with the seconds of each step."""

    def __init__(self, comm: MPI.Intracomm, start: Start, train: Train) -> None:
        self.comm, self.train, self.started = comm, train, start(comm)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def go_on(self, batches: Batches) -> None:
        """Train on the next global batches, and time each step: `train` ends when all ranks have."""
        self.comm.Barrier()
        for batch in batches:
            begin = MPI.Wtime()
            self.losses += self.train(self.comm, self.started, [batch]).tolist()
            self.seconds.append(MPI.Wtime() - begin)

    def done(self, data: Dataset) -> Run:
        """The seconds of the median step, the losses and the test score."""
        model = self.started[0]
        scores = self.comm.allgather(evaluate_shard(self.comm, model, data.test_images, data.test_labels))
        agree = replicas_agree(self.comm, model)
        accuracy = sum(scores, Score()).accuracy
        return Run(self.comm.size, median(self.seconds), tuple(self.losses), accuracy, agree)


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


def bare_average(comm: MPI.Intracomm, average_gradients: Average, model: nn.Module) -> float | None:
    """Seconds of `average_gradients` alone: the fastest of 20 that all ranks begin together.

    Before each, the gradients leave the caches, as in a step. None outside of `comm`.
    """
    if comm == MPI.COMM_NULL:
        return None
    gradients, flushed = gradient_arrays(model), np.zeros(FLUSHED, np.uint8)
    found = []
    for _ in range(20):
        flushed += 1
        found += seconds_of_each(comm, lambda: average_gradients(comm, gradients, 1), 1)
    return min(found)


def in_turn(
    comm: MPI.Intracomm, make: Callable[[str], Callable[[], object]], names: Sequence[str], *, rounds: int
) -> list[list[float]]:
    """Seconds of each `make(name)()`, called one after the other in every round; empty outside of `comm`."""
    if comm == MPI.COMM_NULL:
        return [[] for _ in names]
    works = [make(name) for name in names]
    for work in works:
        work()  # warm-up
    found = [[seconds_of_each(comm, work, 1)[0] for work in works] for _ in range(rounds)]
    return [list(seconds) for seconds in zip(*found, strict=True)]


def messages_and_seconds(comm: MPI.Intracomm, model: nn.Module, limit: int) -> Fusion | None:
    """The seconds of an Allreduce per bucket of `model`, of up to `limit` bytes; None outside of `comm`."""
    if comm == MPI.COMM_NULL:
        return None
    buckets = GradientBuckets(comm, model, overlap=False, bucket_bytes=limit)
    messages = [bucket.message.numpy() for bucket in buckets.buckets]

    def send() -> None:
        for message in messages:
            comm.Allreduce(MPI.IN_PLACE, message)

    seconds = seconds_on(comm, send, repetitions=30) or 0.0
    buckets.close()
    return Fusion(limit, len(messages), seconds)


def while_all_work(service: Service | None) -> Service | None:
    """The updates of `service` up to the first one that is a worker's last; None for None."""
    if service is None:
        return None
    last = {rank: index for index, rank in enumerate(service.order)}
    return replace(service, order=service.order[: min(last.values(), default=-1) + 1])
