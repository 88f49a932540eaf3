"""A lesson as a page: the committed notebook with what needs no kernel in place of what does.

Outputs that answer a prediction are folded (`course.tools.folds`). Cells of exercises lose their "not
attempted" and get folded hints; questions become options that reply; links to headings are written as Sphinx
writes them. All else, outputs with their alt text included, stays.
"""

import re

import nbformat
from nbformat import NotebookNode

from course.tools.catalogue import Lesson
from course.tools.folds import OUTPUT_TITLE, folded
from course.tools.site.practice import exercise_help, exercise_text, question_page
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import find_exercise

EXERCISE = re.compile(r"%%exercise (\S+)")
ANCHOR = re.compile(r"(\]\((?:[\w./-]+\.ipynb)?#)([^)\s]+)\)")
LEXER = "lesson-cell"  # in `docs/site/course_site.py`
RUN_IT = (
    "*This page shows the outputs of one run on 2 cores. To run the lesson yourself: `make lab`, then open "
    "`{name}`.*"
)


def slug(heading: str) -> str:
    """The anchor of a heading on the site, as in `docs/site/course_site.py`."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def site_links(text: str) -> str:
    """The text with the anchors of notebooks (JupyterLab replaces spaces alone) as those of the site."""
    return ANCHOR.sub(lambda match: f"{match[1]}{slug(match[2].replace('-', ' '))})", text)


def lesson_page(lesson: Lesson) -> NotebookNode:
    """The notebook of the page of `lesson`."""
    notebook = nbformat.read(lesson.path, as_version=4)
    cells: list[NotebookNode] = []
    fold_outputs(notebook.cells)
    for cell in notebook.cells:
        exercise = EXERCISE.match(cell.source) if cell.cell_type == "code" else None
        if exercise:
            cells = _practised(cells, cell, exercise[1])
            continue
        if cell.cell_type == "markdown":
            cell.source = site_links(cell.source)
        cells.append(cell)
    cells[0].source += "\n\n" + RUN_IT.format(name=lesson.path.name)
    notebook.cells = cells
    notebook.metadata.language_info.pygments_lexer = LEXER
    return notebook


def fold_outputs(cells: list[NotebookNode]) -> None:
    """Mark the outputs that answer a prediction; `docs/site/course_site.py` puts them into folds."""
    for cell, closed in zip(cells, folded(cells), strict=True):
        if closed:
            cell.metadata["fold"] = OUTPUT_TITLE


def _practised(before: list[NotebookNode], cell: NotebookNode, id: str) -> list[NotebookNode]:
    """Cells as the page shows them: those `before`, the last with the text of exercise `id`, and `cell`."""
    item = find_exercise(id)
    if before[-1].source != item.text:
        raise ValueError(f"the cell above %%exercise {id} is not its text; build the lesson again")
    if isinstance(item, Question):
        return [*before[:-1], nbformat.v4.new_markdown_cell(question_page(item))]
    cell.outputs = []
    above, below = exercise_text(item), exercise_help(item)
    return [*before[:-1], nbformat.v4.new_markdown_cell(above), cell, nbformat.v4.new_markdown_cell(below)]
