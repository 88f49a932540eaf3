"""What a learner passed is remembered, can be read, and is not lost when the file is spoiled."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mpi_classroom import lessons
from mpi_classroom.exercises import Exercise, Option, Prediction, Question
from mpi_classroom.progress import (
    COLUMNS,
    DamagedProgress,
    Note,
    export_progress,
    note_try,
    read_progress,
    report,
)

SPOILED = ["", "[1, 2]", '{"01.1": true', '{"01.1": 3}', "\x00\x01"]


LESSONS = {"01": "one_lesson"}
QUESTION = Question("01.q1", "Who waits?", (Option("all", "Yes.", right=True),))
EXERCISE = Exercise("01.1", "Pass it on", "", ("", "", ""), "", lambda *_: None, (), "")


@pytest.fixture(autouse=True)
def course(monkeypatch: pytest.MonkeyPatch) -> None:
    """A course with one lesson: three exercises, three questions and a prediction."""
    lesson = ModuleType("one_lesson")
    vars(lesson)["EXERCISES"] = [
        *(replace(EXERCISE, id=f"01.{n}") for n in (1, 2, 3)),
        *(replace(QUESTION, id=f"01.q{n}") for n in (1, 2, 3)),
    ]
    vars(lesson)["PREDICTIONS"] = [Prediction("01.p1", "Seconds in Send, with 1 MB?", (1,))]
    monkeypatch.setitem(sys.modules, "one_lesson", lesson)
    monkeypatch.setattr(lessons, "courses", lambda: [lessons.Course(LESSONS)])


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The progress file of a learner, to whom the course is known."""
    monkeypatch.delenv("IPP_NONINTERACTIVE", raising=False)
    path = tmp_path / "my_course" / "progress.json"
    monkeypatch.setattr(lessons, "courses", lambda: [lessons.Course(LESSONS, progress=path)])
    return path


def test_what_was_once_passed_stays_passed(progress: Path) -> None:
    note_try("01.2", False)
    note_try("01.1", True)
    note_try("01.1", False)
    assert read_progress(progress) == {"01.1": Note(passed=True, tries=2), "01.2": Note(tries=1)}
    assert [path.name for path in progress.parent.iterdir()] == ["progress.json"]


def test_an_unattended_run_leaves_no_progress(progress: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    note_try("01.1", True)
    assert not progress.exists()


def test_an_older_and_a_newer_file_are_read(progress: Path) -> None:
    progress.parent.mkdir()
    progress.write_text('{"01.1": true, "01.2": {"tries": 2, "passed": true, "mood": "good"}}')
    assert read_progress(progress) == {"01.1": Note(True, 1), "01.2": Note(True, 2)}


@pytest.mark.parametrize("text", SPOILED)
def test_a_spoiled_file_is_one_sentence_and_put_aside_before_a_new_one_begins(
    progress: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.parent.mkdir()
    progress.write_text(text)
    with pytest.raises(DamagedProgress, match=r"progress.json cannot be read"):
        read_progress(progress)
    progress.with_name("progress.damaged-1.json").write_text("an earlier one")
    note_try("01.1", True)
    assert json.loads(progress.read_text()) == {"01.1": {"passed": True, "tries": 1}}
    assert progress.with_name("progress.damaged-2.json").read_text() == text
    assert "It is kept as progress.damaged-2.json, and a new one begins." in capsys.readouterr().out


def test_a_full_disk_is_one_sentence(progress: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress.parent.write_text("a file where the folder should be")
    note_try("01.1", True)
    assert capsys.readouterr().out.startswith("(Your progress could not be saved in progress.json: ")


def test_passed_exercises_and_questions_are_counted() -> None:
    notes = {"01.1": Note(True, 1), "01.q1": Note(True, 3), "01.2": Note(False, 1), "00.1": Note(True, 1)}
    lines = report(notes, {"01": "MPI basics", "99": "No such lesson"})
    assert lines[-2:] == ["1 of 3 exercises passed", "1 of 3 questions passed"]


def test_what_an_earlier_edition_noted_is_kept_under_its_old_names_and_told(
    progress: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "courses", lambda: [lessons.Course(LESSONS, progress=progress, edition=3)])
    progress.parent.mkdir()
    progress.write_text('{"01.1": {"tries": 2, "passed": true}, "01.9": true, "01.p1": {"said": 2}}')
    notes = read_progress(progress, 3)
    lines = report(notes, {"01": "MPI basics"})
    assert lines[-2] == "0 of 3 exercises passed", "01.1 was another exercise then"
    assert "passed before the lessons changed (edition 2): 01.1, 01.9" in lines
    note_try("01.1", False)
    again = read_progress(progress, 3)
    assert again == {**notes, "01.1": Note(tries=1)}
    assert again["edition 2 · 01.1"] == Note(passed=True, tries=2)
    assert json.loads(progress.read_text())["edition"] == {"number": 3}


def test_a_fourth_edition_keeps_the_second_and_the_third_apart(progress: Path) -> None:
    progress.parent.mkdir()
    second = '"edition 2 · 01.1": {"tries": 1, "passed": true}'
    progress.write_text('{"edition": {"number": 3}, "01.1": {"tries": 5}, ' + second + "}")
    assert set(read_progress(progress, 3)) == {"01.1", "edition 2 · 01.1"}
    assert set(read_progress(progress, 4)) == {"edition 3 · 01.1", "edition 2 · 01.1"}


# -------------------------------------------------------------------- exports

EXPORTED = {
    "01.1": {"kind": "exercise", "title": "Pass it on", "state": "passed", "tries": 3, "hints": 1},
    "01.2": {"kind": "exercise", "title": "Pass it on", "state": "not passed", "tries": 1, "hints": 0},
    "01.q1": {"kind": "question", "title": "Who waits?", "state": "not attempted", "tries": 0, "hints": 0},
    "01.p1": {"kind": "prediction", "state": "predicted", "said": 2.0, "came_out": 0.5},
}
EXPORTED_NOTES = {
    "01.1": Note(passed=True, tries=3, hints=1),
    "01.2": Note(tries=1),
    "01.p1": Note(said=2.0, came_out=0.5),
    "99.1": Note(passed=True, tries=1),
}


def exported(path: Path) -> dict[str, dict[str, str]]:
    """The rows of an export by id."""
    assert export_progress(EXPORTED_NOTES, {"01": "MPI basics", "99": "No such lesson"}, path) == 7
    if path.suffix == ".json":
        rows = json.loads(path.read_text())["items"]
    else:
        rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["01.1", "01.2", "01.3", "01.q1", "01.q2", "01.q3", "01.p1"]
    assert all(tuple(row) == COLUMNS and row["lesson"] == "01" for row in rows)
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_an_export_has_a_row_for_everything_also_for_what_was_not_attempted(
    tmp_path: Path, suffix: str
) -> None:
    rows = exported(tmp_path / f"progress{suffix}")
    for id, values in EXPORTED.items():
        for name, value in values.items():
            assert rows[id][name] == (value if suffix == ".json" else str(value)), (id, name)
    nothing = None if suffix == ".json" else ""
    assert rows["01.q1"]["said"] == nothing and rows["01.q1"]["came_out"] == nothing
