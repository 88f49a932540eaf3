"""An epoch on more ranks than there are cores, put together from operations that were measured one by one.

    measured     on two ranks: many training steps without communication, on a shard of the size that n ranks
                 would have; messages and sums between the two
    predicted    one ring all-reduce of the gradients on n ranks, by the cost model fitted to these
    replayed     step by step: each of n ranks draws a time of computing, and the step ends one all-reduce
                 after the last of them

It is no measurement, and is labelled so. What it leaves out: memory bandwidth and caches that n busy cores
share (two were busy here), and slow spells that hit all ranks at once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from course.lessons.l07_ddp_on_mnist.study_results import Case, EpochRow
from course.tools.study.rates import make_optimizer
from course_lib.comm.ping_pong import measure_ping_pong
from course_lib.data.dataset import Dataset
from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost
from course_lib.theory.hockney import MeasuredMachine
from course_lib.training.loop import image_batch, make_step, summed_cross_entropy
from course_lib.training.models import build, parameter_count
from mpi_classroom.launch import available_cores

STEPS_MEASURED = 60
MESSAGE_SIZES = tuple(2**power for power in range(2, 23, 2))  # 4 B to 4 MiB


@dataclass(frozen=True, slots=True)
class Replay:
    """Seconds of an epoch of n ranks: of all, and the mean of a rank in each kind."""

    epoch_seconds: float
    compute_seconds: float
    wait_seconds: float
    transfer_seconds: float


def replay(
    step_seconds: Sequence[float], allreduce_seconds: float, *, ranks: int, steps: int, seed: int
) -> Replay:
    """`steps` steps of `ranks` ranks, whose computing takes one of `step_seconds`, by chance, in each."""
    drawn = np.random.default_rng([seed, ranks]).choice(np.asarray(step_seconds), size=(steps, ranks))
    slowest = drawn.max(axis=1)
    compute, transfer = float(drawn.mean(axis=1).sum()), steps * allreduce_seconds
    return Replay(float(slowest.sum()) + transfer, compute, float(slowest.sum()) - compute, transfer)


def measure_operations(comm: MPI.Intracomm) -> MeasuredMachine:
    """How long messages and sums take between two ranks, while both are awake."""
    measured = measure_ping_pong(comm, MESSAGE_SIZES, repetitions=5)
    return comm.bcast(measured.machine() if measured else None)


def measure_steps(comm: MPI.Intracomm, case: Case, data: Dataset) -> list[float]:
    """Seconds of training steps without communication on the largest shard; those of all ranks of `comm`."""
    size = -(-case.batch_size // case.ranks)
    model = build(case.model, seed=case.seed)
    optimizer = make_optimizer(case, model.parameters())
    step = make_step(model, summed_cross_entropy, optimizer)
    rng = np.random.default_rng(case.seed)

    def one() -> None:
        indices = rng.integers(len(data.train_labels), size=size)  # loading the batch is a part of the step
        step(image_batch(data.train_images, data.train_labels, indices, case.batch_size))

    for _ in range(5):
        one()
    comm.Barrier()  # from here on all of them compute, and none waits
    moments = [MPI.Wtime()]
    for _ in range(STEPS_MEASURED):
        one()
        moments.append(MPI.Wtime())
    return [end - start for times in comm.allgather(moments) for start, end in pairwise(times)]


def replay_row(comm: MPI.Intracomm, case: Case, data: Dataset, machine: MeasuredMachine) -> EpochRow:
    """The replayed epoch of `case`; all ranks of `comm` take part in measuring."""
    seconds = measure_steps(comm, case, data)
    nbytes = 4 * parameter_count(build(case.model, seed=case.seed))
    transfer = predict_seconds(ring_allreduce_cost(case.ranks, nbytes), machine)
    steps = -(-case.images // case.batch_size)
    replayed = replay(seconds, transfer, ranks=case.ranks, steps=steps, seed=case.seed)
    return EpochRow(
        **asdict(case),
        **asdict(replayed),
        epoch=1,
        wall_seconds=replayed.epoch_seconds,
        train_loss=None,
        test_loss=None,
        test_accuracy=None,
        cores=available_cores(),
    )
