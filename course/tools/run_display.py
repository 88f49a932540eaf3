"""What `course run` shows: a live line on a terminal, calm lines in a log, and a table at the end."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course.tools.catalogue import Lesson
from course.tools.execute import LessonResult

LOG_WIDTH = 250  # lines of a log are not folded


class RunDisplay:
    """Follows a run lesson by lesson, on standard output."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
        self.console = Console(highlight=False) if self.live else Console(highlight=False, width=LOG_WIDTH)
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            refresh_per_second=4,  # the lesson needs the cores
        )

    @contextlib.contextmanager
    def lesson(self, lesson: Lesson) -> Iterator[None]:
        """Show `lesson` as running."""
        if not self.live:
            self.console.print(f"{lesson.stem}: running")
            yield
            return
        task = self.progress.add_task(lesson.stem, total=None, where="starting")
        with self.progress:
            try:
                yield
            finally:
                self.progress.remove_task(task)

    def cell(self, number: int, cells: int) -> None:
        """Cell `number` of `cells` begins."""
        for task in self.progress.tasks:
            self.progress.update(
                task.id, completed=number - 1, total=cells, where=f"cell {number} of {cells}"
            )

    def done(self, result: LessonResult) -> None:
        """Say how a lesson went."""
        self.console.print(
            Text.assemble(f"{result.lesson.stem}: ", outcome(result), f", {result.seconds:.1f} s")
        )

    def table(self, results: Sequence[LessonResult]) -> None:
        """The end of a run: one row per lesson."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, justify in (("lesson", "left"), ("time", "right"), ("cells", "right"), ("result", "left")):
            table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for result in results:
            cells = f"{result.cells}" if result.ok else f"{result.cells_run}/{result.cells}"
            table.add_row(result.lesson.stem, f"{result.seconds:.1f} s", cells, outcome(result))
        self.console.print()
        self.console.print(table)


def outcome(result: LessonResult) -> Text:
    """`ok` in green, or the first error in red."""
    return Text("ok", style="green") if result.failure is None else Text(str(result.failure), style="red")


def summary(results: Sequence[LessonResult], asked: int) -> str:
    """One sentence about a run that was asked for `asked` lessons; fewer results mean that it was stopped."""
    seconds = sum(result.seconds for result in results)
    failed = [result.lesson.stem for result in results if not result.ok]
    if len(results) < asked:
        return f"Stopped after {len(results)} of {asked} lessons. Nothing is left running."
    if failed:
        return f"{len(failed)} of {_lessons(asked)} failed. See build/{failed[0]}.html."
    return (
        f"{_lessons(asked)} ran in {seconds:.0f} s. build/ has the executed notebooks and their HTML pages."
    )


def _lessons(count: int) -> str:
    return f"{count} lesson{'' if count == 1 else 's'}"
