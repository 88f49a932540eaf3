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
    losses = {"on 2 ranks": [4.0, 2.0, 1.0], "on 4 ranks": [4.0, 2.02, 1.02]}
    picture = training.loss_curves(losses, window=1)
    title = picture.figure.axes[0].get_title(loc="left")
    assert title == "The loss falls from 4.00 to 1.00; the 2 runs typically differ by 1.0%"
    assert "on 4 ranks: from 4.000 to 1.020" in picture.alt


def test_curves_that_are_equal_at_every_step_are_said_to_coincide() -> None:
    losses = {"stage 0": [4.0, 1.0], "stage 3": [4.0, 1.0001]}
    title = training.loss_curves(losses, window=1).figure.axes[0].get_title(loc="left")
    assert title == "The loss falls from 4.00 to 1.00; the 2 curves coincide"


def test_different_trainings_are_compared_by_how_they_end() -> None:
    losses = {"with the broadcast": [2.0, 0.6, 0.35], "without": [2.0, 1.2, 0.77]}
    title = training.loss_curves(losses, window=1).figure.axes[0].get_title(loc="left")
    assert title == "After 3 steps: loss 0.35 with the broadcast, 0.77 without"


def test_a_single_curve_is_not_compared_with_anything() -> None:
    picture = training.loss_curves({"1 rank": [4.0, 1.0]}, window=1)
    assert picture.figure.axes[0].get_title(loc="left") == "The loss falls from 4.00 to 1.00"


def test_a_loss_that_does_not_fall_is_said_not_to() -> None:
    picture = training.loss_curves({"1 rank": [2.3, 2.4]}, window=1)
    assert picture.figure.axes[0].get_title(loc="left") == "The loss does NOT fall from 2.30 to 2.40"


def test_a_run_is_told_in_one_line() -> None:
    alone = training.summary(Run(1, 0.0425, (1.0,), 0.951, True))
    assert alone == "1 rank: 42.5 ms per step, 95.1% of the test images right"
    assert training.summary(Run(2, 2.0, (1.0,), 0.951, False)).endswith("right; replicas do NOT agree")


def run_of(ranks: int, milliseconds: float) -> Run:
    return Run(ranks, milliseconds / 1e3, (1.0,), 0.9, True)


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
    ("alone", "spans", "expected"),
    [
        (
            190,
            spans_of(2, 90, 6, 4),
            "the ranks spend 10.0% of their time waiting and transferring; the rest",
        ),
        (
            175,
            spans_of(2, 90, 6, 4),
            "180 ms on all ranks together; one rank alone took 175 ms. The parts of a batch took more",
        ),
        (
            220,
            spans_of(2, 98, 1, 1),
            "196 ms on all ranks together; one rank alone took 220 ms. The parts of a",
        ),
        (100, spans_of(1, 100, 0, 0), "One rank sends nothing"),
        (110, spans_of(2, 50, 10, 40), "most of it transferring"),
        (110, spans_of(2, 50, 40, 10), "most of it waiting"),
        (110, spans_of(2, 96, 2, 2), "the cores share caches and memory"),
    ],
)
def test_a_speed_up_is_explained_by_what_was_measured(alone: float, spans: list[Span], expected: str) -> None:
    bare = max(span.seconds for span in spans)
    many = run_of(len({span.rank for span in spans}), 100)
    assert expected in training.explain_speedup(run_of(1, alone), many, spans, bare)


def test_no_cause_is_named_when_the_sum_takes_longer_than_it_would_alone() -> None:
    words = training.explain_speedup(run_of(1, 110), run_of(2, 100), spans_of(2, 50, 5, 45), 0.004)
    assert words.startswith(
        "A bare sum of these gradients takes 4 ms; here it took 45 ms. The two do not agree, so no cause is "
        "named here. Other programs may be using the cores: run it again. Reference machine, 2 ranks"
    )


def test_no_cause_is_named_when_the_traced_step_is_not_like_those_of_the_training() -> None:
    words = training.explain_speedup(run_of(1, 110), run_of(2, 60), spans_of(2, 90, 6, 4), 0.004)
    assert words.startswith("A step of the training took 60 ms; the traced one 100 ms. The two do not agree")


def test_a_speed_up_alone_gives_no_cause() -> None:
    assert training.rest_of(0.89, 2) == "Section 7 shows where the rest went."
    assert training.rest_of(2.05, 2) == "Nothing is missing."
    assert training.rest_of(2.14, 2).startswith("More than 2: sharing the work cannot explain that.")
    assert "one core" in training.rest_of(1.0, 1)


def test_a_wait_is_explained_by_who_came_last() -> None:
    spans = spans_of(1, 60, 30, 10)
    late = [Span(1, "step", "compute", 0.0, 0.1), Span(1, "sum", "transfer", 0.09, 0.1)]
    assert training.explain_wait([*spans, *late]).startswith("Rank 1 waited least")
    assert training.explain_wait(spans) == "One rank has nobody to wait for."
    assert "nearly the same time" in training.explain_wait(spans_of(2, 90, 0, 10))
