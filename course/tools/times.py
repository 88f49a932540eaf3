"""How long a lesson takes, and whether what its header says, and what the tracks promise, is so.

    minutes = words / 180  +  8 s a line of code  +  6 an exercise  +  2 a question  +  run time

A question of the warm-up counts like one of the quiz; a prediction is part of reading. The cell of an
exercise is part of its six minutes. Docstrings and comments are words. Imports are not read: the text says
what they bring. Nor is a line of code that was there before: neither a repeated one, nor setup and teardown,
which are alike in all lessons. The run time is what the build measured and wrote into the notebook.

A workshop that runs lessons one after the other skips the warm-ups, so tracks count the cores without them.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from course.tools.anatomy import SETUP, TEARDOWN, short_imports
from course.tools.build import notebook_of, stem_of
from course.tools.lesson import LessonSource, Problem
from course.tools.parts import in_core, run_seconds
from course.tools.practice import MAGIC

WORDS_A_MINUTE = 180
SECONDS_A_LINE = 8
MINUTES_AN_EXERCISE = 6
MINUTES_A_QUESTION = 2
WARM_UP_QUESTIONS = 3
TOLERANCE = 0.25
RANKS_SETUP = "from mpi4py import MPI\n\ncomm = MPI.COMM_WORLD\nrank, size = comm.rank, comm.size"
IMPORT = re.compile(r"\s*(import |from \S+ import )")
FIRST = "00"  # the lesson in which setup and teardown are new
RESERVED_CORE = 14  # of a lesson that is not written yet
RESERVED_MORE = 28
ELECTIVE = 10  # for whoever chooses it, in place of another lesson's More


@dataclass(frozen=True, slots=True)
class Minutes:
    """What the parts of a lesson take, in whole minutes; `core` is without the warm-up."""

    warm_up: int
    core: int
    more: int


@dataclass(frozen=True, slots=True)
class Track:
    """A workshop: the lessons of which it does the core, in how many minutes."""

    name: str
    lessons: tuple[str, ...]
    minutes: int
    shown: Mapping[str, int]  # lessons that are only demonstrated, and the minutes for it
    more: bool = False


TWO_HOURS = ("00", "01", "02", "04", "06", "07", "11", "12")
DEMONSTRATION = {"13": 8}
TWO_DAYS = tuple(f"{number:02d}" for number in range(17) if number != ELECTIVE)
TRACKS = (
    Track("two hours", TWO_HOURS, 120, DEMONSTRATION),
    Track("one day", (*TWO_HOURS, "03", "05", "08", "09"), 7 * 60, DEMONSTRATION),
    Track("two days", TWO_DAYS, 14 * 60, {}, more=True),
)

# -------------------------------------------------------------------- what a lesson takes


def minutes(lesson: LessonSource) -> Minutes:
    """What the warm-up, the rest of the core, and More take."""
    start, warm = lesson.section("Warm-up")
    parts = {"warm": 0.0, "core": 0.0, "more": 0.0}
    core = in_core(lesson.cells)
    known = (
        set[str]() if lesson.number == FIRST else set("\n".join([SETUP, TEARDOWN, RANKS_SETUP]).splitlines())
    )
    for n, cell in enumerate(lesson.cells, 1):
        part = "warm" if start <= n < start + len(warm) else "core" if core[n - 1] else "more"
        parts[part] += cell_minutes(cell, known)
    for part, seconds in run_seconds(notebook_of(lesson.source)).items():
        parts[part] += seconds / 60
    parts["warm"] += MINUTES_A_QUESTION * WARM_UP_QUESTIONS * bool(warm)
    return Minutes(round(parts["warm"]), round(parts["core"]), round(parts["more"]))


def cell_minutes(cell: NotebookNode, known: set[str]) -> float:
    """Reading a cell, and doing what it asks; lines in `known` are not read, and the others are added."""
    if cell.cell_type == "markdown":
        return count_words(cell.source) / WORDS_A_MINUTE
    if match := MAGIC.match(cell.source):
        return MINUTES_A_QUESTION if ".q" in (match[1] or "") else MINUTES_AN_EXERCISE
    code, words = code_and_words(cell.source)
    new = [line for line in code if line not in known]
    known.update(new)
    return len(new) * SECONDS_A_LINE / 60 + words / WORDS_A_MINUTE


def count_words(text: str) -> int:
    """The words of a markdown text that are read: not where links lead, not its HTML, not its table rules."""
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)\s]*\)", "] ", text)
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"<[^>]+>", " ", text).split())


def code_and_words(source: str) -> tuple[list[str], int]:
    """The lines of a code cell that do something, and the number of words in its docstrings and comments."""
    lines = [
        "" if n == 0 and line.startswith("%%") else line
        for n, line in enumerate(short_imports(source).splitlines())
    ]
    told = docstring_lines("\n".join(lines))
    told |= {n for n, line in enumerate(lines, 1) if line.strip().startswith("#")}
    code = [
        line for n, line in enumerate(lines, 1) if n not in told and line.strip() and not IMPORT.match(line)
    ]
    return code, sum(count_words(lines[n - 1]) for n in told)


def docstring_lines(source: str) -> set[int]:
    """The lines, counted from 1, that are docstrings; none where the source is not plain Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    found = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
            text = node.body[0]
            found |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return found


# -------------------------------------------------------------------- rules


def header_time(lesson: LessonSource) -> Iterator[Problem]:
    """The header's minutes are what the lesson takes, within a quarter."""
    said = re.search(r"core (\d+) min · more (\d+) min", lesson.cells[0].source if lesson.cells else "")
    if said is None:
        return  # another rule says so
    takes = minutes(lesson)
    for name, says, is_ in (
        ("core", int(said[1]), takes.warm_up + takes.core),
        ("more", int(said[2]), takes.more),
    ):
        if abs(says - is_) > TOLERANCE * max(says, 1):
            yield 1, f"the header says {name} {says} min, and it takes about {is_}; correct or shorten it"


def core_time(lesson: LessonSource) -> Iterator[Problem]:
    """In the shortest track, a core has its share of the time."""
    takes = minutes(lesson).core
    if lesson.number in TWO_HOURS and takes > RESERVED_CORE:
        room = f"a track of two hours has {RESERVED_CORE}; move something to More"
        yield 1, f"the core takes about {takes} min without the warm-up, and {room}"


def track_times(course: Mapping[str, Minutes]) -> Iterator[str]:
    """A sentence for every track that does not fit into its hours; lessons not written count as reserved."""
    for track in TRACKS:
        parts = [course.get(number, Minutes(0, RESERVED_CORE, RESERVED_MORE)) for number in track.lessons]
        total = sum(part.core + part.more * track.more for part in parts) + sum(track.shown.values())
        if total > track.minutes:
            yield f"the track {track.name} takes about {total} min and has {track.minutes}; shorten a lesson"


def course_minutes(course: Sequence[Path]) -> dict[str, Minutes]:
    """What each lesson of the course takes, by number."""
    return {stem_of(source)[:2]: minutes(LessonSource(source, course)) for source in course}


TIME_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (header_time, core_time)
