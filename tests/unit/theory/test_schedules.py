"""Schedules are the drawn ones, finish in the time of the closed formulas, and wrong ones are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.schedules import (
    Action,
    Schedule,
    gems_basic,
    gems_mast,
    gems_master,
    gpipe,
    interleaved_one_f_one_b,
    makespan,
    naive,
    one_f_one_b,
    peak_activations,
    simulate,
)
from tests.formulas import bubble_fraction

STAGES, MICROBATCHES = st.integers(1, 6), st.integers(1, 9)


def grid(schedule: Schedule, backward: int = 2) -> list[str]:
    """One character a unit of time: the micro-batch, upper-case letters for backward, dots for idle."""
    spans = simulate(schedule, 1, backward)
    lanes = [["."] * int(makespan(spans)) for _ in schedule]
    for span in spans:
        letter = "0123456789"[span.action.microbatch]
        mark = letter if span.action.kind == "F" else "ABCDEFGHIJ"[span.action.microbatch]
        lanes[span.rank][int(span.start) : int(span.end)] = [mark] * int(span.end - span.start)
    return ["".join(lane) for lane in lanes]


def test_naive_is_one_microbatch_at_a_time() -> None:
    assert grid(naive(3, 2)) == ["0......AA1......BB", ".0...AA...1...BB..", "..0AA......1BB...."]


def test_gpipe_fills_and_drains_once() -> None:
    assert grid(gpipe(3, 3)) == ["012......CCBBAA", ".012...CCBBAA..", "..012CCBBAA...."]


def test_one_f_one_b_takes_turns_after_its_warm_up() -> None:
    assert grid(one_f_one_b(3, 4)) == ["012....AA3BB.CC.DD", ".01..AA2BB3CC.DD..", "..0AA1BB2CC3DD...."]


def test_interleaved_one_f_one_b_has_two_stages_per_rank() -> None:
    schedule = interleaved_one_f_one_b(2, 2, chunks=2)
    assert [[(a.kind, a.stage, a.microbatch) for a in row][:5] for row in schedule] == [
        [("F", 0, 0), ("F", 0, 1), ("F", 2, 0), ("F", 2, 1), ("B", 2, 0)],
        [("F", 1, 0), ("F", 1, 1), ("F", 3, 0), ("B", 3, 0), ("F", 3, 1)],
    ]
    twice_as_long = simulate(one_f_one_b(2, 2), 2, 4)  # one stage of two chunks
    assert makespan(simulate(schedule, 1, 2)) < makespan(twice_as_long)


def test_gems_sends_the_second_replica_back_behind_the_first() -> None:
    assert grid(gems_mast(4)) == [
        "0.........AA1BB......",
        ".0......AA1....BB....",
        "..0...AA1........BB..",
        "...0AA1............BB",
    ]


@given(STAGES, MICROBATCHES, st.integers(1, 5), st.integers(1, 5))
def test_gpipe_and_one_f_one_b_take_what_the_formula_says(p: int, m: int, f: int, b: int) -> None:
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        assert makespan(simulate(schedule, f, b)) == (m + p - 1) * (f + b)


@given(STAGES, st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))
@settings(deadline=None)
def test_interleaving_divides_the_bubble_by_the_chunks(
    p: int, groups: int, chunks: int, seconds: int
) -> None:
    spans = simulate(interleaved_one_f_one_b(p, groups * p, chunks=chunks), seconds, seconds)
    busy = 2 * seconds * groups * p * chunks
    assert 1 - busy / makespan(spans) == pytest.approx(bubble_fraction(p, groups * p, chunks=chunks))


@given(STAGES, MICROBATCHES)
def test_one_f_one_b_holds_few_activations_and_gpipe_all(p: int, m: int) -> None:
    assert [peak_activations(row) for row in one_f_one_b(p, m)] == [min(p - s, m) for s in range(p)]
    assert [peak_activations(row) for row in gpipe(p, m)] == [m] * p
    assert [peak_activations(row) for row in naive(p, m)] == [1] * p


@given(STAGES, st.integers(1, 4), st.integers(1, 5), st.integers(0, 5))
def test_gems_takes_what_the_formula_says(p: int, pairs: int, f: int, longer: int) -> None:
    """Jain et al. (2020): p·f + η·p·b + (η-1)·f for η micro-batches."""
    many, b = 2 * pairs, f + longer
    assert makespan(simulate(gems_master(p, many), f, b)) == p * f + many * p * b + (many - 1) * f
    assert makespan(simulate(gems_basic(p, many), f, b)) == many * p * (f + b)


def test_messages_take_time_only_between_ranks() -> None:
    alone = simulate([[Action("F", 0, 0), Action("F", 1, 0), Action("B", 1, 0), Action("B", 0, 0)]], 1, 1, 5)
    assert makespan(alone) == 4
    assert makespan(simulate(gpipe(2, 1), 1, 1, transfer=5)) == 14


def test_stages_may_take_different_times() -> None:
    assert makespan(simulate(gpipe(2, 3), [1, 4], 0)) == 1 + 3 * 4


def test_a_schedule_that_swaps_forward_and_backward_is_named_as_stuck() -> None:
    swapped = one_f_one_b(2, 2)
    swapped[1] = swapped[1][::-1]
    with pytest.raises(
        ValueError, match=r"never finishes: rank 0 .*; rank 1 cannot run B1 of stage 1 before F1"
    ):
        simulate(swapped, 1, 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gpipe(0, 1), "0 stages and 1 micro-batches"),
        (lambda: one_f_one_b(2, 0), "2 stages and 0 micro-batches"),
        (lambda: gems_master(4, 3), "3 micro-batches cannot be shared by 2 replicas"),
        (lambda: interleaved_one_f_one_b(4, 6, chunks=2), "a multiple of 4 micro-batches"),
    ],
)
def test_what_makes_no_schedule_is_refused_with_the_numbers(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]


def test_a_stage_on_two_ranks_and_an_action_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks 0 and 1 both run stage 0"):
        simulate([[Action("F", 0, 0)], [Action("B", 0, 0)]], 1, 1)
    with pytest.raises(ValueError, match="rank 0 runs F0 of stage 0 twice"):
        simulate([[Action("F", 0, 0), Action("F", 0, 0)]], 1, 1)
    with pytest.raises(ValueError, match="a schedule of 2 ranks without an action"):
        simulate([[], []], 1, 1)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (Action("B", 0, 1), "has B1 of stage 1 and nowhere B1 of stage 0"),  # nobody receives the gradient
        (Action("F", 0, 1), "has B1 of stage 0 and nowhere F1 of stage 0"),  # nobody sends the activations
    ],
)
def test_a_message_without_a_sender_or_a_receiver_is_refused(missing: Action, says: str) -> None:
    schedule = [[action for action in actions if action != missing] for actions in gpipe(2, 3)]
    with pytest.raises(ValueError, match=says):
        simulate(schedule, 1, 1)


def test_forwards_alone_are_a_schedule() -> None:
    forwards = [[action for action in actions if action.kind == "F"] for actions in gpipe(3, 2)]
    assert makespan(simulate(forwards, 1, 1)) == 4


def test_a_micro_batch_that_is_left_out_is_refused() -> None:
    schedule = [[action for action in actions if action.microbatch != 1] for actions in gpipe(2, 3)]
    with pytest.raises(ValueError, match=r"micro-batches \[0, 2\] leaves some out"):
        simulate(schedule, 1, 1)


def test_times_that_do_not_fit_the_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="2 times, the least 1 s, for 3 stages"):
        simulate(gpipe(3, 2), [1, 1], 1)
    with pytest.raises(ValueError, match=r"the least -1 s"):
        simulate(gpipe(2, 2), 1, -1)
    with pytest.raises(ValueError, match=r"a transfer of -0.5 s"):
        simulate(gpipe(2, 2), 1, 1, transfer=-0.5)


def test_a_micro_batch_that_does_not_go_back_is_refused() -> None:
    schedule = one_f_one_b(3, 5)
    lost = [
        [action for action in actions if (action.kind, action.microbatch) != ("B", 3)] for actions in schedule
    ]
    with pytest.raises(ValueError, match="F3 of stage 0 and nowhere its B3, so the gradient would lack"):
        simulate(lost, 1, 2)
