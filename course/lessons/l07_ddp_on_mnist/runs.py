"""Where the time of a DDP step goes: waiting apart from transfer, operator by operator, images per second.

DDP starts the sum of a bucket while backward still works on earlier layers, so its time hides in that of
backward. To see it, the hook here lets backward wait for every sum: nothing overlaps, and the Recorder tells
when each rank arrived.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile

import torch_mpi4py
from course.lessons.l07_ddp_on_mnist.threaded import threaded_gradients
from course_lib.comm.spans import Span, duration
from course_lib.comm.timing import one_rank_a_core, seconds_on
from course_lib.comm.trace import Recorder
from course_lib.data.dataset import Dataset
from course_lib.parallel.ddp import Future, dealt_batches, process_group, summing_ddp
from course_lib.training.loop import (
    Batch,
    Step,
    SummedLoss,
    image_batch,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)

# ---------------------------------------------------------------- waiting and transfer


def sum_bucket_at_once(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    """A communication hook that waits for the sum, and notes from when to when."""
    with recorder.span("sum of gradients", kind="collective"):
        dist.all_reduce(bucket.buffer())
    done: Future = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def trace_ddp_step(
    comm: MPI.Intracomm, backend: str, model: nn.Module, data: Dataset, *, batch_size: int, steps: int = 9
) -> list[Span] | None:
    """When all ranks computed, waited and transferred in a DDP step: the median one of `steps`.

    On rank 0; None elsewhere. The weights stay as they are. Ranks outside of `comm` return at once.
    """
    if comm == MPI.COMM_NULL:
        return None
    order = shuffled_batches(len(data.train_labels), batch_size * (steps + 1), seed=0)[0]
    parts = dealt_batches(order, batch_size, rank=comm.rank, size=comm.size)
    batches = [image_batch(data.train_images, data.train_labels, *part) for part in parts]
    with process_group(comm, backend):
        recorder, replica = Recorder(comm), DistributedDataParallel(model)
        replica.register_comm_hook(recorder, sum_bucket_at_once)
        step = make_step(replica, summed_cross_entropy, SGD(model.parameters(), lr=0.0))
        traces = [traced(recorder, step, batch) for batch in batches][1:]  # the first one warms up
    found = [spans for spans in traces if spans]
    return sorted(found, key=duration)[len(found) // 2] if found else None


def traced(recorder: Recorder, step: Step, batch: Batch) -> list[Span] | None:
    """The spans of one step, which all ranks begin together; on rank 0."""
    recorder.comm.Barrier()
    with recorder.span("step"):
        step(batch)
    return recorder.gather()


# ---------------------------------------------------------------- operator by operator


def profile_step(step: Callable[[], object], *, warm_up: int = 3) -> list[tuple[str, int, float]]:
    """torch.profiler on one call of `step`: operator, calls, seconds in itself; the longest first."""
    for _ in range(warm_up):
        step()
    with without_stderr(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = profiler.key_averages()
    rows = [(event.key, int(event.count), 1e-6 * cast(float, event.self_cpu_time_total)) for event in events]
    return sorted(rows, key=lambda row: -row[2])


@contextmanager
def without_stderr() -> Iterator[None]:
    """Drop what C++ writes to standard error meanwhile: the profiler says there that it begins and ends."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


# ---------------------------------------------------------------- threads against ranks

Replicas = Callable[[nn.Module, SummedLoss, Batch, int], float]


def time_threads_and_ranks(
    comm: MPI.Intracomm, model: nn.Module, batch: Batch, *, replicas: Replicas = threaded_gradients
) -> list[tuple[str, float]] | None:
    """Seconds of a training step on `batch`, by ways to use several cores; on rank 0, None elsewhere.

    One rank: its operators on one thread, then on a thread for every core; then `replicas` in threads. And
    one rank a core, with DDP over MPI. The weights stay as they are.
    """
    team, one = one_rank_a_core(comm), one_rank_a_core(comm, cores=1)
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
