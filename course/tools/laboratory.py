"""The laboratory's rules: code in sight, a program to take home, twenty minutes, counted numbers.

Nbval passes over no more outputs of a lesson than IGNORED says; these numbers only fall.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

import nbformat
from nbformat import NotebookNode

from course.tools.build import (
    SHOWN_TAG,
    BuildError,
    differing_files,
    lesson_sources,
    notebook_of,
    tags,
    take_home_files,
)
from course.tools.coverage import COMMAND
from course.tools.frame import SETUP, stem
from course.tools.lesson import LessonSource, Problem
from course.tools.parts import in_core
from course.tools.times import code_and_words, count_words
from mpi_classroom.take_home import FOLDER, SAVED, STARTS

MAX_WORDS, MAX_LINES = 850, 80  # of a core without header and warm-up, imports and docstrings
MAX_OWN_LINES = 80  # of a program to take home, besides what it has from the library
IGNORE = "nbval-ignore-output"
IGNORED: Mapping[str, int] = {
    "00": 4, "01": 7, "02": 4, "03": 9, "04": 6, "05": 6, "06": 7, "07": 6, "08": 4,
    "09": 3, "10": 3, "11": 1, "12": 2, "13": 7, "14": 8, "15": 6, "16": 3,
    "17": 1,
}  # fmt: skip
# What a program to take home imports: public packages, and torch_mpi4py where torch uses MPI.
PUBLIC = {*sys.stdlib_module_names, "numpy", "torch", "mpi4py", "deepspeed", "transformers", "torch_mpi4py"}
# A learner reads them whole.
ONE_PAGE = tuple(f"course_lib.{name}" for name in ("effects", "measure", "rows", "training.kept"))
FIGURES = re.compile(r"course\.lessons\.\w+\.figures(\.\w+)?$")


def code_in_sight(lesson: LessonSource) -> Iterator[Problem]:
    """What a core imports of ours is a picture, or something whose source was shown."""
    seen = shown_names(lesson.cells) | {name for other in needed(lesson) for name in shown_names(other.cells)}
    for n, cell in core_code(lesson):
        for module, name in imports(cell.source):
            package = module.partition(".")[0]
            if package == "course" and not FIGURES.match(module):
                yield (
                    n,
                    f"a core imports only figures from the lessons, not {module}:{name}; write it here",
                )
            elif package == "course_lib" and module not in ONE_PAGE and name not in seen:
                yield n, f"{name} of {module} was not shown; put a cell 'source: {module}:{name}' above"


def shown_names(cells: Sequence[NotebookNode]) -> set[str]:
    """The names whose source the cells show."""
    found = (SHOWN_TAG.fullmatch(tag) for cell in cells for tag in tags(cell))
    return {match[1].partition(":")[2] for match in found if match}


def needed(lesson: LessonSource) -> list[LessonSource]:
    """The lessons that this one names as needed before it, on every track."""
    numbers = re.findall(r"\{(\d\d)\}", lesson.frame.before.partition("Helpful")[0])
    course = lesson_sources((), lesson.source.parents[1])
    return [LessonSource(source) for source in course if stem(source)[:2] in numbers]


def core_code(lesson: LessonSource) -> list[tuple[int, NotebookNode]]:
    """The code cells of the core, with their numbers."""
    core = in_core(lesson.cells)
    return [(n, cell) for n, cell in lesson.code if core[n - 1]]


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of what the code imports; of `import a.b`, "a.b" twice."""
    python = source.partition("\n")[2] if source.startswith("%%") else source
    for node in ast.walk(ast.parse(COMMAND.sub(r"\1pass", python))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def twenty_minutes(lesson: LessonSource) -> Iterator[Problem]:
    """A core has so many words and lines; folds, shown sources and stubs count."""
    start, warm = lesson.section("Warm-up")
    texts = [cell for n, cell in enumerate(lesson.cells, 1) if not (n == 1 or start <= n < start + len(warm))]
    words = sum(
        count_words(cell.source) for cell in texts if cell.cell_type == "markdown" and all(in_core([cell]))
    )
    own = [cell.source for _, cell in core_code(lesson) if not cell.source.startswith(SETUP)]
    lines = sum(len(code_and_words(source)[0]) for source in own)
    for count, most, what in ((words, MAX_WORDS, "words"), (lines, MAX_LINES, "lines of code")):
        if count > most:
            yield 1, f"the core has {count} {what}; cut it to {most}"


def take_home(lesson: LessonSource) -> Iterator[Problem]:
    """One program, from public packages alone, and as long as one reads at a sitting; none of an elective."""
    files = take_home_files(nbformat.v4.new_notebook(cells=lesson.cells))
    if lesson.frame.elective:
        yield from ((1, f"an elective has no program to take home; remove --save {name}") for name in files)
        return
    if len(files) != 1:
        yield 1, f"the lesson makes {len(files)} programs; let its cells say --save {lesson.number}_topic.py"
    for name, text in files.items():
        if not name.startswith(f"{lesson.number}_"):
            yield 1, f"the program is called {name}; call it {lesson.number}_topic.py"
        if STARTS not in text:
            yield 1, f"{FOLDER}/{name}: what starts it must stay last; put it below {STARTS}:"
        for module, _ in imports(text):
            if module.partition(".")[0] not in PUBLIC:
                yield 1, f"{FOLDER}/{name} imports {module}; show its source in a cell that is saved"
        if (own := own_lines(lesson)) > MAX_OWN_LINES:
            yield 1, f"{FOLDER}/{name} has {own} lines of its own; cut it to {MAX_OWN_LINES}"
    for name in differing_files(lesson.source):
        yield 1, f"{FOLDER}/{name} is not what the cells say; run make notebooks LESSON={lesson.number}"


def own_lines(lesson: LessonSource) -> int:
    """The lines of the program to take home that are not the library's."""
    own = [cell for _, cell in lesson.code if SAVED.match(cell.source) and not shown_names([cell])]
    return sum(bool(line.strip()) for cell in own for line in cell.source.splitlines()[1:])


def counted(lesson: LessonSource) -> Iterator[Problem]:
    """nbval compares a number that the core counted, and passes over no more outputs than before."""
    ignored, allowed = sum(IGNORE in tags(cell) for cell in lesson.cells), IGNORED.get(lesson.number, 0)
    if ignored > allowed:
        yield 1, f"nbval passes over {ignored} outputs, {allowed} are allowed; print what is counted"
    notebook = notebook_of(lesson.source)
    if not notebook.exists():
        return
    built = nbformat.read(notebook, as_version=4).cells
    core = [
        cell for cell, kept in zip(built, in_core(built), strict=True) if kept and cell.cell_type == "code"
    ]
    compared = [
        cell for cell in core if IGNORE not in tags(cell) and not cell.source.startswith("%%exercise")
    ]
    if not any(re.search(r"\d", output.get("text", "")) for cell in compared for output in cell.outputs):
        yield 1, "no output of the core that nbval compares has a number; print one that is counted"


def laboratory(lesson: LessonSource) -> Iterator[Problem]:
    """All these rules."""
    for rule in (code_in_sight, twenty_minutes, take_home):
        try:
            yield from rule(lesson)
        except BuildError as error:
            yield error.cell or 1, error.sentence
    yield from counted(lesson)
