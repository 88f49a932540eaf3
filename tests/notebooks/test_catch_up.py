"""A latecomer catches up with an exercise, in a real kernel, and the lesson goes on.

Of a few lessons, the first exercise and a few cells after it. All exercises, up to the next or to the
lesson's end, are tests of a release: trainings are among the cells.
"""

import json
import shutil
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

from course.paths import NOTEBOOKS
from course.tools.catalogue import find_lessons
from course.tools.coverage import MAGIC
from course.tools.frame import SETUP, TEARDOWN
from mpi_classroom.exercises import Exercise
from mpi_classroom.lessons import exercises_of, find_exercise, lessons
from packages.mpi_classroom.tests.kernel import open_notebook

BUILT = {lesson.number: lesson for lesson in find_lessons(NOTEBOOKS)}
IDS = [item.id for number in lessons() if number in BUILT for item in exercises_of(number)]
EXERCISES = [id for id in IDS if isinstance(find_exercise(id), Exercise)]
NEXT = dict(pairwise([*EXERCISES, ""]))
FEW = 3  # cells
QUICK = [id for id in ("00.1", "04.4") if id in IDS]
SECONDS = 240.0  # the training of a whole epoch is among the cells


def code_cells(number: str) -> tuple[list[dict], list[str]]:
    """The code cells of a lesson, and what is in them."""
    cells = json.loads(BUILT[number].path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return code, ["".join(cell["source"]) for cell in code]


def exercise_of(source: str) -> str | None:
    """The exercise that a cell is the answer to, whether or not a program keeps it."""
    match = MAGIC.match(source)
    return match and match[1]


def place(id: str, sources: list[str]) -> int:
    return next(n for n, source in enumerate(sources) if exercise_of(source) == id)


def cells_from(id: str) -> Iterator[tuple[str, bool]]:
    """The code cells after exercise `id` up to the next, and whether each raises on purpose."""
    code, sources = code_cells(id[:2])
    begin = place(id, sources)
    for cell, source in zip(code[begin + 1 :], sources[begin + 1 :], strict=True):
        if source == TEARDOWN or exercise_of(source) == NEXT[id]:
            return
        yield source, "raises-exception" in cell["metadata"].get("tags", [])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("id", QUICK)
def test_after_catching_up_the_solution_passes_and_the_lesson_goes_on(id: str, tmp_path: Path) -> None:
    catches_up_and_goes_on(id, tmp_path, FEW)


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("id", EXERCISES)
def test_after_catching_up_the_whole_lesson_goes_on(id: str, tmp_path: Path) -> None:
    catches_up_and_goes_on(id, tmp_path)


def catches_up_and_goes_on(id: str, folder: Path, cells: int | None = None) -> None:
    """Catch up with an exercise, solve it, and run so many cells after it, or all up to the next.

    The notebook is in `folder`, where programs to take home find their data.
    """
    shutil.copytree(NOTEBOOKS / "code", folder / "code")
    exercise = find_exercise(id)
    assert isinstance(exercise, Exercise)
    with open_notebook(IPP_NONINTERACTIVE="1") as notebook:
        notebook.run(f"%cd -q {folder}")
        assert notebook.run(SETUP).error == ""
        ran = notebook.run(f'catch_up("{id}")', within=SECONDS)
        assert ran.error == ""
        assert ran.output.strip().splitlines()[-1].startswith(f"You are at {id}: "), ran.output
        assert len(ran.output.strip().splitlines()) == 1, "calm"
        verdict = notebook.run(f"%%exercise {id}\n{exercise.solution}")
        assert "✓" in verdict.output, verdict.text
        for source, raises in islice(cells_from(id), cells):
            after = notebook.run(source, within=SECONDS)
            assert raises or after.error == "", f"{source}\n{after.text}"


def test_catching_up_can_be_imported_and_every_failure_is_one_sentence(tmp_path: Path) -> None:
    cells = [SETUP, "%%px\nx = 1 / (rank - 1)", "%%exercise 01.1\npass"]
    content = [{"cell_type": "code", "source": [cell], "metadata": {}} for cell in cells]
    (tmp_path / "01_broken.ipynb").write_text(json.dumps({"cells": content}))
    broken = f"from pathlib import Path; catch_up('01.1', folder=Path({str(tmp_path)!r}))"
    with open_notebook(IPP_NONINTERACTIVE="1") as notebook:
        notebook.run("from mpi_classroom.catch_up import catch_up")
        assert 'run the cell below "Setup"' in notebook.run('catch_up("01.1")').error
        notebook.run(SETUP.replace("n=4", "n=2"))
        notebook.run("%%px\nrank = __import__('mpi4py.MPI').MPI.COMM_WORLD.rank")
        unknown = notebook.run('catch_up("01.9")').error.strip()
        assert unknown.startswith("CatchUpError: there is no exercise '01.9'; lesson 01 has 01.1")
        failed = notebook.run(broken)
        assert failed.error.strip().startswith(
            "CatchUpError: stopped at cell 2 of 01_broken: rank 1 raised ZeroDivisionError: division by zero."
        )
        assert "\n" not in failed.error.strip() and "Traceback" not in failed.text
        notebook.run("cluster.stop()")
        assert 'run the cell below "Setup"' in notebook.run('catch_up("01.1")').error
