"""Timing what several ranks do together.

All ranks run once to warm up, start together after a barrier, and are done when the slowest is. More ranks
than cores would share cores, and their times would show the scheduler; `one_rank_per_core` returns a
communicator with one rank per core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def available_cores() -> int:
    """Cores this process may use: its affinity mask, and the quota of its container where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def one_rank_per_core(comm: MPI.Intracomm, cores: int | None = None) -> MPI.Comm:
    """A communicator with the first ranks of `comm`, one per core; COMM_NULL on the other ranks."""
    from mpi4py import MPI

    fits = comm.rank < (available_cores() if cores is None else cores)
    return comm.Split(0 if fits else MPI.UNDEFINED, comm.rank)


def seconds_of_each(comm: MPI.Comm, work: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of `times` runs of `work()` on the slowest rank of `comm`; no warm-up.

    All ranks wait for each other before each run, which is not timed. They exchange their times after the
    last run, so only a barrier comes between two runs.
    """
    from mpi4py import MPI

    seconds = []
    for _ in range(times):
        comm.Barrier()
        start = MPI.Wtime()
        work()
        seconds.append(MPI.Wtime() - start)
    return [max(run) for run in zip(*comm.allgather(seconds), strict=True)]
