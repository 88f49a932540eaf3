"""One learner goes through the lessons in JupyterLab in Chromium, to the end of `course progress`.

Pictures of every lesson, and of the reply to every wrong answer, are kept in build/browser/journey.
"""

import pytest

from course.tools.catalogue import Lesson, find_lessons
from tests.browser.conftest import OpenLesson
from tests.browser.journey import code_of, core_of, go_through, unfinished
from tests.browser.lab import EVIDENCE
from tests.browser.server import Server

LESSONS = find_lessons()
CELL_SECONDS = 300  # a training, on a machine with other work
PICTURES = EVIDENCE / "journey"


@pytest.mark.parametrize(
    "lessons",
    [
        pytest.param(LESSONS[:2], marks=[pytest.mark.slow, pytest.mark.timeout(1200)], id="two"),
        pytest.param(LESSONS, marks=[pytest.mark.release, pytest.mark.timeout(3 * 3600)], id="all"),
    ],
)
def test_a_learner_who_does_everything_has_passed_everything(
    open_copy: OpenLesson, server: Server, subtests: pytest.Subtests, lessons: list[Lesson]
) -> None:
    for each in lessons:
        with subtests.test(each.stem), open_copy(each.number) as lesson:
            lesson.cell_seconds = CELL_SECONDS
            go_through(lesson, code_of(each.path), PICTURES / each.stem)
            assert unfinished(server.progress(each.number), [each.number]) == []
    said = server.progress()
    (PICTURES / "progress.txt").write_text(said)
    assert unfinished(said, [each.number for each in lessons]) == []


def test_every_lesson_has_a_core_to_restart_in_the_middle_of() -> None:
    assert all(core_of(code_of(lesson.path)) >= 10 for lesson in LESSONS)


def test_progress_that_is_not_full_is_noticed() -> None:
    said = (
        "00 · Start here\n  ✓ 00.1   Right neighbour   passed, 2 tries\n  – 00.q1  quiz: x   not passed yet"
    )
    left = unfinished(said, ["00"])
    assert "00.1" not in left and {"00.q1", "00.q2", "00.p1"} <= set(left)
    assert unfinished("  ✓ 00.p1   prediction: y   you said 1\n", ["00"])[-1] == "00.p1"
