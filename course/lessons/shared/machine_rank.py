"""One rank of the job that `course machine` starts: it times operations and messages.

python -m mpi_classroom.launch 4 -m course.lessons.shared.machine_rank CORES
"""

import json
import sys
import time
from typing import Any, cast

import psutil
import torch
from mpi4py import MPI

from course.lessons.shared.call_times import call_seconds
from course.lessons.shared.machine import MARK
from course.lessons.shared.operation_times import operation_seconds
from course_lib.comm.ping_pong import measure_ping_pong

SIZES = tuple(4**power for power in range(1, 13))  # 4 bytes to 16 MiB


def measure(comm: MPI.Intracomm, cores: int) -> dict[str, Any] | None:
    """Seconds of operations, on `cores` ranks together and on one alone, of messages and of exchanges.

    The job has twice as many ranks as cores: exchanges are timed on all of them, too. None but on rank 0.
    """
    torch.set_num_threads(1)
    team = comm.Split(0 if comm.rank < cores else MPI.UNDEFINED, comm.rank)
    together = operation_seconds(team.Barrier) if team != MPI.COMM_NULL else None
    wait_asleep(comm)
    alone = operation_seconds() if comm.rank == 0 else None
    wait_asleep(comm)
    few = comm.Split(0 if comm.rank < max(2, cores) else MPI.UNDEFINED, comm.rank)
    messages = calls = None
    if few != MPI.COMM_NULL:
        messages, calls = measure_ping_pong(few, SIZES, repetitions=5), call_seconds(cast(MPI.Intracomm, few))
    wait_asleep(comm)
    crowded_calls = call_seconds(comm)
    if alone is None or messages is None:
        return None
    names = ("nbytes", "exchange_seconds", "sum_seconds")
    return {
        "memory_nbytes": psutil.virtual_memory().available // comm.size,
        "together": together,
        "alone": alone,
        "messages": {name: list(getattr(messages, name)) for name in names},
        "calls": calls,
        "crowded_calls": crowded_calls,
    }


def wait_asleep(comm: MPI.Intracomm) -> None:
    """Wait for all ranks without keeping a core busy."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


if __name__ == "__main__":
    result = measure(MPI.COMM_WORLD, int(sys.argv[1]))
    if result is not None:
        print(MARK + json.dumps(result), flush=True)
