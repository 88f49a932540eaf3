"""Holds lessons to what a lesson is, and notebooks to be built, up to date, small and without errors.

Anatomy, coverage of the objectives, time and vocabulary have a module of rules each.

python -m course.tools.lint           all lessons; exit code 1 when there is a finding
python -m course.tools.lint 02        one
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course.paths import NOTEBOOKS, ROOT
from course.tools import glossary, guide, schedule
from course.tools.anatomy import RULES
from course.tools.build import BuildError, drift, lesson_sources, notebook_of, source_of, tags
from course.tools.coverage import COVERAGE_RULES
from course.tools.failures import raised_while_shown
from course.tools.folds import FOLD_RULES
from course.tools.laboratory import laboratory
from course.tools.lesson import LessonSource, Problem, local_path
from course.tools.markdown import read_html
from course.tools.parts import run_seconds
from course.tools.times import core_minutes, header_time, late_tracks
from course.tools.vocabulary import early_terms, own_terms

SOURCE_RULES = (*RULES, *COVERAGE_RULES, *FOLD_RULES, laboratory, header_time, early_terms, own_terms)
MAX_KILOBYTES = 600
MIN_ALT_WORDS = 3


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to change: where (cell 0: no cell in particular), and a sentence with its remedy."""

    file: Path
    cell: int
    sentence: str

    def __str__(self) -> str:
        file = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{file}: {f'cell {self.cell}: ' if self.cell else ''}{self.sentence}"


# -------------------------------------------------------------------- rules for the built notebook


def up_to_date(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """The notebook is what its source composes to."""
    if cell := drift(notebook):
        yield cell, f"it is not what the source says now; run make notebooks LESSON={notebook.stem[:2]}"


def size(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """Notebooks are in the repository, and in every clone of it."""
    kilobytes = notebook.stat().st_size / 1000
    if kilobytes > MAX_KILOBYTES:
        sizes = {n: len(str(cell.get("outputs", ""))) for n, cell in enumerate(cells, 1)}
        largest = max(sizes, key=lambda n: sizes[n])
        yield (
            largest,
            f"{kilobytes:.0f} kB are more than {MAX_KILOBYTES}; the output of this cell is the largest",
        )


def ran(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """Every cell ran, and none failed by accident."""
    for n, cell, output in all_outputs(cells):
        if output.output_type == "error" and "raises-exception" not in tags(cell):
            name, _ = raised_while_shown(output.ename, "", [output])
            yield (
                n,
                f"the cell raised {name}; repair it, or tag it raises-exception if it is meant to",
            )
        if "UsageError" in output_text(output):
            yield n, "a magic was refused; correct its name or options, or start the cluster before it"
    for n, cell in enumerate(cells, 1):
        if cell.cell_type == "code" and cell.execution_count is None:
            yield n, f"the cell was not run; run make notebooks LESSON={notebook.stem[:2]}"


def run_time(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """The build wrote down how long the cells ran."""
    if not run_seconds(notebook):
        yield 1, f"it does not say how long it ran; run make notebooks LESSON={notebook.stem[:2]}"


def outputs(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """Outputs are for every machine and every reader."""
    for n, _, output in all_outputs(cells):
        if path := local_path(output_text(output)):
            yield n, f"the output has {path}, a path of one machine; do not print it"
        if any(len(alt.split()) < MIN_ALT_WORDS for alt in output_alts(output)):
            yield n, "an image has no alt text; show it as a Picture from mpi_classroom.figures"


UNTRUE = {
    r"not measured yet": "is not measured yet; measure it, or remove the cell",
    r"\b\w*Warning: ": "prints a warning; remove its cause",
    r"\b(?:measured|predicted|computed) -?(?:inf|nan)\b": "gives inf or nan as a result; say it in words",
    r"still being written": "calls a lesson unwritten; build again when it is there",
}
STAND_IN = re.compile(r"stand in for")


def agrees_with_text(notebook: Path, cells: Sequence[NotebookNode]) -> Iterator[Problem]:
    """No output contradicts the text around it: kinds that were found in lessons, by what they print."""
    heading = ""
    for n, cell in enumerate(cells, 1):
        if cell.cell_type == "markdown":
            heading = next(reversed(re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE)), heading)
        for output in cell.get("outputs", []):
            text = output_text(output)
            for pattern, sentence in UNTRUE.items():
                if re.search(pattern, text):
                    yield n, f"the output {sentence}"
            if STAND_IN.search(text) and re.search(r"\breal\b", heading, re.IGNORECASE):
                yield n, f"generated data stand under the heading {heading!r}; have the data, or name them"


def all_outputs(cells: Sequence[NotebookNode]) -> Iterator[tuple[int, NotebookNode, NotebookNode]]:
    """Every output with its cell and the cell's number."""
    for n, cell in enumerate(cells, 1):
        for output in cell.get("outputs", []):
            yield n, cell, output


def output_text(output: NotebookNode) -> str:
    """All that an output says in letters."""
    data = [str(value) for mime, value in output.get("data", {}).items() if not mime.startswith("image/")]
    return "\n".join([output.get("text", ""), *output.get("traceback", []), *data])


def output_alts(output: NotebookNode) -> Iterator[str]:
    """The alt text of every image in an output, empty where it has none."""
    data = output.get("data", {})
    html = data.get("text/html", "")
    yield from read_html(html).images
    for mime in data:
        if mime.startswith("image/") and "<img" not in html:
            yield str(output.metadata.get(mime, {}).get("alt", ""))


BUILT_RULES: tuple[Callable[[Path, Sequence[NotebookNode]], Iterator[Problem]], ...] = (
    up_to_date,
    size,
    ran,
    run_time,
    outputs,
    agrees_with_text,
)

# -------------------------------------------------------------------- all together


def lint_lesson(source: Path) -> list[Finding]:
    """All findings in one lesson: its source, then its notebook."""
    try:
        lesson = LessonSource(source)
    except BuildError as error:
        return [Finding(source, error.cell or 1, error.sentence)]
    found = [Finding(source, n, sentence) for rule in SOURCE_RULES for n, sentence in rule(lesson)]
    notebook = notebook_of(source)
    if not notebook.exists():
        return [*found, Finding(notebook, 1, f"it is not built; run make notebooks LESSON={lesson.number}")]
    cells = nbformat.read(notebook, as_version=4).cells
    return found + [
        Finding(notebook, n, sentence) for rule in BUILT_RULES for n, sentence in rule(notebook, cells)
    ]


def strangers(folder: Path) -> list[Finding]:
    """Notebooks in `folder` that no source makes."""
    sentence = "it has no source; write course/lessons/l{path.stem}/lesson.py, or remove it"
    return [
        Finding(path, 1, sentence.format(path=path))
        for path in sorted(folder.glob("*.ipynb"))
        if not source_of(path).exists()
    ]


def of_the_course(course: Sequence[Path]) -> list[Finding]:
    """Tracks that do not fit into their hours; a glossary or a guide that is not what the lessons say."""
    try:
        sentences = [*late_tracks(core_minutes(course)), *glossary.stale(), *schedule.stale(), *guide.stale()]
    except BuildError:
        return []  # the lesson's own finding
    return [Finding(course[0].parents[1], 0, sentence) for sentence in sentences] if course else []


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """Print one line for each finding in the named lessons, or in all; 1 when there are any."""
    parser = argparse.ArgumentParser(prog="python -m course.tools.lint", description="Check the lessons.")
    parser.add_argument("lesson", nargs="*", help="number (02) or stem; none means all")
    names = parser.parse_args(arguments).lesson
    sources = folder.parent / "course" / "lessons"
    try:
        course, chosen = lesson_sources((), sources), lesson_sources(names, sources)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    findings = [finding for source in chosen for finding in lint_lesson(source)]
    findings += [] if names else [*of_the_course(course), *strangers(folder)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
