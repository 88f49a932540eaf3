"""Running lessons for `course run`, several at once: each becomes a result, an executed notebook and a page.

A lesson that raises, hangs, loses its kernel or cannot be written becomes a result that says so in one line;
the next lesson runs all the same.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import psutil
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from course.paths import BUILD
from course.tools.catalogue import Lesson
from course.tools.failures import Failure, cell_failure, file_words, one_line
from course.tools.jupyter import DATA, PRINTED
from course.tools.parts import in_core
from course.tools.runner import CellReport, Deadlines, NotebookRun

if TYPE_CHECKING:
    from course.tools.run_display import RunDisplay

DEADLINES = Deadlines()
ROOM = 6e9  # bytes that must be free for two lessons at once; one takes up to 3 GB


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


def how_many_at_once() -> int:
    """Two lessons where there are two cores and room for both: while one starts, the other computes."""
    return 2 if (psutil.cpu_count() or 1) > 1 and psutil.virtual_memory().available > ROOM else 1


def run_lessons(lessons: Sequence[Lesson], display: "RunDisplay", at_once: int, **options: Any) -> None:
    """Run `lessons`, `at_once` side by side, as `run_lesson` does with `options`; `display` gets the results.

    Raises KeyboardInterrupt, with everything stopped, when interrupted.
    """
    runs: list[NotebookRun] = []

    def run(lesson: Lesson) -> LessonResult:
        display.began(lesson)
        return run_lesson(lesson, report=partial(display.cell, lesson), begun=runs.append, **options)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for future in as_completed([pool.submit(run, lesson) for lesson in lessons]):
                display.done(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for notebook_run in runs:
                notebook_run.cancel()
            raise


def run_lesson(
    lesson: Lesson,
    *,
    build: Path = BUILD,
    deadlines: Deadlines = DEADLINES,
    report: CellReport = lambda number, cells: None,
    begun: Callable[[NotebookRun], None] = lambda run: None,
    more: bool = False,
) -> LessonResult:
    """Run `lesson` beside its notebook and write `build/NN_topic.ipynb` and `.html`, also when it failed.

    Runs and writes the core alone, or with `more` the whole lesson. `begun` gets what another thread can
    cancel.

    Raises KeyboardInterrupt when interrupted and CancelledError when cancelled, with everything stopped, and
    nothing else.
    """
    began = time.monotonic()
    try:
        notebook = _read(lesson.path)
    except (OSError, ValueError) as error:
        return LessonResult(lesson, 0.0, 0, 0, Failure(file_words(lesson.path, error)))
    if not more:
        core = zip(notebook.cells, in_core(notebook.cells), strict=True)
        notebook.cells = [cell for cell, of_core in core if of_core]
    run = NotebookRun(notebook, deadlines, report)
    begun(run)
    failure = _failure(run, run.run(lesson.path.parent, JPY_SESSION_NAME=str(lesson.path)))
    seconds = time.monotonic() - began
    try:
        write_results(notebook, build, lesson.stem)
    except OSError as error:
        failure = failure or Failure(file_words(build, error))
    return LessonResult(lesson, seconds, run.done, len(run.code), failure)


def _failure(run: NotebookRun, error: Exception | None) -> Failure | None:
    """What stopped a lesson, in one line; None when nothing did."""
    if error is None:
        return None
    if isinstance(error, CellExecutionError):
        return cell_failure(run.done + 1, error.ename, error.evalue, run.code[run.done][1].outputs)
    if isinstance(error, CellTimeoutError):
        return Failure(_too_slow(run), run.done + 1)
    return Failure(str(error), run.done + 1 if run.client.kc is not None else None)


def _too_slow(run: NotebookRun) -> str:
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
    exporter = HTMLExporter(
        template_name=PRINTED, extra_template_basedirs=[str(DATA / "nbconvert" / "templates")]
    )
    _replace(folder / f"{stem}.html", exporter.from_notebook_node(page, {"metadata": {"name": stem}})[0])


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
