"""One learner goes through the lessons in JupyterLab in Chromium, to the end of `course progress`."""

import pytest

from course.tools.catalogue import Lesson, find_lessons
from tests.browser.conftest import OpenLesson
from tests.browser.journey import code_of, go_through, unfinished
from tests.browser.server import Server

LESSONS = find_lessons()
CELL_SECONDS = 300  # a training, on a machine with other work


@pytest.mark.parametrize(
    "lessons",
    [
        pytest.param(LESSONS[:2], marks=[pytest.mark.release, pytest.mark.timeout(1200)], id="two"),
        *(
            pytest.param([lesson], marks=[pytest.mark.release, pytest.mark.timeout(3600)], id=lesson.stem)
            for lesson in LESSONS[2:]
        ),
    ],
)
def test_a_learner_who_does_everything_has_passed_everything(
    open_copy: OpenLesson, server: Server, lessons: list[Lesson]
) -> None:
    for each in lessons:
        with open_copy(each.number) as lesson:
            lesson.cell_seconds = CELL_SECONDS
            go_through(lesson, code_of(each.path))
    assert unfinished(server.progress(), [each.number for each in lessons]) == []
