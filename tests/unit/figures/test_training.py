"""What ranks gained in a step, and curves of the loss: what they say is what was measured."""

import pytest

from course.lessons.l06_data_parallel_by_hand.figures import training
from course_lib.comm.spans import Span


def test_losses_are_averaged_over_consecutive_steps() -> None:
    assert training.averaged([4.0, 2.0, 0.0, 1.0], 2) == [3.0, 1.0, 0.5]


def test_too_few_steps_for_one_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="3 steps are fewer than the 20"):
        training.loss_curves({"1 rank": [1.0, 2.0, 3.0]})


def test_the_title_of_the_curves_says_how_far_they_are_apart() -> None:
    losses = {"2 ranks": [4.0, 2.0, 1.0], "4 ranks": [4.0, 2.2, 1.2]}
    picture = training.loss_curves(losses, window=1)
    title = picture.figure.axes[0].get_title(loc="left")
    assert title.startswith("The losses typically differ by 10.0%; at the end: 2 ranks 1.000")
    assert "4 ranks: from 4.000 to 1.200" in picture.alt


def test_a_single_curve_is_not_compared_with_anything() -> None:
    picture = training.loss_curves({"1 rank": [4.0, 1.0]}, window=1)
    assert picture.figure.axes[0].get_title(loc="left") == "Loss at the end: 1 rank 1.000"


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
    ("alone", "together", "cores", "expected"),
    [
        (
            190,
            spans_of(2, 90, 6, 4),
            2,
            "1 rank 190 ms, on 2 ranks 100 ms: 1.90 times as fast; 10% of the ranks'",
        ),
        (100, spans_of(1, 100, 0, 0), 1, "one core: no second one"),
        (110, spans_of(4, 60, 30, 10), 2, "1.10 times as fast; the cores ran out: the ranks take turns"),
        (110, spans_of(2, 50, 10, 40), 2, "the transfer ran out of bandwidth: it took 40% of the time"),
        (110, spans_of(2, 50, 40, 10), 2, "they waited 40% of the time"),
        (110, spans_of(2, 96, 2, 2), 4, "so they share what ran out"),
    ],
)
def test_a_speed_up_is_explained_by_what_was_measured(
    alone: float, together: list[Span], cores: int, expected: str
) -> None:
    assert expected in training.explain_speedup(spans_of(1, alone, 0, 0), together, cores)
