"""Training by a plan on the ranks of a notebook or of an exercise: bytes, seconds, and the loss of each step.

    run_plan(comm, shape, 16, Plan(data=4, zero=1))     {"nbytes": …, "seconds": …}, the same on every rank
    losses_of(comm, shape, 16, plan, steps=3)           what one process finds, too, up to rounding

`course_lib/parallel/planned.py` has the trainings.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from mpi4py import MPI

from course_lib.comm.timing import seconds_of_each
from course_lib.parallel.planned import Grid, Training, global_loss, grid_of, peak_nbytes, prepare
from course_lib.theory.planner.models import Shape
from course_lib.theory.planner.plan import Plan
from mpi_classroom.launch import job_folder


@dataclass(frozen=True, slots=True)
class Run:
    """The most bytes of tensors on a rank within a step, seconds per step, and the loss before each step."""

    nbytes: float
    seconds: float
    losses: tuple[float, ...]


def run_plan(
    comm: MPI.Intracomm, shape: Shape, batch: int, plan: Plan, *, steps: int = 7
) -> dict[str, float]:
    """What `train` found, "nbytes" and "seconds", without the losses: plain numbers for the notebook."""
    found = train(comm, shape, batch, plan, steps=steps)
    return {"nbytes": found.nbytes, "seconds": found.seconds}


def train(comm: MPI.Intracomm, shape: Shape, batch: int, plan: Plan, *, steps: int) -> Run:
    """Train by `plan`, which takes all ranks of `comm`: two steps, then `steps` that are timed.

    The bytes are counted in the second step, on the rank that holds most; the seconds are the median, each on
    the slowest rank. Every rank has the same result. Raises ValueError when the plan takes another number of
    ranks.
    """
    parts: list[float] = []  # of the losses: this rank's
    with training_of(comm, shape, batch, plan) as (grid, training):

        def step() -> float:
            parts.append(training.step())
            return parts[-1]

        nbytes = comm.allreduce(peak_nbytes(replace(training, step=step)), MPI.MAX)
        seconds = statistics.median(seconds_of_each(comm, step, steps))
        losses = tuple(global_loss(grid, part) for part in parts)
    return Run(float(nbytes), seconds, losses)


def losses_of(comm: MPI.Intracomm, shape: Shape, batch: int, plan: Plan, *, steps: int) -> list[float]:
    """The loss of the global batch before each of `steps` steps by `plan`, on all ranks of `comm`."""
    with training_of(comm, shape, batch, plan) as (grid, training):
        return [global_loss(grid, training.step()) for _ in range(steps)]


@contextmanager
def training_of(comm: MPI.Intracomm, shape: Shape, batch: int, plan: Plan) -> Iterator[tuple[Grid, Training]]:
    """This rank's part of a training by `plan`, with one thread, and a folder for what the plan offloads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    grid = grid_of(comm, plan)
    try:
        with tempfile.TemporaryDirectory(dir=job_folder()) as folder, on_a_core(grid):
            yield grid, prepare(grid, shape, batch, plan, Path(folder))
    finally:
        torch.set_num_threads(threads)
        for axis in grid.values():
            axis.Free()


@contextmanager
def on_a_core(grid: Grid) -> Iterator[None]:
    """Keep this rank on one core: ranks of one stage, which compute at the same time, on different ones.

    Where ranks share cores, the system may leave both ranks of a stage on one core while the ranks that wait
    occupy another. The same step then takes up to twice as long, by luck. macOS lets no process choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores, place = os.sched_getaffinity(0), grid["pipeline"].rank
    for axis in ("data", "tiles", "tensor"):
        place = place * grid[axis].size + grid[axis].rank
    try:
        os.sched_setaffinity(0, {sorted(cores)[place % len(cores)]})
        yield
    finally:
        os.sched_setaffinity(0, cores)
