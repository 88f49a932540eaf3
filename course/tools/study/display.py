"""What `course study` shows: a bar with the time left on a terminal, a line for each run in a log."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from course.lessons.l07_ddp_on_mnist.study_results import Case, EpochRow

LOG_WIDTH = 250


class StudyDisplay:
    """Follows a study on standard output."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
        self.console = Console(highlight=False) if self.live else Console(highlight=False, width=LOG_WIDTH)
        self.progress = Progress(
            SpinnerColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            console=self.console,
            transient=True,
            refresh_per_second=2,  # the ranks need the cores
        )
        self.finished, self.total = 0, 1

    @contextmanager
    def study(self, finished: int, total: int) -> Iterator[None]:
        """Show that a study of `total` runs goes on, `finished` of which are there from before."""
        self.finished, self.total = finished, total
        if finished:
            self.console.print(f"{finished} of {total} runs are here already; going on from there.")
        if not self.live or finished == total:
            yield
            return
        self.task = self.progress.add_task("starting", total=total, completed=finished)
        with self.progress:
            yield

    def running(self, case: Case, share: float, left_seconds: float) -> None:
        """`share` of a case is done."""
        if self.live:
            text = f"{self.finished + 1} of {self.total}  {case.name}  {say_left(left_seconds)}"
            self.progress.update(self.task, completed=self.finished + share, description=text)

    def done(self, rows: Sequence[EpochRow], number: int, total: int, left_seconds: float) -> None:
        """A case is measured: `number` of `total` are."""
        self.finished, last = number, rows[-1]
        accuracy = f", test accuracy {last.test_accuracy:.2%}" if last.test_accuracy is not None else ""
        label = "" if last.label in ("measured", "replayed") else f" ({last.label})"
        outcome_words = f"{last.epoch_seconds:.3g} s per epoch{label}{accuracy}"
        left = f"; {say_left(left_seconds)}" if number < total else ""
        self.console.print(f"{number:3} of {total}  {last.case.name}: {outcome_words}{left}")
        if self.live:
            self.progress.update(self.task, completed=number)


def say_left(seconds: float) -> str:
    """How long it will still take, as one says it."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s left"
    return f"about {round(seconds / 60)} min left"
