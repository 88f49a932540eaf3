"""Jobs of `resumable.py`, and their losses side by side. The kernel imports it: neither MPI nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import run_ranks

MARK = "step: "
Losses = Mapping[int, float]


def run_job(ranks: int, folder: Path, steps: int, *, kill_after: int | None = None) -> dict[int, float]:
    """Train on `ranks` ranks of a job of its own; the loss of each step.

    With `kill_after`, its last rank is killed after so many steps, and the others end with it. RuntimeError,
    with the job's output, when it ends otherwise than it should.
    """
    module = "course.lessons.l11_zero_from_scratch.resumable"
    task = [str(folder), str(steps), *([] if kill_after is None else [str(kill_after)])]
    job = run_ranks(ranks, ["-m", "mpi4py", "-m", module, *task], timeout=240)
    if (job.returncode != 0) != (kill_after is not None):
        raise RuntimeError(f"the job ended with exit code {job.returncode}:\n{job.stdout}\n{job.stderr}")
    return dict(marked_lines(job.stdout, MARK))


def side_by_side(runs: Mapping[str, Losses]) -> str:
    """The losses of the runs: a row per step, a column per run, a dash for a step that a run did not take."""
    widths = [max(len(name), 12) for name in runs]
    rows = ["step  " + "  ".join(name.rjust(width) for name, width in zip(runs, widths, strict=True))]
    for step in sorted({step for losses in runs.values() for step in losses}):
        cells = [f"{losses[step]:.10f}" if step in losses else "–" for losses in runs.values()]
        rows.append(f"{step:4}  " + "  ".join(c.rjust(width) for c, width in zip(cells, widths, strict=True)))
    return "\n".join(rows)


def largest_difference(one: Losses, other: Losses) -> float:
    """The largest difference between two runs' losses of the same step; ValueError without a common step."""
    return max(abs(one[step] - other[step]) for step in one.keys() & other.keys())
