"""Makes nbval red wherever a broken lesson could pass; pytest loads it by itself (`course_nbval`).

nbval finds the cells, reads their tags and compares outputs; the cells run as in build and run
(`course.tools.runner`). Alone, nbval 0.11 passes a cell that swallows the interrupt after its deadline (as
`%%px` does), a cell whose magic does not exist, a cell that was expected to raise and did not, and any cell
without recorded output; it marks what follows a timeout as expected failures; it waits for the full deadline
when the kernel has died; it does not compare images; and it kills kernels, so that their clusters run on.
"""

import contextlib
import copy
import math
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams

from course.tools.parts import in_core
from course.tools.runner import Deadlines, KernelTrouble, NotebookRun

CELL_SECONDS = 280  # less than what pytest gives a test
# nbval's own list without the images and widgets: what may differ carries the tag nbval-ignore-output.
NOT_COMPARED = ("metadata", "traceback", "prompt_number", "output_type", "name", "execution_count")


class LessonCell(IPyNbCell):
    """One code cell, at `index` in the notebook. It fails whenever it did not do what the notebook shows."""

    def __init__(self, *args: object, index: int, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.index = index

    def setup(self) -> None:
        """Do not run after a cell that never finished: it would wait for its own deadline, too."""
        if self.parent.unfinished is not None:
            pytest.skip(f"not run: cell {self.parent.unfinished} did not finish")

    def runtest(self) -> None:
        """Run the cell, look for what nbval lets pass, and compare its outputs."""
        if self.options["skip"]:
            pytest.skip("the cell is tagged nbval-skip")
        self.run_it()
        if complaint := self.complaint():
            self.raise_cell_error(complaint)
        recorded = coalesce_streams(self.cell.outputs)
        if self.options["check"] and not self.compare_outputs(coalesce_streams(self.test_outputs), recorded):
            self.raise_cell_error("Cell outputs differ", "\n".join(self.comparison_traceback))

    def run_it(self) -> None:
        """Run the cell and keep its outputs as `test_outputs`; fail when it does not end as it should."""
        run, cell = self.parent.run, self.parent.run.notebook.cells[self.index]
        self.parent.unfinished = self.cell_num
        try:
            run.execute(self.index)
        except CellExecutionError:
            if not self.options["check_exception"]:
                self.parent.unfinished = None
                self.raise_cell_error("The cell raised an exception.", said(cell.outputs))
        except CellTimeoutError:
            words = f"The cell did not end within {run.deadlines.cell:g} s."
            self.raise_cell_error(words, said(cell.outputs))
        except KernelTrouble as trouble:
            self.raise_cell_error(f"While this cell ran, {trouble}.", said(cell.outputs))
        self.parent.unfinished = None
        self.test_outputs = cell.outputs

    def complaint(self) -> str:
        """What is wrong with a cell that ran to its end, whatever its outputs are; empty when nothing is."""
        errors = [out for out in self.test_outputs if out.output_type == "error"]
        printed = said([out for out in self.test_outputs if out.output_type == "stream"])
        if "UsageError" in printed:
            return f"A magic was refused, so the cell did not run:\n{printed}"
        if errors and not self.options["check_exception"]:
            return f"The cell shows an error:\n{said(errors)}"
        if self.options["check_exception"] and not errors:
            return "The cell is tagged raises-exception and did not raise."
        if self.options["check"] and self.cell.execution_count is None and self.cell.source.strip():
            return "The notebook holds no output of this cell to compare with; build it, or use --nbval-lax."
        return ""


class LessonFile(IPyNbFile):
    """One notebook with its kernel; when it is over, nothing that the kernel started is left."""

    unfinished: int | None = None
    run: NotebookRun

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.skip_compare = NOT_COMPARED
        self.kernel_runs = contextlib.ExitStack()

    def setup(self) -> None:
        """Start the kernel, as when lessons are built; what it gives goes into a copy of the notebook."""
        self.setup_sanitize_files()
        self.sanitize_patterns["^Overwriting "] = "Writing "  # %%writefile, where the file is there already
        option = self.config.option
        deadlines = Deadlines(option.nbval_cell_timeout, math.inf, option.nbval_kernel_startup_timeout)
        self.run = NotebookRun(copy.deepcopy(self.nb), deadlines)
        try:
            self.kernel_runs.enter_context(self.run.started(self.path.parent))
        except KernelTrouble as trouble:
            pytest.fail(str(trouble), pytrace=False)

    def collect(self) -> Iterator[LessonCell]:
        """The code cells of the notebook; with `--core` those before its "More" part."""
        found = list(super().collect())
        code = [index for index, cell in enumerate(self.nb.cells) if cell.cell_type == "code"]
        core = in_core(self.nb.cells)
        for index, cell in zip(code, found, strict=True):
            if self.config.option.core and not core[index]:
                continue
            yield LessonCell.from_parent(
                self,
                name=cell.name,
                cell_num=cell.cell_num,
                cell=cell.cell,
                options=cell.options,
                index=index,
            )

    def teardown(self) -> None:
        """Stop the kernel, then whatever it left behind."""
        self.kernel_runs.close()


def said(outputs: Iterable[NotebookNode]) -> str:
    """What a cell printed, and its tracebacks, in order."""
    return "\n".join(out.get("text", "") or "\n".join(out.get("traceback", ())) for out in outputs)


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
