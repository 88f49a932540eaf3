"""Pictures of pipelines: what they conclude is what the spans say."""

import pytest

from course.lessons.shared.figures.schedules import (
    boxes,
    idle,
    length,
    measured_seconds,
    measured_weights,
)
from course_lib.comm.spans import Span
from course_lib.theory.schedules import (
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    makespan,
    one_f_one_b,
    simulate,
)
from tests.formulas import bubble_fraction


def recorded(schedule: Schedule, forward: float, backward: float) -> list[Span]:
    """What a recorder would have seen of the simulation, a second later: each action begins with a wait."""
    spans = []
    free = [0.0] * len(schedule)
    for one in simulate(schedule, forward, backward):
        name, waited = repr(one.action), (free[one.rank] + one.start) / 2
        spans.append(Span(one.rank, name, "compute", 1 + waited, 1 + one.end))
        spans.append(Span(one.rank, f"wait {name}", "wait", 1 + waited, 1 + one.start))
        free[one.rank] = one.end
    return spans


def test_boxes_of_a_recording_are_those_of_its_simulation() -> None:
    schedule = one_f_one_b(3, 4)
    simulated, seen = boxes(simulate(schedule, 1, 2)), boxes(recorded(schedule, 1, 2))
    assert [(b.rank, b.kind, b.label) for b in simulated] == [(b.rank, b.kind, b.label) for b in seen]
    assert length(seen) == pytest.approx(length(simulated)) == pytest.approx(18)
    assert idle(seen) == pytest.approx(bubble_fraction(3, 4))


@pytest.mark.parametrize("schedule", [gpipe(2, 3), interleaved_one_f_one_b(2, 4, chunks=2)])
def test_simulating_with_measured_times_gives_the_measured_makespan(schedule: Schedule) -> None:
    seconds = measured_seconds(schedule, recorded(schedule, 1.5, 2.5))
    assert makespan(simulate(schedule, seconds, seconds)) == makespan(simulate(schedule, 1.5, 2.5))


@pytest.mark.parametrize("schedule", [one_f_one_b(2, 3), interleaved_one_f_one_b(2, 4, chunks=2)])
def test_what_backwards_took_for_weights_is_found_inside_them(schedule: Schedule) -> None:
    spans = recorded(schedule, 1.5, 2.5)
    backwards = [span for span in spans if span.kind == "compute" and span.name[0] == "B"]
    spans += [
        Span(one.rank, f"weights of {one.name}", "compute", one.end - 0.1 * number, one.end)
        for number, one in enumerate(backwards)
    ]
    weights = measured_weights(schedule, spans)
    found = [weights(one.action) for one in simulate(schedule, 1.5, 2.5) if one.action.kind == "B"]
    assert found == pytest.approx([0.1 * number for number in range(len(backwards))])
    assert weights(schedule[0][0]) == 0, "a forward has none"


def test_spans_of_another_schedule_and_of_none_are_refused() -> None:
    with pytest.raises(ValueError, match="give the one that ran"):
        measured_seconds(gpipe(2, 3), recorded(one_f_one_b(2, 3), 1, 2))
    with pytest.raises(ValueError, match="no forward and no backward"):
        boxes([Span(0, "sum", "compute", 0, 1)])
