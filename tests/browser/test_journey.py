"""One learner goes through the lessons in JupyterLab in Chromium, to the end of `course progress`.

Pictures of every lesson, and of the reply to every wrong answer, are kept in build/browser/journey.
"""

import pytest

from course.tools.catalogue import Lesson, find_lessons
from mpi_classroom.lessons import exercises_of, predictions_of
from tests.browser.conftest import OpenLesson
from tests.browser.journey import EXERCISE, UNGUESSED, code_of, core_of, go_through, unfinished
from tests.browser.lab import EVIDENCE
from tests.browser.server import Server

LESSONS = find_lessons()
CELL_SECONDS = 300  # a training, on a machine with other work
PICTURES = EVIDENCE / "journey"


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
            go_through(lesson, code_of(each.path), PICTURES / each.stem)
    said = server.progress()
    (PICTURES / f"progress-{lessons[-1].number}.txt").write_text(said)
    assert unfinished(said, [each.number for each in lessons]) == []


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.stem for lesson in LESSONS])
def test_the_learner_meets_every_exercise_question_and_prediction(lesson: Lesson) -> None:
    code = code_of(lesson.path)
    sources = ["".join(cell["source"]) for cell in code]
    met = [found[1] for found in map(EXERCISE.match, sources) if found]
    guesses = [UNGUESSED.findall(source) for source in sources]
    assert sorted(met) == sorted(item.id for item in exercises_of(lesson.number))
    assert sum(map(len, guesses)) == len(predictions_of(lesson.number))
    assert core_of(code) >= 10, "there is a middle in which to restart"


def test_progress_that_is_not_full_is_noticed() -> None:
    said = (
        "00 · Start here\n  ✓ 00.1   Right neighbour   passed, 2 tries\n  – 00.q1  quiz: x   not passed yet"
    )
    left = unfinished(said, ["00"])
    assert "00.1" not in left and {"00.q1", "00.2", "00.p1"} <= set(left)
    assert unfinished("  ✓ 00.p1   prediction: y   you said 1\n", ["00"])[-1] == "00.p1"
