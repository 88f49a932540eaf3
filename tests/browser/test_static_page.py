"""A lesson as a page without a kernel: on the site, on a phone, read aloud."""

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from course.paths import NOTEBOOKS
from course.tools.catalogue import Lesson, find_lessons
from course.tools.execute import write_results
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of

pytestmark = pytest.mark.slow
LESSONS = find_lessons(NOTEBOOKS)


def page_of(lesson: Lesson, folder: Path) -> BeautifulSoup:
    """The page that `course run` makes of an executed lesson."""
    write_results(nbformat.read(lesson.path, as_version=4), folder, lesson.stem)
    return BeautifulSoup((folder / f"{lesson.stem}.html").read_text(encoding="utf-8"), "html.parser")


def plain(text: str) -> str:
    """`text` as it is read: no marks of code or emphasis, spaces for all white space."""
    return " ".join(re.sub(r"[`*]", "", text).split())


def pictures_of(lesson: Lesson) -> int:
    cells = nbformat.read(lesson.path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return sum("<img" in output.get("data", {}).get("text/html", "") for output in outputs)


def complaints(page: BeautifulSoup, lesson: Lesson) -> list[str]:
    """What a reader of `page` misses of `lesson`: an exercise, a question, an option, words for a picture."""
    found = []
    text = plain(" ".join(cell.get_text() for cell in page.select(".jp-MarkdownCell")))
    for exercise in exercises_of(lesson.stem[:2]):
        kind = "Question" if isinstance(exercise, Question) else "Exercise"
        wanted = [f"{kind} {exercise.id}"]
        if isinstance(exercise, Question):
            wanted += [plain(exercise.question)]
            wanted += [plain(f"({letter}) {option.text}") for letter, option in exercise.lettered.items()]
        found += [f"not in the text: {words}" for words in wanted if words not in text]
    images = page.select(".jp-OutputArea img")
    found += [
        f"a picture without words: {i}" for i, each in enumerate(images) if len(str(each.get("alt", ""))) < 40
    ]
    if len(images) != pictures_of(lesson):
        found.append(f"{len(images)} pictures of {pictures_of(lesson)}")
    return found


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.stem for lesson in LESSONS])
def test_a_page_shows_every_exercise_question_and_option_and_words_for_every_picture(
    lesson: Lesson, tmp_path: Path
) -> None:
    assert complaints(page_of(lesson, tmp_path), lesson) == []


def test_a_page_that_lacks_something_is_found(tmp_path: Path) -> None:
    lesson = next(lesson for lesson in LESSONS if lesson.stem.startswith("06"))
    asked = next(item for item in exercises_of("06") if isinstance(item, Question))
    page = page_of(lesson, tmp_path)
    page.select(".jp-OutputArea img")[0]["alt"] = ""
    page.select(".jp-OutputArea img")[1].decompose()
    next(
        cell for cell in page.select(".jp-MarkdownCell") if f"Question {asked.id}" in cell.get_text()
    ).decompose()
    found = complaints(page, lesson)
    assert f"not in the text: Question {asked.id}" in found
    assert sum(line.startswith("not in the text: (") for line in found) == len(asked.options)
    assert "a picture without words: 0" in found
    assert any(re.fullmatch(r"\d pictures of \d", line) for line in found)
