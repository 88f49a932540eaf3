"""Two jobs on one machine against one: the CPU analogue of several processes on one GPU."""

from collections.abc import Callable
from statistics import median
from typing import cast

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.polling import wait_for
from course_lib.comm.timing import available_cores

SECONDS, WINDOWS = 1.0, 5  # of each measurement; it is the median of so many parts
TIMEOUT_SECONDS = 120.0


def job(width: int, batch: int, side: int = 28) -> Callable[[], None]:
    """A training step of a small CNN, `width` channels wide, on `batch` random images of `side` pixels."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 1, side, side), torch.randint(10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def best_rate(step: Callable[[], None], images: int, seconds: float = SECONDS) -> float:
    """Images per second of a job that is alone: with one thread or with one per core, whichever is faster.

    Threads wait for each other in every operation. Where another program uses a core, that can take longer
    than the operation itself.
    """
    return max(rate(step, images, threads, seconds) for threads in {1, available_cores()})


def rate(step: Callable[[], None], images: int, threads: int, seconds: float = SECONDS) -> float:
    """Images per second of `step`, which processes `images`, on so many threads; their number is restored.

    The median of equal parts of the time, so that what disturbs one of them does not count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            step()
        return median(_steps_per_second(step, seconds / WINDOWS) for _ in range(WINDOWS)) * images
    finally:
        torch.set_num_threads(before)


def _steps_per_second(step: Callable[[], None], seconds: float) -> float:
    steps, begin = 0, MPI.Wtime()
    while MPI.Wtime() - begin < seconds:
        step()
        steps += 1
    return steps / (MPI.Wtime() - begin)


def one_and_two_jobs(comm: MPI.Intracomm, *, width: int, batch: int) -> dict[str, float] | None:
    """Images per second of one job that may use all cores, and of two jobs with half of the cores each.

    Ranks 0 and 1 of `comm` have the result; the others get None at once.
    """
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    if two == MPI.COMM_NULL:
        return None
    two = cast(MPI.Intracomm, two)
    step = job(width, batch)
    alone = best_rate(step, batch) if two.rank == 0 else 0.0
    wait_for(two.Ibarrier(), TIMEOUT_SECONDS, "the job that runs alone")  # rank 1 sleeps meanwhile
    together = rate(step, batch, max(1, available_cores() // 2))
    return {"one": two.bcast(alone), "two": two.allreduce(together)}


def by_batch(sides: tuple[int, ...], batches: tuple[int, ...], width: int = 8) -> dict[int, dict[int, float]]:
    """Images per second of a job that is alone, by the side of an image and the size of the batch."""
    return {
        side: {batch: best_rate(job(width, batch, side), batch, 0.5) for batch in batches} for side in sides
    }
