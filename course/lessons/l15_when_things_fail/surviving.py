"""A data-parallel training whose survivors go on after a rank has died: the program that each rank runs.

    mpiexec --with-ft ulfm -n 3 python -m mpi4py -m ….surviving VICTIM STEPS DIES_AT FOLDER

Rank VICTIM kills itself in step DIES_AT, if that is not negative. Each rank notes its steps in a file in
FOLDER. The model is a linear one, so that a step takes no time. The global batch of a step is the same on any
number of ranks: so are the losses.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
from mpi4py import MPI

from course_lib.comm.survivors import all_done, is_failure, without_the_dead
from course_lib.theory.partition import even_range
from mpi_classroom.job_output import event_file

FEATURES, BATCH, LEARNING_RATE = 8, 240, 0.05


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The global batch of a step: inputs (B, F) and targets (B,)."""
    rng = np.random.default_rng(step)
    inputs = rng.standard_normal((BATCH, FEATURES))
    return inputs, inputs @ np.arange(1.0, FEATURES + 1) + 0.1 * rng.standard_normal(BATCH)


def local_part(comm: MPI.Intracomm, weights: np.ndarray, step: int) -> np.ndarray:
    """This rank's part of the gradient (F,) and, behind it, of the loss; all parts add up to the whole."""
    inputs, targets = batch_of(step)
    mine = even_range(BATCH, comm.size, comm.rank)
    rows = slice(mine.start, mine.stop)
    errors = inputs[rows] @ weights - targets[rows]
    return np.append(2 * errors @ inputs[rows], errors @ errors) / BATCH


def train(comm: MPI.Intracomm, steps: int, dies_at: int, file: IO[str]) -> MPI.Intracomm:
    """Train on the ranks that live, and return their communicator; this rank dies in step `dies_at`."""
    comm.Set_errhandler(MPI.ERRORS_RETURN)  # failures raise; by default they end the job
    weights, step = np.zeros(FEATURES), 0
    while step < steps:
        start, done = time.monotonic(), True
        if step == dies_at:
            note(file, dies=step)
            os.kill(os.getpid(), signal.SIGKILL)
        total = local_part(comm, weights, step)
        try:
            comm.Allreduce(MPI.IN_PLACE, total)
        except MPI.Exception as error:
            if not is_failure(error):
                raise
            done = False
            note(file, noticed=step)
        if not all_done(comm, done):  # the weights are still those before the step, on all ranks
            comm = without_the_dead(comm)
            note(file, shrunk=comm.size)
            continue
        weights -= LEARNING_RATE * total[:-1]
        note(file, step=step, ranks=comm.size, loss=float(total[-1]), seconds=time.monotonic() - start)
        step += 1
    return comm


def note(file: IO[str], **what: Any) -> None:
    """Write an event with its time."""
    file.write(json.dumps({"at": time.monotonic(), **what}) + "\n")
    file.flush()


def main(victim: str, steps: str, dies_at: str, folder: str) -> None:
    """A rank of the job."""
    comm: MPI.Intracomm = MPI.COMM_WORLD.Dup()
    with open(event_file(Path(folder), comm.rank), "w") as file:
        shrunk = train(comm, int(steps), int(dies_at) if comm.rank == int(victim) else -1, file)
    if shrunk.size < comm.size:
        # Open MPI 5.0's MPI_Finalize may wait for the dead rank for ever (its issues 9434 and 11404).
        shrunk.Barrier()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
