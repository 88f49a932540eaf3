"""The questions as a table: nothing is missing, and the letter that is right is right."""

import csv
from pathlib import Path

import pytest

from course.tools import quizzes
from course.tools.catalogue import find_lessons
from course.tools.quizzes import of_tests, write_quizzes
from mpi_classroom.errors import CourseError
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of, find_exercise


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, dict[str, str]]:
    count = write_quizzes(tmp_path / "quizzes.csv", find_lessons())
    with (tmp_path / "quizzes.csv").open(encoding="utf-8", newline="") as file:
        found = {row["id"]: row for row in csv.DictReader(file)}
    assert len(found) == count
    return found


def test_every_question_of_every_lesson_and_of_both_tests_is_there(rows: dict[str, dict[str, str]]) -> None:
    items = [item for lesson in find_lessons() for item in exercises_of(lesson.number)]
    asked = {item.id for item in items if isinstance(item, Question)}
    tests = {f"{name} {number}" for name in ("pre-test", "post-test") for number in range(1, 11)}
    assert rows.keys() == asked | tests and len(asked) > 30


def test_letters_and_replies_are_those_that_a_learner_sees(rows: dict[str, dict[str, str]]) -> None:
    for id, row in rows.items():
        letters = [letter for letter in quizzes.LETTERS if row[letter]]
        assert row["right"] in letters and len(letters) >= 3, id
        if "." in id:
            options = find_exercise(id).lettered  # type: ignore[union-attr]
            assert {letter: row[letter] for letter in letters} == {a: b.text for a, b in options.items()}
            assert all(row[f"reply to {letter}"] == options[letter].reply for letter in letters)
            assert options[row["right"]].right


def test_a_question_without_an_answer_is_no_row_in_silence() -> None:
    page = "\n## Pre-test\n\n1. Who?\n   - (a) I\n   - (b) You\n"
    with pytest.raises(KeyError):
        list(of_tests(page))
    assert [row["right"] for row in of_tests(page + "\n## Answers\n\n| 1 | x | 00 | b | a | why |\n")] == [
        "b"
    ]


def test_another_kind_of_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"name it quizzes\.csv"):
        write_quizzes(tmp_path / "quizzes.txt", [])
