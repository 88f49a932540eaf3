"""How long a lesson takes, and whether what its header says, and what the tracks claim, is so.

    minutes = words / 180  +  5 s per line of code  +  6 per exercise  +  1 per question
              +  in a core 2 for runs and predictions, and 3 for a discussion;  in More the run time

A question of the warm-up takes 2 min; a prediction is part of reading. Docstrings and comments are words.
Imports are not read, nor is a line of code that was there before. The run time is what the build measured
and wrote into the notebook.

Arrival, breaks, votes and questions take a third of a workshop: cores fill two thirds of a track's hours.
A workshop that runs lessons one after the other skips the warm-ups.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from course.tools.anatomy import short_imports
from course.tools.build import notebook_of
from course.tools.coverage import MAGIC
from course.tools.frame import SETUP, TEARDOWN
from course.tools.lesson import LessonSource, Problem
from course.tools.parts import MORE, in_core, run_seconds

WORDS_PER_MINUTE = 180
MINUTES_PER_EXERCISE = 6
TOLERANCE = {"core": 0.2, "more": 0.25}  # of what the header says; a workshop counts on the core
ALIKE = "\n".join(
    [SETUP, TEARDOWN, "from mpi4py import MPI", "comm = MPI.COMM_WORLD", "rank, size = comm.rank, comm.size"]
)
HALF_A_DAY = ("00", "01", "04", "06", "07", "11")


MINUTES_PER_LINE, MINUTES_PER_QUESTION = 5 / 60, 1
RUNS = 2  # minutes of a core in which its cells run and predictions are made
DISCUSS = 3  # minutes of a core; a schedule has its own for all lessons


@dataclass(frozen=True, slots=True)
class Track:
    """A workshop of so many hours, the lessons of which it does the core, and one that is only shown."""

    name: str
    hours: float
    lessons: tuple[str, ...]
    demonstration: str = ""  # a lesson's number


TRACKS = (
    Track("two hours", 2, ("00", "01", "02"), demonstration="12"),
    Track("three hours", 3, ("00", "01", "04", "06", "07"), demonstration="12"),
    Track("half a day", 3.5, HALF_A_DAY, demonstration="12"),
    Track("one day", 6.5, (*HALF_A_DAY, "02", "05", "08", "12", "14"), demonstration="13"),
    Track("two days", 12, tuple(f"{number:02d}" for number in range(18))),
)
DEMONSTRATION = 10  # minutes


def minutes(lesson: LessonSource) -> dict[str, int]:
    """What the warm-up, the core without it, and More take, in whole minutes."""
    start, warm = lesson.section("Warm-up")
    takes = {"warm-up": 6.0 if warm else 0.0, "core": RUNS + discuss_minutes(lesson), "more": 0.0}
    read = set[str]() if lesson.number == "00" else set(ALIKE.splitlines())
    for n, (cell, of_core) in enumerate(zip(lesson.cells, in_core(lesson.cells), strict=True), 1):
        part = "warm-up" if start <= n < start + len(warm) else "core" if of_core else "more"
        takes[part] += cell_minutes(cell, read)
    takes["more"] += run_seconds(notebook_of(lesson.source)).get("more", 0) / 60
    return {part: round(total) for part, total in takes.items()}


def discuss_minutes(lesson: LessonSource) -> float:
    """What the core's discussion takes; 0 in a lesson that has none."""
    return DISCUSS if lesson.section("Discuss")[0] else 0.0


def cell_minutes(cell: NotebookNode, read: set[str]) -> float:
    """Reading a cell, and doing what it asks; lines in `read` are skipped, and the others are added to it."""
    if cell.cell_type == "markdown":
        return count_words(cell.source) / WORDS_PER_MINUTE
    if match := MAGIC.match(cell.source):
        return MINUTES_PER_QUESTION if ".q" in match[1] else MINUTES_PER_EXERCISE
    code, words = code_and_words(cell.source)
    new = [line for line in code if line not in read]
    read.update(new)
    return len(new) * MINUTES_PER_LINE + words / WORDS_PER_MINUTE


def count_words(text: str) -> int:
    """The words of a markdown text that are read: not where links lead, not its HTML, not its table rules."""
    text = re.sub(r"<!--.*?-->|^```\n.*?^```", " ", text, flags=re.DOTALL | re.MULTILINE)  # drawings, too
    text = re.sub(r"\]\([^)\s]*\)", "] ", text)
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"<[^>]+>", " ", text).split())


def code_and_words(source: str) -> tuple[list[str], int]:
    """The lines of a code cell that do something, and the number of words in its docstrings and comments."""
    lines = [line for line in short_imports(source).splitlines() if not line.startswith("%%")]
    texts = docstring_lines("\n".join(lines))
    code, words = [], 0
    for n, line in enumerate(lines, 1):
        if n in texts or line.strip().startswith("#"):
            words += count_words(line)
        elif line.strip() and not re.match(r"\s*(import |from \S+ import )", line):
            code.append(line)
    return code, words


def docstring_lines(source: str) -> set[int]:
    """The lines, counted from 1, that are docstrings; none where the source is not plain Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return set()
    documented = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module))
    texts = [node.body[0] for node in documented if ast.get_docstring(node)]
    return {n for text in texts for n in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def header_time(lesson: LessonSource) -> Iterator[Problem]:
    """The header's minutes are what the lesson takes without its warm-up, within a part's tolerance."""
    takes, says = minutes(lesson), lesson.frame.minutes
    for part in ("core", MORE):
        said = says.get(part, 0)
        if abs(said - takes[part]) > TOLERANCE[part] * max(said, 1):
            about = f"and it takes about {takes[part]}; correct or shorten it"
            yield 1, f"the header says {part} {said} min, {about}"


def late_tracks(cores: Mapping[str, int]) -> Iterator[str]:
    """A sentence for every track whose cores (minutes by lesson) fill more than two thirds of its hours."""
    for track in TRACKS:
        total = sum(cores.get(number, 0) for number in track.lessons)
        if total > (room := track.hours * 60 * 2 / 3):
            yield f"the cores of the track {track.name} take about {total} min of {room:.0f}; shorten some"


def core_minutes(course: Sequence[Path]) -> dict[str, int]:
    """What the core of each lesson takes without warm-up and discussion, by number."""
    lessons = [LessonSource(source) for source in course]
    return {lesson.number: minutes(lesson)["core"] - round(discuss_minutes(lesson)) for lesson in lessons}
