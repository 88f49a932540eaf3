"""What runs after an exercise: the learner's answer where it is right, else the course's."""

from types import SimpleNamespace
from typing import Any

import pytest

from course.lessons.l04_collectives import continued
from course.lessons.l04_collectives.continued import continue_with, last_answer
from course.lessons.l04_collectives.exercises import RING_ALL_GATHER
from mpi_classroom.answer_job import Verdict


def test_the_last_cell_that_answers_the_exercise_counts() -> None:
    history = ["", "%%exercise 04.1\nold", "%%exercise 04.12\nother", "%%exercise  04.1 \nnew\ncode", "x = 1"]
    assert last_answer(history, "04.1") == "new\ncode"
    assert last_answer(history, "04.2") == ""


@pytest.mark.parametrize(
    ("cells", "state", "defined", "says"),
    [
        ([], "right", [RING_ALL_GATHER.solution], "not solved yet: the next cells run the course's solution"),
        (["%%exercise 04.1\nwrong"], "wrong", [RING_ALL_GATHER.solution], "not solved yet"),
        (["%%exercise 04.1\nright"], "right", [], "04.1 is right: the next cells run your own code"),
    ],
)
def test_what_runs_next_is_the_learners_where_it_is_right(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cells: list[str],
    state: Any,
    defined: list[str],
    says: str,
) -> None:
    ran = list[str]()
    history = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=["", *cells]))
    practice = SimpleNamespace(shell=history, define=ran.append)
    monkeypatch.setattr(continued, "current_practice", lambda: practice)
    monkeypatch.setattr(continued, "check", lambda exercise, cell: Verdict(state, ""))
    continue_with("04.1")
    assert ran == defined
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("id", ["04.q1", "04.99"])
def test_only_an_exercise_can_be_continued_with(id: str) -> None:
    with pytest.raises(LookupError, match=id):
        continue_with(id)
