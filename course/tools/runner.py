"""The one way in which build, run and nbval run a notebook: a fresh kernel, deadlines, nothing left behind.

    build   all cells, until one fails      outputs become the notebook          (build.py)
    run     all cells, until one fails      results and a page of each lesson    (execute.py)
    nbval   a cell per test                 outputs are compared                 (nbval_plugin.py)

nbclient gathers the outputs in all three, so nbval compares what was recorded in the same way. The kernel is
this Python, whatever kernels are installed. A cell that takes too long is interrupted: its outputs then say
where it was. A kernel that is killed cannot stop its cluster, so everything that it started carries a mark in
its environment and is ended by that.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import IO, Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbclient.util import ensure_async
from nbformat import NotebookNode

from course.tools.failures import file_words, one_line
from course.tools.parts import is_run
from mpi_classroom import leftovers, processes
from mpi_classroom.commands import search_path
from mpi_classroom.folders import JOB, MARKS, scratch_folder

MARK = f"{MARKS}UNATTENDED"  # with a name that no watchdog inherits: it clears up after a killed kernel
INTERRUPT_SECONDS = 5.0  # what a cell gets, after its deadline, to end when it is interrupted
SILENT = logging.getLogger("course.silent")  # what nbclient logs, a result says better
SILENT.disabled = True

CellReport = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a cell, a whole lesson and the start of its kernel may take, in seconds."""

    cell: float = 180.0
    lesson: float = 600.0
    start: float = 60.0


class KernelTrouble(RuntimeError):
    """The kernel did not start, or is gone: in one sentence."""


class ThisPython(KernelSpecManager):
    """Has one kernel: the Python that runs this. A kernel of the same name elsewhere cannot replace it."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The same for every name."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3 (ipykernel)", language="python")


class NotebookRun:
    """One notebook on one kernel.

    Outputs go into the cells of `notebook`. `run` runs them all; `started` and `execute` run them one by one.
    """

    def __init__(
        self,
        notebook: NotebookNode,
        deadlines: Deadlines,
        report: CellReport = lambda number, cells: None,
    ) -> None:
        self.notebook = notebook
        self.code = [(index, cell) for index, cell in enumerate(notebook.cells) if is_run(cell)]
        self.done = 0
        self.deadlines = deadlines
        self.ends = time.monotonic() + deadlines.lesson
        self.report = report
        self.can_answer = False  # a kernel that can is asked to end, so that it stops its cluster
        self.cancelled = False
        self.reply: Mapping[str, Any] = {}
        self.kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
        self.client = NotebookClient(
            notebook,
            km=self.kernel,
            timeout_func=lambda cell: self.seconds_left(),
            startup_timeout=deadlines.start,
            iopub_timeout=10,
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,  # a page shows the last frame of a widget as a picture
            allow_errors=True,  # `execute` looks at the reply; the kernel skips no cell after an error
            on_cell_executed=self._keep_reply,
            log=SILENT,
        )

    def seconds_left(self) -> float:
        """What the next cell may take."""
        return max(0.1, min(self.deadlines.cell, self.ends - time.monotonic()))

    @property
    def late(self) -> bool:
        """Whether the lesson as a whole has used its time."""
        return time.monotonic() >= self.ends

    def run(self, folder: Path, **marks: str) -> Exception | None:
        """Run all cells in `folder`, unattended, and end whatever they started.

        Returns what stopped them, CellExecutionError, CellTimeoutError or KernelTrouble, or None; `done` code
        cells ended without an error. `marks` are added to the kernel's environment.
        """
        try:
            with self.started(folder, **marks):
                for number, (index, _) in enumerate(self.code, start=1):
                    if self.cancelled:
                        raise asyncio.CancelledError
                    self.report(number, len(self.code))
                    self.execute(index)
                    self.done = number
        except (CellExecutionError, CellTimeoutError, KernelTrouble) as error:
            return error
        return None

    def cancel(self) -> None:
        """Have `run`, in another thread, end the kernel and raise CancelledError."""
        self.cancelled = True
        with contextlib.suppress(AttributeError, RuntimeError):  # its loop has not begun; it has ended
            loop = self.loop.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

    @contextlib.contextmanager
    def started(self, folder: Path, **marks: str) -> Iterator[None]:
        """Have the kernel run in `folder`; on leaving, it and all it ever started are ended.

        Raises KernelTrouble when it does not start.
        """
        with unattended() as environment, tempfile.TemporaryFile() as self.log, asyncio.Runner() as self.loop:
            try:
                self.loop.run(self._start(folder, os.environ | environment | marks))
                self.can_answer = True
                yield
            finally:
                self.loop.run(self._stop())

    def execute(self, index: int) -> NotebookNode:
        """Run cell `index` of the notebook and return it, with its outputs.

        Raises CellExecutionError when the cell raises and is not tagged raises-exception, CellTimeoutError
        after its deadline, whether or not it could be interrupted, and KernelTrouble when the kernel died.
        After the last two no other cell can run.
        """
        cell = self.notebook.cells[index]
        self.reply = {"status": "ok"}  # of an empty cell, which is not sent
        self.loop.run(self._execute(cell, index))
        if self.reply["status"] != "ok" and "raises-exception" not in cell.metadata.get("tags", ()):
            raise CellExecutionError.from_cell_and_msg(cell, dict(self.reply))
        return cell

    def _keep_reply(self, *, execute_reply: Mapping[str, Any], **other: object) -> None:
        self.reply = execute_reply["content"]

    async def _execute(self, cell: NotebookNode, index: int) -> None:
        self.can_answer = False
        try:
            await self.client.async_execute_cell(cell, index)
        except CellTimeoutError:
            await self._interrupt()
            raise
        except DeadKernelError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # nbclient takes being cancelled for a dead kernel
                raise asyncio.CancelledError from None
            raise KernelTrouble(await self._why_dead()) from None
        self.can_answer = True

    async def _interrupt(self) -> None:
        """Interrupt the cell and wait a moment for what it says to that."""
        with contextlib.suppress(Empty, RuntimeError):  # it swallowed the interrupt; it has just died
            await self.kernel.interrupt_kernel()
            assert self.client.kc is not None
            await ensure_async(self.client.kc.shell_channel.get_msg(timeout=INTERRUPT_SECONDS))
            self.can_answer = True
            await asyncio.sleep(0.5)  # outputs come by another way than the reply

    async def _start(self, folder: Path, environment: dict[str, str]) -> None:
        # Where the watchdog of this process removes it; a kernel that loses its runner leaves it.
        place = scratch_folder() or tempfile.gettempdir()
        self.kernel.connection_file = os.path.join(place, f"kernel-{uuid.uuid4().hex}.json")
        try:
            await self.client.async_start_new_kernel(
                cwd=str(folder), env=environment, stdout=self.log, stderr=subprocess.STDOUT
            )
            await self.client.async_start_new_kernel_client()
        except OSError as error:
            reason = file_words(Path(place), error)
        except (RuntimeError, NoSuchKernel) as error:
            reason = _last_line(self.log) or one_line(str(error))
        else:
            return
        raise KernelTrouble(f"the kernel did not start: {reason}")

    async def _why_dead(self) -> str:
        provisioner = self.kernel.provisioner
        code = await provisioner.poll() if provisioner is not None else None
        if code is not None and -code == signal.SIGKILL:
            return "the kernel was killed, as the system does when memory runs out"
        if code is not None and code < 0:
            return f"the kernel died of signal {-code} ({signal.Signals(-code).name})"
        words = f": {last}" if (last := _last_line(self.log)) else ""
        return f"the kernel ended by itself{'' if code is None else f' with exit code {code}'}{words}"

    async def _stop(self) -> None:
        """Shut the kernel down: patiently, so that it can stop its cluster, or at once."""
        if self.client.kc is not None:
            self.client.kc.stop_channels()
        if self.kernel.has_kernel:
            await self.kernel.shutdown_kernel(now=not self.can_answer)


@contextlib.contextmanager
def unattended() -> Iterator[dict[str, str]]:
    """The environment variables for one kernel; on leaving, every process that inherited them is ended.

    The kernel itself must have been shut down by then, or it is ended with them.
    """
    mark = uuid.uuid4().hex
    own = scratch_folder()
    try:
        yield ({JOB: os.path.join(own, "kernel")} if own else {}) | {  # ended by the watchdog of this process
            MARK: mark,
            leftovers.RUN: leftovers.run_mark(),  # for `course clean`, should this process be killed
            processes.SCOPE: os.environ.get(
                processes.SCOPE, mark
            ),  # of other lessons' clusters nothing is said
            "IPP_NONINTERACTIVE": "1",  # %%px prints by rank when all are done, not as it comes
            "PATH": search_path(sysconfig.get_path("scripts")),  # mpiexec and python are this environment's
            "SMOLLM2": "none",  # the small model of lesson 13, whose minutes and outputs are known
            "PYTHONHASHSEED": "0",  # sets print in the same order every time
            "COLUMNS": "100",
        }
    finally:
        processes.stop_orphans()
        processes.end_marked(MARK, mark)


def _last_line(log: IO[bytes]) -> str:
    """What the kernel's process said last; ipykernel's warning that it listens on TCP says nothing."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    lines = [line for line in lines if line.strip() and "[IPKernelApp] WARNING" not in line]
    return one_line(lines[-1]) if lines else ""
