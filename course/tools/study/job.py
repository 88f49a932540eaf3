"""One job of the study: ranks that run some cases, and what they report while they do.

Whatever ends a job before its time (a rank that is killed, an error, silence) ends in one sentence, and no
process of it stays behind. Its processes carry a mark, so `course clean` finds them when the
study itself was killed.
"""

import json
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from course.lessons.l07_ddp_on_mnist.study_results import Case
from course.tools.study.plan import MARK, job_size
from mpi_classroom.errors import CourseError
from mpi_classroom.job_output import last_error, last_line, marked_lines, read_deaths
from mpi_classroom.launch import layout_arguments, mpiexec_command, rank_environment, running_job
from mpi_classroom.layout import Layout
from mpi_classroom.leftovers import RUN, run_mark

SILENCE_SECONDS = 300.0
MPIEXEC_SECONDS = 5.0  # for mpiexec to end ranks on other hosts
LINES = 60  # of what the ranks print besides: the last ones may say what went wrong
Data = tuple[str, int, int]  # its name, images to train on, images to test with


class StudyError(CourseError):
    """The study cannot begin or go on."""


def run_job(
    cases: Sequence[Case], data: Data, *, layout: Layout | None = None, silence: float = SILENCE_SECONDS
) -> Iterator[dict[str, Any]]:
    """What rank 0 reports while a job runs `cases`, all of one `job_size`; StudyError when it ends badly.

    With a `layout` the ranks run on its hosts.
    """
    ranks, threads, _ = job_size(cases[0])
    task = {"data": data, "cases": [asdict(case) for case in cases]}
    return listen("course.tools.study.rank", task, ranks, threads, layout=layout, silence=silence)


def listen(
    module: str,
    task: dict[str, Any],
    ranks: int,
    threads: int = 1,
    *,
    layout: Layout | None = None,
    silence: float = SILENCE_SECONDS,
) -> Iterator[dict[str, Any]]:
    """What rank 0 of a job of `module` reports; the job gets the `task`; StudyError when it ends badly."""
    command = [sys.executable, "-m", "mpi4py", "-m", module, json.dumps(task)]
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = rank_environment(ranks, layout=layout) | dict.fromkeys(names, str(threads))
    environment |= {RUN: run_mark()}
    with (
        layout_arguments(ranks, layout, environment) as elsewhere,
        running_job(
            mpiexec_command(ranks, command, elsewhere),
            environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # an interrupt is for us: we end the ranks
        ) as job,
        ending_elsewhere(job, layout),
    ):
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(job, lines), daemon=True).start()
        others: deque[str] = deque(maxlen=LINES)
        while line := _next(lines, silence):
            if line.startswith(MARK):
                yield from marked_lines(line, MARK)
            else:
                others.append(line.rstrip())
        if job.wait(10):
            raise StudyError(how_it_ended(job.returncode, others))


@contextmanager
def ending_elsewhere(job: "subprocess.Popen[str]", layout: Layout | None) -> Iterator[None]:
    """When the block is left early, let mpiexec end the ranks on other hosts: nobody here can."""
    try:
        yield
    except BaseException:
        if layout is not None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(MPIEXEC_SECONDS)
        raise


def _read(job: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str]") -> None:
    """Hand on what the job prints, and at its end an empty line."""
    assert job.stdout is not None
    for line in job.stdout:
        lines.put(line)
    lines.put("")


def _next(lines: "queue.SimpleQueue[str]", silence: float) -> str:
    try:
        return lines.get(timeout=silence)
    except queue.Empty:
        raise StudyError(f"the ranks have not been heard of for {silence:.0f} s, and were ended") from None


def how_it_ended(code: int, lines: Sequence[str]) -> str:
    """In a few words, from what mpiexec and the ranks printed last."""
    text = "\n".join(lines)
    for death in read_deaths(text):
        if death.signal is not None:
            return f"rank {death.rank} {death.words}"
    if error := last_error(text):
        return f"a rank raised {error}"
    if code < 0:
        return f"mpiexec was ended by signal {-code}"
    last = last_line(text).strip("- \t") or "it said nothing"
    return f"the job ended with exit code {code}: {last}"
