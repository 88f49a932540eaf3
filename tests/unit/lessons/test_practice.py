"""Every exercise and question has its cells, and every prediction its outcome."""

import re

import pytest

from course.tools.build import lesson_sources
from course.tools.coverage import MAGIC
from course.tools.lesson import LessonSource
from course.tools.parts import in_core
from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.lessons import exercises_of, find_exercise, lessons


@pytest.mark.parametrize("number", lessons())
def test_every_exercise_has_its_cell_in_its_lesson(number: str) -> None:
    assert sorted(id for id, _ in cells(number)) == sorted(item.id for item in exercises_of(number))


@pytest.mark.parametrize("number", lessons())
def test_the_core_has_one_exercise_and_more_has_the_others(number: str) -> None:
    core = [id for id, in_core in cells(number) if in_core and isinstance(find_exercise(id), Exercise)]
    assert len(core) == 1
    everything = exercises_of(number)
    assert any("Spot the bug" in item.title for item in everything if isinstance(item, Exercise))
    least = 2 if any(not in_core for _, in_core in cells(number)) else 1  # an elective has no More
    assert least <= len([item for item in everything if isinstance(item, Question)]) <= 6


def cells(number: str) -> list[tuple[str, bool]]:
    """The exercises of a lesson in the order of their cells, and whether each is in the core."""
    source = lesson_sources([number])[0]
    lesson = LessonSource(source, lesson_sources())
    core = in_core(lesson.cells)
    return [(match[1], core[n - 1]) for n, cell in lesson.code if (match := MAGIC.match(cell.source))]


@pytest.mark.parametrize("number", lessons())
def test_a_prediction_is_asked_before_its_outcome_and_left_open(number: str) -> None:
    lesson = LessonSource(lesson_sources([number])[0], lesson_sources())
    code = "\n".join(cell.source for _, cell in lesson.code)
    asked = re.findall(r'predict\("(.+?)", None\)', code)
    compared = re.findall(r'outcome\(\s*"(.+?)"', code)
    assert asked and asked == compared
    for words in map(re.escape, asked):
        assert re.search(rf'predict\("{words}".*outcome\(\s*"{words}"', code, re.DOTALL)
    assert code.count("predict(") == len(asked)
