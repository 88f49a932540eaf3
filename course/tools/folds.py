"""Folds: what answers a prediction or a vote is closed until the reader opens it.

A question is asked by `predict("…", …)`, or by a text with a bold **Vote** or **Predict**. It is answered by
the next fold in a text,

    <details><summary>Open after the run</summary>

    Two ranks halve the time. **Four** gain nothing more.

    </details>

or by the cell that calls `outcome("…", …)` (after a vote, any `outcome`), before the next heading of level 2.
The author writes no more than that: the site and the slides fold the output of every cell between question
and answer, that of `outcome` included. With the empty lines, markdown, tables and formulas work in the fold.
A notebook itself is left as it is: learners get copies without outputs.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from course.tools.coverage import asked
from course.tools.lesson import LessonSource, Problem
from course.tools.markdown import raw_html

OUTPUT_TITLE = "Output (predict first)"
FOLD = re.compile(r"<details\b.*?</details>", re.DOTALL)
BEGIN = "<details"  # stands for a whole fold where its words do not count
ASKS = re.compile(r"\*\*(?:Vote|Predict)\b")
HEADING = re.compile(r"^## ", re.MULTILINE)
TELLS = re.compile(r"^(?:#|\|)", re.MULTILINE)  # a heading, a row of a table
MARKDOWN = re.compile(r"\*\*\w|`|\]\(|\$")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a lesson: the cells where it is asked and answered, counted from 0."""

    question: str  # what predict() asks; empty for a vote
    cell: int
    answer: int | None

    @property
    def words(self) -> str:
        """How a finding names it."""
        return f"predict({self.question!r}, …)" if self.question else "the vote or prediction in this text"


def questions(cells: Sequence[NotebookNode]) -> Iterator[Asked]:
    """Every prediction and vote, in order, with the cell that answers it."""
    for n, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            text = FOLD.sub(BEGIN, cell.source)
            asks = [("", text[match.end() :]) for match in ASKS.finditer(text)]
        else:
            asks = [(question, "") for question in asked(cell.source, "predict")]
        for question, rest in asks:
            yield Asked(question, n, _answer(question, rest, n, cells))


def _answer(question: str, rest: str, n: int, cells: Sequence[NotebookNode]) -> int | None:
    """The cell that answers what cell `n` asks before the text `rest`."""
    texts = [(n, rest), *((n + later, cell.source) for later, cell in enumerate(cells[n + 1 :], 1))]
    for place, text in texts:
        if place > n and cells[place].cell_type == "code":
            compared = asked(text, "outcome")
            if question in compared or (compared and not question):
                return place
            continue
        before, *after = HEADING.split(text, maxsplit=1)
        if BEGIN in before:
            return place
        if after:
            return None
    return None


def folded(cells: Sequence[NotebookNode]) -> list[bool]:
    """For every cell whether what it shows would give away an answer that the reader has not opened."""
    closed = [False] * len(cells)
    for each in questions(cells):
        for n in range(each.cell + 1, each.cell if each.answer is None else each.answer + 1):
            closed[n] = _shows(cells[n])
    return closed


def _shows(cell: NotebookNode) -> bool:
    """Whether a cell shows what it computes: not a guess, not the verdict on an exercise."""
    code = cell.cell_type == "code"
    return code and not cell.source.startswith("%%exercise") and not asked(cell.source, "predict")


def answers(cells: Sequence[NotebookNode]) -> list[bool]:
    """For every cell whether it is a text that answers, in its fold, what an earlier cell asks."""
    found = {each.answer for each in questions(cells) if each.answer != each.cell}
    return [n in found and cell.cell_type == "markdown" for n, cell in enumerate(cells)]


# -------------------------------------------------------------------- rules


def questions_are_answered(lesson: LessonSource) -> Iterator[Problem]:
    """Every prediction and vote has an answer to open."""
    for each in questions(lesson.cells):
        if each.answer is None:
            sentence = "is not answered before the next '## '; add a fold (<details>) or outcome(…)"
            yield each.cell + 1, f"{each.words} {sentence}"


def nothing_tells_the_answer(lesson: LessonSource) -> Iterator[Problem]:
    """No heading and no table stands between a question and its answer."""
    for each in questions(lesson.cells):
        for n in range(each.cell + 1, each.answer or 0):
            if lesson.cells[n].cell_type == "markdown" and TELLS.search(lesson.cells[n].source):
                yield n + 1, f"this may tell the answer to {each.words}; put it below the fold or outcome(…)"


def folds_show_markdown(lesson: LessonSource) -> Iterator[Problem]:
    """Markdown in a fold is shown as such."""
    for n, text, _ in lesson.pages:
        for block in raw_html(text):
            if BEGIN in block and MARKDOWN.search(block):
                yield n, "markdown in the fold is shown as it stands; put an empty line after </summary>"


FOLD_RULES = (questions_are_answered, nothing_tells_the_answer, folds_show_markdown)
