"""Images per second of several ranks that train one model together, one thread each.

The step is the one of lesson 06: every rank computes the gradients of its part of the batch, and one
Allreduce adds them up. It is timed like the threads of `baselines.py`.
"""

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch.optim import SGD

from course.lessons.l05_training_one_process.trials import Baseline
from course_lib.comm.timing import seconds_on
from course_lib.parallel.data_parallel import GradientBucket
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.models import build


def rank_baselines(
    comm: MPI.Intracomm, names: Sequence[str], *, batch_size: int = 128, repetitions: int = 10
) -> list[Baseline] | None:
    """One baseline per model: all ranks of `comm` share each batch of `batch_size` random images.

    The ranks' parts differ by at most one image. None outside of `comm`.
    """
    if comm == MPI.COMM_NULL:
        return None
    mine = batch_size // comm.size + (comm.rank < batch_size % comm.size)
    batch = Batch(torch.rand(mine, 1, 28, 28), torch.arange(mine) % 10, batch_size)
    seconds = [seconds_per_step(comm, name, batch, repetitions) for name in names]
    return [
        Baseline(name, 1, batch_size / each, comm.size) for name, each in zip(names, seconds, strict=True)
    ]


def seconds_per_step(comm: MPI.Intracomm, name: str, batch: Batch, repetitions: int) -> float:
    """Seconds of a training step of the model `name` on the slowest rank, the median; `batch` is our part."""
    model = build(name, seed=0)
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.0), lambda: bucket.sum(comm))
    seconds = seconds_on(comm, lambda: step(batch), repetitions=repetitions)
    assert seconds is not None  # we are in `comm`
    return seconds
