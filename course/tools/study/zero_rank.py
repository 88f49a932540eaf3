"""A rank of a job of `course study --zero`: `python -m course.tools.study.zero_rank TASK`, under mpiexec.

TASK is a `ZeroCase` as JSON. Rank 0 prints a sign of life each step, and at the end a row for each rank.
"""

import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from course.lessons.l11_zero_from_scratch.runs import held_state, start, text_loss
from course.tools.study.rank import send_report
from course.tools.study.zero_results import ZeroCase
from course_lib.training.transformer import build_transformer

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FROM_NOW_ON = "5"  # forget the peak so far
HEADS, VOCABULARY = 8, 256


def memory(which: str) -> int | None:
    """The bytes of this process that are in memory now (VmRSS), or were at most (VmHWM); None if unknown."""
    try:
        found = re.search(rf"{which}:\s+(\d+) kB", STATUS.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def forget_peak() -> bool:
    """Let VmHWM count from now on; whether that is possible."""
    try:
        CLEAR.write_text(FROM_NOW_ON)
    except OSError:
        return False
    return True


def measure(comm: MPI.Intracomm, case: ZeroCase) -> dict[str, Any]:
    """Train, and say what this rank held and how long a step took."""
    before = memory("VmRSS") if forget_peak() else None
    model = build_transformer(
        vocabulary=VOCABULARY,
        length=case.length,
        width=case.width,
        heads=HEADS,
        layers=case.layers,
        seed=0,
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    zero = start(comm, model, case.stage, layers=model.blocks)
    generator = torch.Generator().manual_seed(comm.rank)
    tokens = torch.randint(VOCABULARY, (case.batch, case.length + 1), generator=generator)
    seconds = []
    for step in range(case.steps + 1):  # the first is a warm-up
        comm.Barrier()
        began = time.perf_counter()
        loss = text_loss(comm, model, tokens)
        loss.backward()
        zero.step()
        zero.zero_grad()
        seconds.append(comm.allreduce(time.perf_counter() - began, MPI.MAX))
        send_report(comm, step=step)
    held, peak = held_state(zero, model), memory("VmHWM")
    return {
        "rank": comm.rank,
        "parameters": parameters,
        "weights_bytes": held.weights,
        "gradients_bytes": held.gradients,
        "optimizer_bytes": held.optimizer,
        "peak_bytes": peak - before if peak and before else None,
        "step_seconds": statistics.median(seconds[1:]),
        "step_spread": max(seconds[1:]) - min(seconds[1:]),
        "loss": comm.allreduce(loss.item()),
    }


def main(task: str) -> None:
    """Run the case of `task` on all ranks."""
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    send_report(comm, ready=comm.size)
    rows = comm.gather(measure(comm, ZeroCase(**json.loads(task))))
    send_report(comm, rows=rows)


if __name__ == "__main__":
    main(sys.argv[1])
