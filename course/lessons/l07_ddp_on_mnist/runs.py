"""Measuring on ranks for lesson 07: ways to take a step, accuracy, threads against ranks, images per second.

DDP starts the sum of a bucket while backward still works on earlier layers, so a part of its time hides in
that of backward. So every way is measured twice: as it is; and with a hook that lets backward wait for every
sum, so that nothing overlaps and the Recorder sees when each rank arrived.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import torch_mpi4py
from course.lessons.l07_ddp_on_mnist.step_times import BY_HAND, DDP_GLOO, DDP_MPI, StepTime, spread_of
from course.lessons.l07_ddp_on_mnist.threaded import threaded_gradients
from course_lib.comm.spans import KINDS, Span, totals
from course_lib.comm.timing import one_rank_per_core, seconds_of_each, seconds_on
from course_lib.comm.trace import Recorder
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import GradientBucket, evaluate_shard, shard_batches
from course_lib.parallel.ddp import Future, process_group, summing_ddp
from course_lib.training.loop import (
    Batch,
    Step,
    SummedLoss,
    fit,
    image_batch,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import build

# ---------------------------------------------------------------- by hand, DDP over Gloo, DDP over MPI

SUM = "sum of gradients"
ROUNDS = 3  # every way is measured in each: a slow spell of the machine hits all of them


def sum_bucket_at_once(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    """A communication hook that waits for the sum, and notes from when to when."""
    with recorder.span(SUM, kind="collective"):
        dist.all_reduce(bucket.buffer())
    done: Future = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def time_ways(
    comm: MPI.Comm, data: Dataset, *, batch_size: int = 128, steps: int = 8
) -> list[StepTime] | None:
    """A training step of the CNN by hand, with DDP over Gloo, and with DDP over MPI, on all ranks of `comm`.

    The same global batches of `batch_size` images each way. On rank 0; None elsewhere. Ranks outside of
    `comm` return at once.
    """
    if comm == MPI.COMM_NULL:
        return None
    group = cast(MPI.Intracomm, comm)
    order = shuffled_batches(len(data.train_labels), batch_size, seed=0)[:steps]
    batches = list(shard_batches(group, data.train_images, data.train_labels, order))
    asis, parts = defaultdict[str, list[float]](list), defaultdict[str, list[dict[str, float]]](list)
    shares = defaultdict[str, list[float]](list)
    for _ in range(ROUNDS):
        for name, backend in ((BY_HAND, None), (DDP_GLOO, "gloo"), (DDP_MPI, torch_mpi4py.NAME)):
            seconds, share, found = time_way(group, backend, batches)
            asis[name] += seconds
            shares[name].append(share)
            parts[name] += found
    if group.rank > 0:
        return None
    return [step_time(name, group.size, asis[name], parts[name], fmean(shares[name])) for name in asis]


def time_way(
    comm: MPI.Intracomm, backend: str | None, batches: Sequence[Batch]
) -> tuple[list[float], float, list[dict[str, float]]]:
    """The seconds of every step as it is, and what the ranks had of a core meanwhile; then a step's parts.

    The parts are those of steps whose backward waits for every sum; they are on rank 0. `backend` is None for
    the way of lesson 06. The first step of each warms up and does not count.
    """
    if backend is None:
        return *plain_steps(comm, step_by_hand(comm), batches), traced_steps(comm, step_by_hand, batches)
    with process_group(comm, backend):
        return *plain_steps(comm, step_of_ddp(comm), batches), traced_steps(comm, step_of_ddp, batches)


def step_by_hand(comm: MPI.Intracomm, recorder: Recorder | None = None) -> Step:
    """A step of lesson 06: all gradients in one bucket, which is summed after backward."""
    model = build("cnn", seed=0)
    bucket = GradientBucket(model)

    def synchronize() -> None:
        with recorder.span(SUM, kind="collective") if recorder else nullcontext():
            bucket.sum(comm)

    return make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.0), synchronize)


def step_of_ddp(comm: MPI.Intracomm, recorder: Recorder | None = None) -> Step:
    """A step of DDP in the group that there is, as it is; with a `recorder`, backward waits for every sum."""
    model = build("cnn", seed=0)
    replica = DistributedDataParallel(model)
    if recorder:
        replica.register_comm_hook(recorder, sum_bucket_at_once)
    return make_step(replica, summed_cross_entropy, SGD(model.parameters(), lr=0.0))


def plain_steps(comm: MPI.Intracomm, step: Step, batches: Sequence[Batch]) -> tuple[list[float], float]:
    """Seconds of each step but the first, on the slowest rank; and the least that a rank had of a core."""
    queue = iter(batches)
    clock, processor = time.perf_counter(), time.process_time()
    seconds = seconds_of_each(comm, lambda: step(next(queue)), len(batches))[1:]
    share = (time.process_time() - processor) / (time.perf_counter() - clock)
    return seconds, min(1.0, comm.allreduce(share, MPI.MIN))


def traced_steps(
    comm: MPI.Intracomm, make: Callable[[MPI.Intracomm, Recorder], Step], batches: Sequence[Batch]
) -> list[dict[str, float]]:
    """Seconds of each step but the first in each kind of span, means of all ranks; on rank 0."""
    recorder = Recorder(comm)
    step = make(comm, recorder)
    found = [traced(recorder, step, batch) for batch in batches][1:]
    return [mean_of_ranks(totals(spans)) for spans in found if spans]


def traced(recorder: Recorder, step: Step, batch: Batch) -> list[Span] | None:
    """The spans of one step, which all ranks begin together; on rank 0."""
    recorder.comm.Barrier()
    with recorder.span("step"):
        step(batch)
    return recorder.gather()


def mean_of_ranks(seconds: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Of each kind, the mean of all ranks."""
    return {kind: fmean(mine[kind] for mine in seconds.values()) for kind in KINDS}


def step_time(
    name: str, ranks: int, seconds: Sequence[float], parts: Sequence[Mapping[str, float]], share: float
) -> StepTime:
    """All steps of one way, summed up."""
    compute, wait, transfer = (spread_of([step[kind] for step in parts]) for kind in KINDS)
    return StepTime(name, ranks, spread_of(seconds), compute, wait, transfer, share)


# ---------------------------------------------------------------- images, accuracy


def first_images(data: Dataset, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` training images, standardised (count, 1, 28, 28), and their labels (count)."""
    batch = image_batch(data.train_images, data.train_labels, np.arange(count), count)
    return batch.inputs, batch.targets


def test_accuracy(comm: MPI.Intracomm, model: nn.Module, data: Dataset) -> float:
    """The fraction of all test images that `model` gets right; each rank tests a part, all get the result."""
    score = evaluate_shard(comm, model, data.test_images, data.test_labels)
    return comm.allreduce(score.correct) / len(data.test_labels)


def accuracy_alone(
    data: Dataset, batch_size: int, *, samples: int = 20_000, epochs: int = 2, seed: int = 0
) -> float:
    """Train a new MLP in this process alone, in batches of `batch_size`; return its test accuracy."""
    model = build("mlp", seed=seed)
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.05, momentum=0.9))
    for epoch in range(epochs):
        order = shuffled_batches(samples, batch_size, seed=seed, epoch=epoch)
        fit(step, image_batches(data.train_images, data.train_labels, order))
    return test_accuracy(MPI.COMM_SELF, model, data)


# ---------------------------------------------------------------- threads against ranks

Replicas = Callable[[nn.Module, SummedLoss, Batch, int], float]


def time_threads_and_ranks(
    comm: MPI.Intracomm, model: nn.Module, batch: Batch, *, replicas: Replicas = threaded_gradients
) -> list[tuple[str, float]] | None:
    """Seconds of a training step on `batch`, by ways to use several cores; on rank 0, None elsewhere.

    One rank: its operators on one thread, then on a thread for every core; then `replicas` in threads. And
    one rank a core, with DDP over MPI. The weights stay as they are.
    """
    team, one = one_rank_per_core(comm), one_rank_per_core(comm, cores=1)
    before, seconds = torch.get_num_threads(), list[tuple[str, float | None]]()
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.0))
    if team == MPI.COMM_NULL:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gradients in another layout, which more threads may give
        for threads in dict.fromkeys((1, team.size)):
            torch.set_num_threads(threads)
            seconds.append(
                (f"1 rank, operators on {say_threads(threads)}", seconds_on(one, lambda: step(batch)))
            )
        torch.set_num_threads(1)
        work: Callable[[], object] = lambda: replicas(model, summed_cross_entropy, batch, team.size)  # noqa: E731
        seconds.append((f"1 rank, replicas in {say_threads(team.size)}", seconds_on(one, work)))
        mine = slice(team.rank, None, team.size)
        part = Batch(batch.inputs[mine], batch.targets[mine], batch.global_size)
        with process_group(cast(MPI.Intracomm, team), torch_mpi4py.NAME):
            step = make_step(summing_ddp(model), summed_cross_entropy, SGD(model.parameters(), lr=0.0))
            seconds.append((f"{team.size} ranks, DDP", seconds_on(team, lambda: step(part))))
    torch.set_num_threads(before)
    return [(name, time) for name, time in seconds if time is not None] if comm.rank == 0 else None


def say_threads(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


# ---------------------------------------------------------------- images per second


def images_per_second(
    comm: MPI.Comm,
    step: Step,
    batch: Batch,
    *,
    warm_up: int = 10,
    iterations: int = 10,
    batches: int = 10,
) -> list[float]:
    """This rank's images a second in each of `iterations`, after `warm_up` batches.

    The protocol of Horovod's `pytorch_synthetic_benchmark.py`: random images, the same batch again and
    again, one reading every `batches` batches. All ranks of `comm` begin together.
    """
    for _ in range(warm_up):
        step(batch)
    comm.Barrier()
    rates = []
    for _ in range(iterations):
        start = time.perf_counter()
        for _ in range(batches):
            step(batch)
        rates.append(batches * len(batch.targets) / (time.perf_counter() - start))
    return rates


def random_images(batch_size: int, *, global_size: int, seed: int) -> Batch:
    """Images (batch_size, 3, 32, 32) of noise with random labels: the numbers do not matter for the time."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    return Batch(images, torch.randint(10, (batch_size,), generator=generator), global_size)
