"""What several tests use."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpi_classroom import answer_job
from mpi_classroom.answer_job import Verdict
from mpi_classroom.lessons import load

EXERCISE = """
from mpi_classroom.exercises import Exercise

STUB = "def answer(comm):\\n    ..."
EXERCISE = Exercise(
    id="99.1", title="", stub=STUB, hints=("", "", ""), solution="", wrong=(), why="", sizes=(2,),
    check=lambda answer, comm, case: answer.answer(comm),
)
"""


@pytest.fixture
def check_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Verdict]:
    """Checks an answer to an exercise of its own, which calls `answer(comm)` on two ranks."""
    (tmp_path / "of_its_own.py").write_text(EXERCISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(answer_job, "reference", lambda id: "of_its_own:EXERCISE")
    exercise = load("of_its_own:EXERCISE")
    monkeypatch.delitem(sys.modules, "of_its_own")
    return lambda source: answer_job.check(exercise, source)
