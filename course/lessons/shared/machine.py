"""What the planner needs to know of a machine; `course machine` keeps it in build/machine.json."""

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from course_lib.comm.timing import available_cores
from mpi_classroom.errors import CourseError
from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import run_ranks

MARK = "machine: "
TIMEOUT = 180.0


class MachineError(CourseError):
    """The machine could not be measured; the sentence says why, and what to do."""


def measure_machine(path: Path, cores: int | None = None, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Measure with two ranks per core, which sleep when it is not their turn, and write `path`.

    Returns what was measured. Raises MachineError when the job fails, or is not done in `timeout` seconds.
    """
    cores = cores or available_cores()
    ranks = 2 * cores
    try:
        done = run_ranks(ranks, ["-m", "course.lessons.shared.machine_rank", str(cores)], timeout=timeout)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"measuring on {ranks} ranks was not done in {timeout:g} s; close other programs that compute"
        ) from None
    found = marked_lines(done.stdout, MARK)
    if done.returncode or not found:
        raise MachineError(
            f"measuring on {ranks} ranks ended with code {done.returncode}; "
            f"run `course doctor`, it checks MPI:\n{done.stderr[-2000:]}"
        )
    measured = found[-1] | {
        "name": f"{platform.node()}, measured {time.strftime('%Y-%m-%d %H:%M')}",
        "cores": cores,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def summary(measured: dict[str, Any]) -> list[str]:
    """What was measured, in a few lines."""
    products = measured["together"]["linear"]
    fastest = max(
        work / seconds for work, seconds in zip(products["work"], products["forward_seconds"], strict=True)
    )
    messages = measured["messages"]
    nbytes, times = messages["nbytes"], messages["exchange_seconds"]
    latency, bandwidth = times[0], nbytes[-1] / times[-1]
    updates = measured["together"]["update"]
    update = updates["work"][-1] / updates["forward_seconds"][-1]
    return [
        f"{measured['cores']} cores, {measured['memory_nbytes'] / 1e9:.1f} GB free per rank",
        f"a matrix product: up to {fastest / 1e9:.0f} Gflop/s per core, all cores at work",
        f"AdamW: {update / 1e6:.0f} million parameters per second and core",
        f"a message between two ranks: {latency * 1e6:.1f} µs for {nbytes[0]:.0f} bytes, "
        f"{bandwidth / 1e9:.1f} GB/s for {nbytes[-1] / 1e6:.0f} MB",
    ]
