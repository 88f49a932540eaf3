"""All questions as rows of a table, for a form, a poll or a learning platform: `course quizzes FILE.csv`.

The questions of the lessons with a reply to each option, and those of the two tests of the instructor's guide
(`docs/teaching/tests.md`), to which nobody replies. Options have the letters that learners see.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from course.paths import ROOT
from course.tools.catalogue import Lesson
from mpi_classroom.errors import CourseError
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of

TESTS = ROOT / "docs" / "teaching" / "tests.md"
LETTERS = "abcd"
COLUMNS = ("set", "id", "question", *LETTERS, "right", *(f"reply to {letter}" for letter in LETTERS))
ASKED = re.compile(r"^(\d+)\. ((?:.+\n)+?)((?: +- \([a-d]\) .+\n)+)", re.MULTILINE)
OPTION = re.compile(r"^ +- \(([a-d])\) (.+)$", re.MULTILINE)
ANSWER = re.compile(r"^\| (\d+) \|[^|]+\|[^|]+\| ([a-d]) \| ([a-d]) \|", re.MULTILINE)


def write_quizzes(path: Path, lessons: list[Lesson]) -> int:
    """Write a row for every question of `lessons` and of the tests; their number. CourseError: no .csv."""
    if path.suffix != ".csv":
        raise CourseError(f"{path.name} is no CSV file; name it quizzes.csv, for example")
    rows = [row for lesson in lessons for row in of_lesson(lesson)]
    rows += of_tests(TESTS.read_text(encoding="utf-8"))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return len(rows)


def of_lesson(lesson: Lesson) -> Iterator[Mapping[str, str]]:
    """The questions of a lesson, those of its core and those of More."""
    for item in exercises_of(lesson.number):
        if isinstance(item, Question):
            options = item.lettered
            texts = {letter: option.text for letter, option in options.items()}
            replies = {f"reply to {letter}": option.reply for letter, option in options.items()}
            row = {"set": f"{lesson.number} {lesson.title}", "id": item.id, "question": item.question}
            yield row | texts | {"right": item.right} | replies


def of_tests(text: str) -> Iterator[Mapping[str, str]]:
    """The questions of the pre-test and the post-test, from their page."""
    right = {number: letters for number, *letters in ANSWER.findall(text)}
    for form, name in enumerate(("Pre-test", "Post-test")):
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for number, question, options in ASKED.findall(part + "\n"):
            row = {"set": name, "id": f"{name.lower()} {number}", "question": " ".join(question.split())}
            yield row | dict(OPTION.findall(options)) | {"right": right[number][form]}
