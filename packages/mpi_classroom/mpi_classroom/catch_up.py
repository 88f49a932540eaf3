"""`catch_up("04.2")`: what a latecomer needs to begin with exercise 04.2.

    from mpi_classroom.catch_up import catch_up     or just catch_up(…): start_cluster() makes it known

The cells of the lesson before that exercise are run, in the kernel and on the ranks, with the solutions in
the place of the exercises. They are taken from the lesson as it was published: no file is read that you have
edited, and none is written. Their outputs are not shown. Cells that raise on purpose are left out, for they
leave nothing behind, or cost the ranks their variables.
"""

import json
from pathlib import Path
from typing import Any

from IPython.utils.capture import capture_output

from mpi_classroom.errors import CourseError
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import course_of, find_exercise
from mpi_classroom.practice import Practice, current_practice
from mpi_classroom.welcome import StatusLine

MAGIC = "%%exercise "
SETUP = "cluster = start_cluster("
Cell = dict[str, Any]


class CatchUpError(CourseError):
    """Why it is not possible to catch up, or where it stopped."""


def catch_up(id: str, *, folder: Path | None = None) -> None:
    """Run what comes before exercise `id` in its lesson; raises CatchUpError with one sentence.

    `folder` has the lessons; without it, their course knows where they are.
    """
    lesson, cells = cells_before(id, folder)
    practice = current_practice()
    if practice is None or not practice.cluster.alive:
        raise CatchUpError('there is no cluster yet; run the cell below "Setup", then catch_up again')
    practice.shell.push({"cluster": practice.cluster}, interactive=False)
    line = StatusLine()
    solved = list[str]()
    for done, (number, cell) in enumerate(cells):
        line.show(f"Catching up with {id}: {done} of {len(cells)} cells")
        try:
            with capture_output():
                solved += _run(practice, cell)
        except (Exception, KeyboardInterrupt) as error:  # whatever a cell raises, we end with it
            raise CatchUpError(
                f"stopped at cell {number} of {lesson}: {_what(error)}. Restart the kernel, run the cell "
                f'below "Setup", then catch_up("{id}") again'
            ) from None
    solutions = f", with the solution of {' and '.join(solved)}" if solved else ""
    line.show(f"You are at {id}: {len(cells)} cells of {lesson} have run{solutions}.", final=True)


def cells_before(id: str, folder: Path | None = None) -> tuple[str, list[tuple[int, Cell]]]:
    """The lesson that has exercise `id`, and its code cells up to it, numbered as in the notebook.

    Raises CatchUpError.
    """
    try:
        find_exercise(id)
    except LookupError as error:
        raise CatchUpError(str(error)) from None
    course = course_of(id.partition(".")[0])
    folder = folder or (course.notebooks if course else None)
    if folder is None:
        raise CatchUpError(f"the course of exercise {id} does not say where its notebooks are")
    for path in sorted(folder.glob(f"{id[:2]}_*.ipynb")):
        cells = _read(path)
        for index, cell in enumerate(cells):
            if _exercise(cell) == id:
                code = [(n, each) for n, each in enumerate(cells[:index], 1) if each["cell_type"] == "code"]
                return path.stem, code
    raise CatchUpError(f"no lesson in {folder} has exercise {id}; was its notebook removed?")


def _read(path: Path) -> list[Cell]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["cells"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CatchUpError(f"{path} is not a readable notebook; restore it with git") from None


def _exercise(cell: Cell) -> str:
    """The id of the exercise that a cell is for; "" for other cells."""
    first = _source(cell).partition("\n")[0]
    return first.removeprefix(MAGIC).split()[0] if first.startswith(MAGIC) else ""


def _source(cell: Cell) -> str:
    return "".join(cell["source"])


def _run(practice: Practice, cell: Cell) -> list[str]:
    """Run a cell, or the solution instead; return the exercises that this solved."""
    source = _source(cell)
    if id := _exercise(cell):
        exercise = find_exercise(id)
        if isinstance(exercise, Question):
            return []
        practice.define_solution(exercise)
        return [id]
    if SETUP not in source and "raises-exception" not in cell.get("metadata", {}).get("tags", []):
        practice.shell.ex(practice.shell.transform_cell(source))
    return []


def _what(error: BaseException) -> str:
    """The first line of an error."""
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(error, KeyboardInterrupt):
        return "you interrupted it"
    if isinstance(error, CourseError) or first.startswith("rank"):
        return first
    return f"{type(error).__name__}: {first}"
