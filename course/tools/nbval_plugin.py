"""Makes nbval red wherever a broken lesson could pass; pytest loads it by itself (`course_nbval`).

Alone, nbval 0.11 passes a cell that swallows the interrupt after its deadline (as `%%px` does), a cell
whose magic does not exist, a cell that was expected to raise and did not, and any cell without recorded
output; it marks what follows a timeout as expected failures; it waits for the full deadline when the kernel
has died; it does not compare images; and it kills kernels, which leaves their clusters running.
"""

import contextlib
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from queue import Empty

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel, start_new_kernel
from nbval.plugin import IPyNbCell, IPyNbFile, NbCellError

from course.tools.kernels import unattended
from course.tools.parts import in_core

CELL_SECONDS = 180
POLL_SECONDS = 0.5
# nbval's own list without the images and widgets: what may differ carries the tag nbval-ignore-output.
NOT_COMPARED = ("metadata", "traceback", "prompt_number", "output_type", "name", "execution_count")


class KernelDied(Exception):
    """The kernel's process ended while it was to run a cell."""


class WatchedKernel(RunningKernel):
    """A kernel that numbers cells as a notebook does, whose death is noticed and whose reply is kept."""

    status = "ok"

    def __init__(self, kernel_name: str, cwd: str | None = None, startup_timeout: float = 60) -> None:
        self.km, self.kc = start_new_kernel(
            startup_timeout,
            kernel_name,
            cwd=cwd,
            stderr=subprocess.DEVNULL,
            extra_arguments=["--HistoryManager.hist_file=:memory:"],  # not among what the user typed
        )
        self._ensure_iopub_up()

    def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
        """Send a cell to the kernel, with a number: reports name cells by it; return the message's id."""
        return str(self.kc.execute(cell_input, store_history=True, allow_stdin=False, stop_on_error=False))

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Wait for the reply to `msg_id`; raise Empty after `timeout` seconds, KernelDied when it died."""
        deadline = time.monotonic() + (CELL_SECONDS if timeout is None else timeout)
        self.status = "none"
        while True:
            try:
                message = self.get_message("shell", timeout=POLL_SECONDS)
            except Empty:
                if not self.is_alive():
                    raise KernelDied from None
                if time.monotonic() > deadline:
                    raise
                continue
            if message["parent_header"].get("msg_id") == msg_id:
                self.status = message["content"]["status"]
                return


class LessonCell(IPyNbCell):
    """One code cell. It fails whenever it did not do what the notebook shows."""

    def setup(self) -> None:
        """Do not run after a cell that never finished: it would wait for its own deadline, too."""
        if self.parent.unfinished is not None:
            pytest.skip(f"not run: cell {self.parent.unfinished} did not finish")

    def runtest(self) -> None:
        """Run the cell and compare its outputs, then look for what nbval lets pass."""
        self.parent.unfinished = self.cell_num
        try:
            super().runtest()
        except (NbCellError, pytest.skip.Exception):
            if not self.parent.timed_out:
                self.parent.unfinished = None
            raise
        except KernelDied:
            self.raise_cell_error("The kernel died while it ran this cell.")
        if self.parent.timed_out:
            seconds = self.config.option.nbval_cell_timeout
            self.raise_cell_error(f"Timeout of {seconds:g} seconds: the cell swallowed the interrupt.")
        self.parent.unfinished = None
        if complaint := self.complaint():
            self.raise_cell_error(complaint)

    def complaint(self) -> str:
        """What is wrong with a cell that nbval passed; empty when nothing is."""
        errors = [out for out in self.test_outputs if out.output_type == "error"]
        printed = "".join(out.text for out in self.test_outputs if out.output_type == "stream")
        if "UsageError" in printed:
            return f"A magic was refused, so the cell did not run:\n{printed}"
        if self.parent.kernel.status != "ok" and not errors:
            return f"The kernel answered '{self.parent.kernel.status}' without an error message:\n{printed}"
        if self.options["check_exception"] and not errors:
            return "The cell is tagged raises-exception and did not raise."
        if self.options["check"] and self.cell.execution_count is None and self.cell.source.strip():
            return "The notebook holds no output of this cell to compare with; build it, or use --nbval-lax."
        return ""


class LessonFile(IPyNbFile):
    """One notebook with its kernel; when it is over, nothing that the kernel started is left."""

    unfinished: int | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.skip_compare = NOT_COMPARED
        self.leftovers = contextlib.ExitStack()

    def setup(self) -> None:
        """Start the kernel in the environment in which lessons are built."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.leftovers.enter_context(unattended()).items():
                patch.setenv(name, value)
            super().setup()

    def collect(self) -> Iterator[LessonCell]:
        """The code cells of the notebook; with `--core` those before its "More" part."""
        cells = list(super().collect())
        core = in_core(self.nb.cells)
        wanted = [core[i] for i, cell in enumerate(self.nb.cells) if cell.cell_type == "code"]
        for cell in cells:
            if self.config.option.core and not wanted[cell.cell_num]:
                continue
            yield LessonCell.from_parent(
                self, name=cell.name, cell_num=cell.cell_num, cell=cell.cell, options=cell.options
            )

    def teardown(self) -> None:
        """Stop the kernel, then whatever it left behind."""
        with self.leftovers:
            dead = self.kernel is not None and not self.kernel.is_alive()
            super().teardown()
            if dead:
                self.kernel.stop()  # nbval would leave its connection file


def active(options: object) -> bool:
    """Whether this run checks notebooks."""
    return bool(getattr(options, "nbval", False) or getattr(options, "nbval_lax", False))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run of the notebooks be cut to what everyone in a workshop sees."""
    parser.addoption("--core", action="store_true", help="with --nbval: leave out the More part of lessons")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Give cells a deadline in minutes, not nbval's 2000 s; the command line still has the last word."""
    if active(early_config.known_args_namespace):
        args.insert(0, f"--nbval-cell-timeout={CELL_SECONDS}")


def pytest_configure(config: pytest.Config) -> None:
    """Have nbval start kernels that are watched, and of this Python unless another is asked for."""
    if active(config.option):
        nbval.plugin.RunningKernel = WatchedKernel
        config.option.nbval_current_env = not config.option.nbval_kernel_name


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Take over the notebooks that nbval has collected."""
    collectors = yield
    return [
        LessonFile.from_parent(parent, path=file_path) if type(collector) is IPyNbFile else collector
        for collector in collectors
    ]
