"""Lanes of a step and curves of the loss: what they say is what was measured."""

from itertools import pairwise

import pytest

from course_lib.classroom.plots import training

SPANS = [
    [
        (0, "compute", 0.0, 0.060),
        (0, "wait", 0.060, 0.080),
        (0, "transfer", 0.080, 0.090),
        (0, "compute", 0.090, 0.100),
    ],
    [
        (1, "compute", 0.0, 0.080),
        (1, "wait", 0.080, 0.080),
        (1, "transfer", 0.080, 0.090),
        (1, "compute", 0.090, 0.100),
    ],
]


def test_the_title_of_a_step_says_what_the_time_went_to() -> None:
    expected = "2 ranks on 2 cores: 80% of the time computing, 10% waiting, 10% transferring"
    assert training.step_title(SPANS, cores=2) == expected


def test_more_ranks_than_cores_are_said_to_take_turns() -> None:
    assert training.step_title(SPANS, cores=1).startswith("2 ranks taking turns on 1 core: ")


def test_the_shares_of_a_step_add_up_to_one() -> None:
    assert sum(training.shares(SPANS).values()) == pytest.approx(1)


def test_every_span_is_a_bar_on_the_lane_of_its_rank() -> None:
    axes = training.step_lanes(SPANS, cores=2).figure.axes[0]
    bars = [(round(bar.get_y() + bar.get_height() / 2), round(bar.get_width())) for bar in axes.patches]
    assert bars == [(0, 60), (0, 20), (0, 10), (0, 10), (1, 80), (1, 0), (1, 10), (1, 10)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_the_alt_text_of_a_step_has_the_numbers_of_every_rank() -> None:
    alt = training.step_lanes(SPANS, cores=2).alt
    assert "rank 0: compute 70.0 ms, transfer 10.0 ms, wait 20.0 ms" in alt
    assert "rank 1: compute 90.0 ms, transfer 10.0 ms, wait 0.0 ms" in alt


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


def spans_of(ranks: int, compute: float, wait: float, transfer: float) -> training.Spans:
    """Spans in seconds from times in milliseconds."""
    moments = [0.0, compute / 1e3, (compute + wait) / 1e3, (compute + wait + transfer) / 1e3]
    activities = ("compute", "wait", "transfer")
    return [
        [(rank, what, *span) for what, span in zip(activities, pairwise(moments), strict=True)]
        for rank in range(ranks)
    ]


def test_ranks_that_took_no_part_have_no_lane() -> None:
    picture = training.step_lanes([SPANS[0], [], SPANS[1], []], cores=2)
    assert picture.alt == training.step_lanes(SPANS, cores=2).alt


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
    alone: float, together: training.Spans, cores: int, expected: str
) -> None:
    assert expected in training.explain_speedup(spans_of(1, alone, 0, 0), together, cores)
