"""A job in which one rank fails while the others wait for it: the program that each rank runs.

    python -m mpi4py -m course.lessons.l15_when_things_fail.failing HOW GUILTY DEADLINE FOLDER

A step is computing and an all-reduce. In the third step rank GUILTY fails. Each rank notes what it does, and
when, in a file of its own in FOLDER; on SIGUSR1 it writes its Python stack there. `jobs.py` starts this
program and reads both.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from mpi4py import MPI

from course_lib.comm.polling import wait_for
from mpi_classroom.job_output import event_file

STEPS, FAILS_IN = 4, 2
COMPUTE_SECONDS = 0.2


def compute(seconds: float) -> None:
    """A computation: it only takes time."""
    time.sleep(seconds)


def raises(_: float) -> None:
    """An exception that nobody catches."""
    raise ValueError("a batch of 0 images; check the sampler")


def hangs(_: float) -> None:
    """Waits for what never comes: here for a file of data."""
    while not Path("no such file").exists():
        time.sleep(0.01)


def is_slow(deadline: float) -> None:
    """Takes long, but less than the others' timeout."""
    compute(0.7 * deadline)


def dies(_: float) -> None:
    """Is killed, as by the operating system when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES: dict[str, Callable[[float], None]] = {
    "raises": raises,
    "hangs": hangs,
    "is slow": is_slow,
    "dies": dies,
}


def note(file: IO[str], what: str, words: str = "") -> None:
    """From now on this rank does `what`."""
    file.write(json.dumps({"at": time.monotonic(), "what": what, "words": words, "pid": os.getpid()}) + "\n")
    file.flush()


def all_reduce(comm: MPI.Intracomm, step: int, deadline: float, file: IO[str]) -> None:
    """An all-reduce that a rank gives up after `deadline` seconds."""
    gradient, total = np.ones(1000), np.empty(1000)
    note(file, "wait")
    try:
        wait_for(
            comm.Iallreduce(gradient, total), deadline, f"rank {comm.rank}: the all-reduce of step {step}"
        )
    except TimeoutError as late:
        note(file, "notices", str(late))
        raise


def main(how: str, guilty: str, deadline: str, folder: str) -> None:
    """A rank of the job."""
    comm, seconds = MPI.COMM_WORLD, float(deadline)
    own_events, own_stack = event_file(Path(folder), comm.rank), Path(folder) / f"stack-{comm.rank}"
    with own_events.open("w") as file, own_stack.open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        comm.Barrier()
        for step in range(STEPS):
            note(file, "compute")
            compute(COMPUTE_SECONDS)
            if step == FAILS_IN and comm.rank == int(guilty):
                note(file, "fails")
                FAILURES[how](seconds)
            all_reduce(comm, step, seconds, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
