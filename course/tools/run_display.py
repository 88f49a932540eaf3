"""What `course run` shows: a live table on a terminal, calm lines in a log, and the same table at the end."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from course.tools.catalogue import Lesson
from course.tools.execute import LessonResult
from course.tools.parts import run_seconds

LOG_WIDTH = 250  # lines of a log are not folded
START_AND_END = 3.0  # seconds that a kernel takes to start and to end, and a page to be written


class TimeLeft:
    """How long a run of `lessons` still takes: what their builds took, at the pace of this machine so far."""

    def __init__(self, lessons: Sequence[Lesson], more: bool, at_once: int) -> None:
        self.at_once = at_once
        self.expected: dict[str, float] = {}
        for lesson in lessons:
            built = run_seconds(lesson.path)
            parts = ("core", "more") if more else ("core",)
            self.expected[lesson.stem] = START_AND_END + sum(built.get(part, 0) for part in parts)

    def seconds(self, results: Sequence[LessonResult], running: Sequence[float] = ()) -> float:
        """What is left after `results`, when the next lessons have been running for `running` seconds."""
        ended = [result for result in results if result.ok and result.lesson.stem in self.expected]
        planned = sum(self.expected[result.lesson.stem] for result in ended)
        pace = sum(result.seconds for result in ended) / planned if planned else 1.0
        seen = {result.lesson.stem for result in results}
        waiting = [seconds * pace for stem, seconds in self.expected.items() if stem not in seen]
        ran = [*running, *[0.0] * len(waiting)]
        left = [max(0.0, seconds - so_far) for seconds, so_far in zip(waiting, ran, strict=False)]
        return sum(left) / min(self.at_once, max(1, len(left)))


class RunDisplay:
    """Follows a run of `lessons`, `at_once` side by side, on standard output; threads call it."""

    def __init__(self, lessons: Sequence[Lesson], more: bool, at_once: int) -> None:
        self.live = sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
        self.console = Console(highlight=False) if self.live else Console(highlight=False, width=LOG_WIDTH)
        self.left = TimeLeft(lessons, more, at_once)
        self.results: list[LessonResult] = []
        self.running: dict[Lesson, tuple[float, str]] = {}  # when it began, and where it is
        self.start, self.seconds = time.monotonic(), 0.0

    def __enter__(self) -> None:
        self.shown = contextlib.ExitStack()
        if self.live:  # twice a second: the lessons need the cores
            table = Live(
                get_renderable=self._so_far, console=self.console, transient=True, refresh_per_second=2
            )
            self.shown.enter_context(table)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self.start
        self.shown.close()

    def began(self, lesson: Lesson) -> None:
        """Show `lesson` as running."""
        self.running[lesson] = time.monotonic(), "starting"
        if not self.live:
            self.console.print(f"{lesson.stem}: running, {about(self._seconds_left())}")

    def cell(self, lesson: Lesson, number: int, cells: int) -> None:
        """Cell `number` of `cells` begins."""
        self.running[lesson] = self.running[lesson][0], f"cell {number} of {cells}"

    def done(self, result: LessonResult) -> None:
        """Keep how a lesson went; a log says it at once."""
        self.running.pop(result.lesson, None)
        self.results.append(result)
        if not self.live:
            self.console.print(
                Text.assemble(f"{result.lesson.stem}: ", outcome(result), f", {result.seconds:.1f} s")
            )

    def end(self) -> None:
        """The end of a run: one row per lesson."""
        self.console.print()
        self.console.print(self._table())

    def _so_far(self) -> Group:
        table = self._table()
        for lesson, (began, where) in self._now():
            table.add_row(lesson.stem, f"{time.monotonic() - began:.0f} s", "", Text(where, style="cyan"))
        return Group(table, Text(about(self._seconds_left())))

    def _now(self) -> list[tuple[Lesson, tuple[float, str]]]:
        """The running lessons, in the order of the course; a thread may begin another meanwhile."""
        return sorted(self.running.copy().items(), key=lambda item: item[0].stem)

    def _seconds_left(self) -> float:
        now = time.monotonic()
        return self.left.seconds(self.results, [now - began for _, (began, _) in self._now()])

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, justify in (("lesson", "left"), ("time", "right"), ("cells", "right"), ("result", "left")):
            table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for result in sorted(self.results, key=lambda result: result.lesson.stem):
            cells = f"{result.cells}" if result.ok else f"{result.cells_run}/{result.cells}"
            table.add_row(result.lesson.stem, f"{result.seconds:.1f} s", cells, outcome(result))
        return table


def about(seconds: float) -> str:
    """What is left of a run, in words."""
    minutes = math.ceil(seconds / 60)
    return f"about {minutes} minutes left" if minutes > 1 else "at most a minute left"


def outcome(result: LessonResult) -> Text:
    """`ok` in green, or the first error in red."""
    return Text("ok", style="green") if result.failure is None else Text(str(result.failure), style="red")


def summary(results: Sequence[LessonResult], asked: int, seconds: float, more: bool) -> str:
    """What happened in `seconds` to a run of `asked` lessons; fewer results mean that it was stopped."""
    failed = [result.lesson.stem for result in results if not result.ok]
    if len(results) < asked:
        return f"Stopped after {len(results)} of {asked} lessons. Nothing is left running."
    if failed:
        return f"{len(failed)} of {_lessons(asked)} failed. See build/{failed[0]}.html."
    ran = _lessons(asked) if more else f"The core{'' if asked == 1 else 's'} of {_lessons(asked)}"
    return f"{ran} ran in {seconds:.0f} s. build/ has the executed notebooks and their HTML pages." + (
        "" if more else "\nTo run the second parts as well: course run --more"
    )


def _lessons(count: int) -> str:
    return f"{count} lesson{'' if count == 1 else 's'}"
