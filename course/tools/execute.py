"""Running lessons unattended: one fresh kernel each, a deadline, and nothing left behind.

The kernel is always this Python, whatever kernels are installed. A lesson that raises, hangs, loses its
kernel or cannot be written becomes a result that says so in one line; the next lesson runs all the same.
"""

import asyncio
import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course.paths import BUILD
from course.tools.catalogue import Lesson
from course.tools.failures import Failure, cell_failure, one_line
from course.tools.kernels import unattended
from mpi_classroom.folders import scratch_folder

SILENT = logging.getLogger("course_lib.silent")  # what nbclient logs, a result says better
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

CellReport = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a cell, a whole lesson and the start of its kernel may take, in seconds."""

    cell: float = 180.0
    lesson: float = 600.0
    start: float = 60.0


DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class LessonResult:
    """How a lesson went: `cells_run` of its `cells` code cells ended without an error."""

    lesson: Lesson
    seconds: float
    cells_run: int
    cells: int
    failure: Failure | None

    @property
    def ok(self) -> bool:
        """Whether every cell ran and the results are written."""
        return self.failure is None


class ThisPython(KernelSpecManager):
    """Knows one kernel: the Python that runs this. One of the same name elsewhere cannot take its place."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The same for every name."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3 (ipykernel)", language="python")


class KernelTrouble(RuntimeError):
    """The kernel did not start, or is gone."""


class LessonRun:
    """One lesson on one kernel; remembers how far it came."""

    def __init__(self, notebook: Any, deadlines: Deadlines, report: CellReport) -> None:
        self.code = [
            (index, cell)
            for index, cell in enumerate(notebook.cells)
            if cell.cell_type == "code" and cell.source.strip()
        ]
        self.done = 0
        self.deadlines = deadlines
        self.ends = time.monotonic() + deadlines.lesson
        self.report = report
        self.kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
        self.client = NotebookClient(
            notebook,
            km=self.kernel,
            timeout_func=lambda cell: self.seconds_left(),
            startup_timeout=deadlines.start,
            iopub_timeout=10,
            record_timing=False,
            coalesce_streams=True,
            log=SILENT,
        )

    def seconds_left(self) -> float:
        """What the next cell may take."""
        return max(0.1, min(self.deadlines.cell, self.ends - time.monotonic()))

    def run(self, folder: Path, **marks: str) -> Exception | None:
        """Run all cells in `folder`, unattended, and end whatever they started.

        Returns what stopped them (an error of a cell, a timeout, KernelTrouble, or OSError while the kernel
        started), None when nothing did. `marks` are added to the kernel's environment.
        """
        try:
            with unattended() as environment:
                asyncio.run(self._execute(folder, os.environ | environment | marks))
        except (CellExecutionError, CellTimeoutError, KernelTrouble, OSError) as error:
            return error
        return None

    @property
    def late(self) -> bool:
        """Whether the lesson as a whole has used its time."""
        return time.monotonic() >= self.ends

    async def _execute(self, folder: Path, environment: dict[str, str]) -> None:
        """Run all cells in `folder`, then end the kernel; raises what nbclient raises, or KernelTrouble."""
        with tempfile.TemporaryFile() as log:
            can_answer = False
            try:
                await self._start(folder, environment, log)
                for number, (index, cell) in enumerate(self.code, start=1):
                    self.report(number, len(self.code))
                    await self.client.async_execute_cell(cell, index)
                    self.done = number
                can_answer = True
            except CellExecutionError:
                can_answer = True
                raise
            except DeadKernelError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # nbclient takes being cancelled for a dead kernel
                    raise asyncio.CancelledError from None
                raise KernelTrouble(await self._why_dead(log)) from None
            finally:
                await self._stop(patient=can_answer)

    async def _start(self, folder: Path, environment: dict[str, str], log: IO[bytes]) -> None:
        # Where the watchdog of this process removes it; a kernel that loses its runner leaves it.
        place = scratch_folder() or tempfile.gettempdir()
        self.kernel.connection_file = os.path.join(place, f"kernel-{uuid.uuid4().hex}.json")
        try:
            await self.client.async_start_new_kernel(
                cwd=str(folder), env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            await self.client.async_start_new_kernel_client()
        except RuntimeError as error:
            last_words = _last_line(log) or one_line(str(error))
            raise KernelTrouble(f"the kernel did not start: {last_words}") from None

    async def _why_dead(self, log: IO[bytes]) -> str:
        provisioner = self.kernel.provisioner
        code = await provisioner.poll() if provisioner is not None else None
        if code is not None and -code == signal.SIGKILL:
            return "the kernel was killed, as the system does when memory runs out"
        if code is not None and code < 0:
            return f"the kernel died of signal {-code} ({signal.Signals(-code).name})"
        words = f": {last}" if (last := _last_line(log)) else ""
        return f"the kernel ended by itself{'' if code is None else f' with exit code {code}'}{words}"

    async def _stop(self, *, patient: bool) -> None:
        """Shut the kernel down: patiently, so that it can stop its cluster, or at once."""
        if self.client.kc is not None:
            self.client.kc.stop_channels()
        if self.kernel.has_kernel:
            await self.kernel.shutdown_kernel(now=not patient)


def run_lesson(
    lesson: Lesson,
    *,
    build: Path = BUILD,
    deadlines: Deadlines = DEADLINES,
    report: CellReport = lambda number, cells: None,
) -> LessonResult:
    """Run `lesson` beside its notebook and write `build/NN_topic.ipynb` and `.html`, also when it failed.

    Raises KeyboardInterrupt, with everything stopped, when interrupted; nothing else.
    """
    began = time.monotonic()
    try:
        notebook = _read(lesson.path)
    except (OSError, ValueError) as error:
        return LessonResult(lesson, 0.0, 0, 0, Failure(_file_words(lesson.path, error)))
    run = LessonRun(notebook, deadlines, report)
    failure = _failure(run, run.run(lesson.path.parent, JPY_SESSION_NAME=str(lesson.path)))
    seconds = time.monotonic() - began
    try:
        write_results(notebook, build, lesson.stem)
    except OSError as error:
        failure = failure or Failure(_file_words(build, error))
    return LessonResult(lesson, seconds, run.done, len(run.code), failure)


def _failure(run: LessonRun, error: Exception | None) -> Failure | None:
    """What stopped a lesson, in one line; None when nothing did."""
    if error is None:
        return None
    if isinstance(error, CellExecutionError):
        return cell_failure(run.done + 1, error.ename, error.evalue, run.code[run.done][1].outputs)
    if isinstance(error, CellTimeoutError):
        return Failure(_too_slow(run), run.done + 1)
    if isinstance(error, KernelTrouble):
        return Failure(str(error), run.done + 1 if run.client.kc is not None else None)
    return Failure(f"the kernel did not start: {_file_words(Path(tempfile.gettempdir()), error)}")


def _too_slow(run: LessonRun) -> str:
    first = one_line(run.code[run.done][1].source)
    if run.late:
        return f"the lesson did not end within {run.deadlines.lesson:g} s; it was at: {first}"
    return f"did not end within {run.deadlines.cell:g} s: {first}"


def write_results(notebook: Any, folder: Path, stem: str) -> None:
    """Write the executed notebook and a page of it into `folder`; links to lessons lead to pages there."""
    from nbconvert import HTMLExporter

    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / f"{stem}.ipynb", nbformat.writes(notebook) + "\n")
    page = nbformat.from_dict(notebook)
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"(\]\(\d\d_\w+)\.ipynb\b", r"\1.html", cell.source)
    _replace(
        folder / f"{stem}.html", HTMLExporter().from_notebook_node(page, {"metadata": {"name": stem}})[0]
    )


def _replace(path: Path, text: str) -> None:
    """Write `path` as a whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    """The notebook at `path`; raises OSError or ValueError."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("nbformat") != 4:
        raise ValueError("it is not in notebook format 4")
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise ValueError(error.message) from None
    return notebook


def _file_words(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        remedy = "; free some disk space and run again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{error.filename or path}: {error.strerror or error}{remedy}"
    return one_line(f"{path.name} is not a readable notebook: {error}")


def _last_line(log: IO[bytes]) -> str:
    """What the kernel's process said last; ipykernel's warning that it listens on TCP says nothing."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    lines = [line for line in lines if line.strip() and "[IPKernelApp] WARNING" not in line]
    return one_line(lines[-1]) if lines else ""
