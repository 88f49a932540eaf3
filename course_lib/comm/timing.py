"""Where to time what several ranks do together: more ranks than cores would share cores, and their times
would show the scheduler. `one_rank_per_core` returns a communicator with one rank per core.
"""

from __future__ import annotations

import os
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
