"""Every way in which practice can leave something out is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from course.tools import coverage
from course.tools.coverage import COVERAGE_RULES
from course.tools.lesson import LessonSource, Problem
from mpi_classroom.exercises import Exercise, Option, Prediction, Question
from tests.unit.lessons.sources import write_source

pytestmark = pytest.mark.usefixtures("without_frame")

SOURCE = """\
# ---
# title: Bread
# goal: Eat.
# able: [knead, bake]
# more: [slice]
# before: "{00}"
# minutes: {core: 20, more: 5}
# ranks: 4
# warm-up: [{ask: 1, answer: 1}, {ask: 2, answer: 2}, {ask: 3, answer: 3}]
# ---

# %% [markdown]
# ## Bread

# %%
predict("Minutes?", None)

# %%
outcome("Minutes?", 3)

# %%
# %%exercise 70.1
x = 1

# %%
# %%exercise 70.q1
answer("")

# %% [markdown] tags=["more"]
# ## More

# %%
# %%exercise 70.2
y = 1

# %%
# %%exercise 70.q2
answer("")
"""
BELIEFS = {"70": {"hot-is-done": "hot bread is done", "longer-is-better": "longer is better"}}


def exercise(id: str, **fields: object) -> Exercise:
    empty = {"title": "Do it", "stub": "", "hints": ("", "", ""), "solution": "", "wrong": (), "why": ""}
    return Exercise(id=id, check=lambda answer, comm, case: None, **(empty | fields))  # type: ignore[arg-type]


KNEAD = exercise("70.1", objectives=(1,))
BUG = exercise("70.2", title="Spot the bug: x", objectives=(3,), targets=("hot-is-done",))
RIGHT, MISTAKEN = Option("A", "yes", right=True), Option("B", "no", belief="longer-is-better")
FIRST = Question("70.q1", "?", (RIGHT, MISTAKEN), objectives=(2,))
SECOND = replace(FIRST, id="70.q2")
MINUTES = Prediction("70.p1", "Minutes?", objectives=(2,), targets=("longer-is-better",))
GOOD = (KNEAD, BUG, FIRST, SECOND)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Problem]]:
    """What the rules say of a lesson with this source and these items."""

    def problems(
        text: str = SOURCE,
        exercises: tuple[Exercise | Question, ...] = GOOD,
        predictions: tuple[Prediction, ...] = (MINUTES,),
    ) -> list[Problem]:
        monkeypatch.setattr(coverage, "exercises_of", lambda number: exercises)
        monkeypatch.setattr(coverage, "predictions_of", lambda number: predictions)
        monkeypatch.setattr(coverage, "MISCONCEPTIONS", BELIEFS)
        monkeypatch.setattr(coverage, "KNOWN", set(BELIEFS["70"]))
        lesson = LessonSource(write_source(tmp_path, text, "70_bread"))
        return [problem for rule in COVERAGE_RULES for problem in rule(lesson)]

    return problems


def test_complete_practice_has_no_findings(check: Callable[..., list[Problem]]) -> None:
    assert check() == []


def changed(old: Exercise | Question, **fields: object) -> dict[str, object]:
    """The good items with one of them changed."""
    new = replace(old, **fields)  # type: ignore[arg-type]
    return {"exercises": tuple(new if item is old else item for item in GOOD)}


def texts(*changes: tuple[str, str]) -> dict[str, object]:
    """The good source with changes."""
    text = SOURCE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return {"text": text}


CASES: list[tuple[dict[str, object], int, str]] = [
    (texts(("[slice]", "[slice, eat]")), 1, "nothing practises objective 4, 'eat'"),
    (
        texts(("[knead, bake]", "[knead, bake, slice]"), ("more: [slice]", "more: [bake]")),
        1,
        "objective 3, 'slice', is practised in More only",
    ),
    (changed(KNEAD, objectives=(1, 4)), 4, "70.1 serves (1, 4); there are 3 objectives"),
    (changed(BUG, targets=("longer-is-better",)), 1, "nothing is aimed at the misconception 'hot-is-done'"),
    (changed(KNEAD, targets=("cold-is-done",)), 4, "'cold-is-done', which misconceptions.py does not have"),
    (
        changed(SECOND, options=(RIGHT, replace(MISTAKEN, belief=""))),
        8,
        "in 70.q2, the wrong options",
    ),
    (
        changed(BUG, targets=("hot-is-done", "longer-is-better")),
        2,
        "70.p1 asks about 'longer-is-better' after 70.2, 70.q1, 70.q2; ask something new",
    ),
    (texts(('outcome("Minutes?", 3)', "z = 1")), 2, "no later cell calls outcome('Minutes?', …)"),
    ({"predictions": ()}, 2, "'Minutes?' is not in PREDICTIONS of the quiz.py of the lesson"),
    (texts((' tags=["more"]', "")), 1, "the core has 2 exercises"),
    (changed(BUG, title="Do it"), 1, "no exercise is called 'Spot the bug: …'"),
    (texts(("# %%exercise 70.q2\nanswer", "print")), 1, "70.q2 stands in the lesson 0 times"),
]


@pytest.mark.parametrize(("change", "cell", "words"), CASES, ids=[case[2] for case in CASES])
def test_what_practice_leaves_out_is_found(
    check: Callable[..., list[Problem]], change: dict[str, object], cell: int, words: str
) -> None:
    assert (cell, True) in {(n, words in sentence) for n, sentence in check(**change)}
