"""What ranks gained in a step, and curves of the loss: what they say is what was measured."""

import pytest

from course.lessons.l06_data_parallel_by_hand.figures import training
from course.lessons.l06_data_parallel_by_hand.results import Run
from course_lib.comm.spans import Span


def test_losses_are_averaged_over_consecutive_steps() -> None:
    assert training.averaged([4.0, 2.0, 0.0, 1.0], 2) == [3.0, 1.0, 0.5]


def test_too_few_steps_for_one_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="3 steps are fewer than the 10"):
        training.loss_curves({"1 rank": [1.0, 2.0, 3.0]})


def test_the_title_of_the_curves_says_how_far_the_loss_falls_and_how_far_they_are_apart() -> None:
    losses = {"2 ranks": [4.0, 2.0, 1.0], "4 ranks": [4.0, 2.2, 1.2]}
    picture = training.loss_curves(losses, window=1)
    title = picture.figure.axes[0].get_title(loc="left")
    assert title == "The loss falls from 4.00 to 1.00; the 2 runs typically differ by 10.0%"
    assert "4 ranks: from 4.000 to 1.200" in picture.alt


def test_a_single_curve_is_not_compared_with_anything() -> None:
    picture = training.loss_curves({"1 rank": [4.0, 1.0]}, window=1)
    assert picture.figure.axes[0].get_title(loc="left") == "The loss falls from 4.00 to 1.00"


def test_a_loss_that_does_not_fall_is_said_not_to() -> None:
    picture = training.loss_curves({"1 rank": [2.3, 2.4]}, window=1)
    assert picture.figure.axes[0].get_title(loc="left") == "The loss does NOT fall from 2.30 to 2.40"


def test_a_run_is_told_in_one_line() -> None:
    assert (
        training.summary(Run(1, 4.25, (1.0,), 0.951, True)) == "1 rank: 4.2 s, 95.1% of the test images right"
    )
    assert training.summary(Run(2, 2.0, (1.0,), 0.951, False)).endswith("right; replicas do NOT agree")


def spans_of(ranks: int, compute: float, wait: float, transfer: float) -> list[Span]:
    """Spans in seconds from times in milliseconds."""
    there, began, done = compute / 1e3, (compute + wait) / 1e3, (compute + wait + transfer) / 1e3
    spans = []
    for rank in range(ranks):
        spans.append(Span(rank, "step", "compute", 0.0, done))
        spans.append(Span(rank, "sum", "wait", there, began))
        spans.append(Span(rank, "sum", "transfer", began, done))
    return spans


@pytest.mark.parametrize(
    ("alone", "spans", "cores", "expected"),
    [
        (
            190,
            spans_of(2, 90, 6, 4),
            2,
            "the ranks spend 10% of their time waiting and transferring; the rest",
        ),
        (100, spans_of(1, 100, 0, 0), 1, "There is one core"),
        (110, spans_of(4, 60, 30, 10), 2, "4 ranks share 2 cores"),
        (110, spans_of(2, 50, 10, 40), 2, "most of it transferring"),
        (110, spans_of(2, 50, 40, 10), 2, "most of it waiting"),
        (110, spans_of(2, 96, 2, 2), 4, "the cores share caches, memory"),
    ],
)
def test_a_speed_up_is_explained_by_what_was_measured(
    alone: float, spans: list[Span], cores: int, expected: str
) -> None:
    assert expected in training.explain_speedup(alone / 1e3, 0.1, spans, cores)


def test_a_wait_is_explained_by_who_came_last() -> None:
    spans = spans_of(1, 60, 30, 10)
    late = [Span(1, "step", "compute", 0.0, 0.1), Span(1, "sum", "transfer", 0.09, 0.1)]
    assert training.explain_wait([*spans, *late]).startswith("Rank 1 waited least")
    assert training.explain_wait(spans) == "One rank has nobody to wait for."
    assert "nearly the same time" in training.explain_wait(spans_of(2, 90, 0, 10))
