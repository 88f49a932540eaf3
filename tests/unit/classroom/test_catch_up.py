"""Catching up: which cells are run, what stands in for an exercise, and how every failure is one sentence."""

import json
from pathlib import Path

import pytest

from mpi_classroom import practice as exercise
from mpi_classroom.catch_up import CatchUpError, catch_up
from mpi_classroom.practice import Practice
from tests.unit.classroom.test_exercise import Cluster
from tests.unit.classroom.test_exercise import Shell as PlainShell

CELLS = [
    ("markdown", "# 01 · MPI basics", []),
    ("code", "from mpi_classroom.cluster import start_cluster\n\ncluster = start_cluster(n=4)", []),
    ("code", "x = 1\nprint('shown to nobody')", []),
    ("code", "raise ValueError('on purpose')", ["raises-exception"]),
    ("code", "%%exercise 01.1\ndef shift(comm, value):\n    return None", []),
    ("code", '%%exercise 01.q4\nanswer("")', []),
    ("code", '%%exercise 01.2\norder("")', []),
    ("code", "x = 2", []),
    ("code", "%%exercise 01.3\npass", []),
    ("code", "x = 3", []),
]


class Shell(PlainShell):
    def transform_cell(self, source: str) -> str:
        return source


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    """A folder with one lesson."""
    write(tmp_path, CELLS)
    return tmp_path


def write(folder: Path, cells: list[tuple[str, str, list[str]]]) -> None:
    content = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": {"tags": tags}}
        for kind, source, tags in cells
    ]
    (folder / "01_mpi_basics.ipynb").write_text(json.dumps({"cells": content}))


@pytest.fixture
def practice(monkeypatch: pytest.MonkeyPatch) -> Practice:
    practice = Practice(Shell(), Cluster())
    monkeypatch.setattr(exercise, "_current", practice)
    return practice


def test_the_cells_before_an_exercise_run_with_the_solutions_in_place(
    lessons: Path, practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    catch_up("01.3", folder=lessons)
    names = practice.shell.names
    assert names["x"] == 2 and names["cluster"] is practice.cluster
    first, second = practice.cluster.ran
    assert "Sendrecv" in first and "def add_left" in second
    said = capsys.readouterr().out
    assert said == "You are at 01.3: 7 cells of 01_mpi_basics have run, with the solution of 01.1 and 01.2.\n"


@pytest.mark.parametrize("text", ["{", '{"cells": 3}'])
def test_a_damaged_lesson_is_one_sentence(lessons: Path, practice: Practice, text: str) -> None:
    (lessons / "01_mpi_basics.ipynb").write_text(text)
    with pytest.raises(CatchUpError, match="is not a readable notebook; restore it with git"):
        catch_up("01.1", folder=lessons)
