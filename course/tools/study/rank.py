"""A rank of a job of the study: `python -m course.tools.study.rank TASK`, under mpiexec.

TASK is JSON: {"data": ["load" or "draw", train images, test images], "cases": [...]}. Rank 0 prints a line
for each epoch and each case that is done, and a sign of life every second; the process that started the job
reads them.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from course.lessons.l07_ddp_on_mnist.study_results import Case, EpochRow
from course.tools.study.engines import Groups, engine
from course.tools.study.plan import DRAW, MARK
from course.tools.study.rates import make_optimizer
from course.tools.study.replay import measure_operations, replay_row
from course_lib.data.dataset import Dataset
from course_lib.data.drawn_digits import draw_digits
from course_lib.data.mnist import load_mnist
from course_lib.parallel.data_parallel import evaluate_shard, gather_metrics, shard_batches
from course_lib.training.loop import Batch, Step, fit, make_step, shuffled_batches, summed_cross_entropy
from course_lib.training.metrics import Report
from course_lib.training.models import build
from mpi_classroom.launch import available_cores
from mpi_classroom.processes import boot

SIGN_SECONDS = 1.0
WARM_UP = 5  # steps of a run that is thrown away: the first ones are slower


def send_report(comm: MPI.Intracomm, **message: object) -> None:
    """What rank 0 has to say to the process that started the job."""
    if comm.rank == 0:
        print(MARK + json.dumps(message), flush=True)


def dataset(source: str, train: int, test: int) -> Dataset:
    """So many drawn digits; or all that there are of MNIST or what stands in for it."""
    if source == DRAW:
        (images, labels), (test_images, test_labels) = draw_digits(train), draw_digits(test, test=True)
        return Dataset("Drawn digits", False, images, labels, test_images, test_labels)
    return load_mnist()


def first(data: Dataset, images: int) -> Dataset:
    """The same with so many images to train on."""
    have = len(data.train_labels)
    if images > have:
        raise ValueError(f"there are {have} images to train on, not {images}")
    return replace(data, train_images=data.train_images[:images], train_labels=data.train_labels[:images])


def with_signs(comm: MPI.Intracomm, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches; about once per second rank 0 says that it is alive."""
    said = 0.0
    for batch in batches:
        if time.monotonic() >= said + SIGN_SECONDS:
            said = time.monotonic()
            send_report(comm, alive=True)
        yield batch


def run_case(comm: MPI.Intracomm, case: Case, data: Dataset, number: int, groups: Groups) -> None:
    """Train as `case` says; report each epoch."""
    data, samples = first(data, case.images), case.images
    order = [
        shuffled_batches(samples, case.batch_size, seed=case.seed, epoch=epoch)
        for epoch in range(case.epochs)
    ]
    warm_up(comm, case, data, groups)
    sums, model = list[float](), build(case.model, seed=case.seed)
    step = make_case_step(comm, case, model, sums, groups)
    wall, cores = 0.0, all_cores(comm)
    for epoch, batches in enumerate(order, start=1):
        mine = shard_batches(comm, data.train_images, data.train_labels, batches)
        comm.Barrier()
        sums.clear()
        measured = fit(step, with_signs(comm, mine))
        score = evaluate_shard(comm, model, data.test_images, data.test_labels)
        seconds, report = phases(comm, measured.seconds, sums), gather_metrics(comm, measured, score)
        if report is not None:
            wall += report.seconds
            row = make_row(case, epoch, wall, report, seconds, cores)
            send_report(comm, case=number, row=asdict(row))


def make_case_step(
    comm: MPI.Intracomm, case: Case, model: nn.Module, sums: list[float], groups: Groups
) -> Step:
    """The training step of the case's engine; the loss it returns is that of the shard."""
    trained = engine(case.engine, comm, model, sums=sums, groups=groups)

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return trained.loss_factor * summed_cross_entropy(outputs, labels)

    step = make_step(trained.module, loss, make_optimizer(case, model.parameters()), trained.synchronize)
    return lambda batch: step(batch) / trained.loss_factor


def warm_up(comm: MPI.Intracomm, case: Case, data: Dataset, groups: Groups) -> None:
    """A few steps of a training that is thrown away: memory is touched, connections are made."""
    step = make_case_step(comm, case, build(case.model, seed=case.seed), [], groups)
    batches = shuffled_batches(case.images, case.batch_size, seed=case.seed)[:WARM_UP]
    fit(step, shard_batches(comm, data.train_images, data.train_labels, batches))


def phases(comm: MPI.Intracomm, epoch: float, sums: list[float]) -> dict[str, float]:
    """What an epoch's seconds went into, the mean of all ranks; `sums` are those of each sum. (collective)

    A sum ends on all ranks at the same time, but for what the last message takes. So the rank that came last
    was in it for the shortest time, and only to transfer; each other waited for it first.
    """
    mine = np.array(sums)
    transfer = np.empty_like(mine)
    comm.Allreduce(mine, transfer, MPI.MIN)
    seconds = [epoch - mine.sum(), (mine - transfer).sum(), transfer.sum()]
    means = np.sum(comm.allgather(seconds), axis=0) / comm.size
    return dict(zip(("compute", "wait", "transfer"), means.tolist(), strict=True))


def all_cores(comm: MPI.Intracomm) -> int:
    """The cores of the machines of all ranks. (collective)"""
    return sum(dict(comm.allgather((boot(), available_cores()))).values())


def make_row(
    case: Case, epoch: int, wall: float, report: Report, seconds: dict[str, float], cores: int
) -> EpochRow:
    """An epoch as a line of the results."""
    return EpochRow(
        **asdict(case),
        epoch=epoch,
        epoch_seconds=report.seconds,
        wall_seconds=wall,
        compute_seconds=seconds["compute"],
        wait_seconds=seconds["wait"],
        transfer_seconds=seconds["transfer"],
        train_loss=sum(report.losses) / len(report.losses),
        test_loss=report.score.mean_loss,
        test_accuracy=report.score.accuracy,
        cores=cores,
    )


def main(task: str) -> None:
    """Run the cases of `task`, one after the other, on all ranks."""
    comm, asked = MPI.COMM_WORLD, json.loads(task)
    cases = [Case(**case) for case in asked["cases"]]
    torch.set_num_threads(cases[0].threads)
    send_report(comm, ready=comm.size)
    data = dataset(*asked["data"])
    operations, groups = None, Groups(comm)
    for number, case in enumerate(cases):
        send_report(comm, case=number, begun=True)
        if case.replayed:
            operations = operations or measure_operations(comm)
            row = replay_row(comm, case, first(data, case.images), operations)
            send_report(comm, case=number, row=asdict(row))
        else:
            run_case(comm, case, data, number, groups)
        send_report(comm, case=number, done=True)
    groups.close()


if __name__ == "__main__":
    main(sys.argv[1])
