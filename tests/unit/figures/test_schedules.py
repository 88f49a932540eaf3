"""Pictures of pipelines: what they conclude is what the spans say."""

import pytest

from course.lessons.shared.figures.schedules import (
    boxes,
    idle,
    length,
    measured_seconds,
    measured_weights,
    schedule_grids,
)
from course_lib.comm.spans import Span
from course_lib.theory.schedules import (
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    makespan,
    naive,
    one_f_one_b,
    simulate,
)
from tests.formulas import (
    bubble_fraction,
)
from tests.unit.figures.pictures import check_legible


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


def test_grids_say_how_idle_each_schedule_is() -> None:
    picture = schedule_grids({"naive": simulate(naive(4, 4), 1, 2), "GPipe": simulate(gpipe(4, 4), 1, 2)})
    check_legible(picture)
    assert "naive: 48 slots, 75% idle; GPipe: 21 slots, 43% idle" in picture.alt
    assert "GPipe, rank 1 F0 F1 F2 F3 B3 B2 B1 B0" in picture.alt


def test_chunks_of_a_rank_differ_in_colour_and_every_pass_has_its_number() -> None:
    schedule = interleaved_one_f_one_b(4, 4, chunks=2)
    simulated = simulate(schedule, 0.5, 1)
    assert [box.chunk for box in boxes(simulated)] == [one.action.stage // 4 for one in simulated]
    assert [b.chunk for b in boxes(recorded(schedule, 0.5, 1))] == [b.chunk for b in boxes(simulated)]
    picture = schedule_grids({"1F1B": simulate(one_f_one_b(4, 4), 1, 2), "interleaved": simulated})
    check_legible(picture)
    panel = picture.figure.axes[1]
    assert len(panel.texts) == len(simulated)
    assert len({str(bar.get_facecolor()) for bar in panel.collections}) == 4
    (legend,) = picture.figure.legends
    assert [entry.get_text() for entry in legend.get_texts()] == [
        f"{kind}, chunk {chunk}" for chunk in (0, 1) for kind in ("forward", "backward")
    ]


def test_the_words_of_a_grid_name_the_chunk_where_a_rank_has_several() -> None:
    picture = schedule_grids({"interleaved": simulate(interleaved_one_f_one_b(2, 2, chunks=2), 0.5, 1)})
    assert "interleaved, rank 0 chunk 0 F0 F1, chunk 1 F0 F1 B0 B1, chunk 0 B0 B1;" in picture.alt
    assert "chunk" not in schedule_grids({"1F1B": simulate(one_f_one_b(2, 2), 1, 2)}).alt


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
