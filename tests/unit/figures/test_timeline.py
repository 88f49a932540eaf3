"""Timelines: bars where the spans were, their totals in the table, and whom the others waited for."""

import pytest

from course.lessons.shared.figures.timeline import (
    part_looks,
    same_decimals,
    slow_rank,
    time_table,
    timeline,
    timeline_title,
)
from course_lib.comm.spans import Span, totals
from mpi_classroom.figures import ACTIVITIES
from tests.unit.figures.pictures import check_legible, letters_of, title_of


def steps(ranks: int, slow: int | None = None) -> list[Span]:
    """A step of 100 ms: compute 60 ms, or 80 on the slow rank, wait for the last, transfer 10 ms."""
    spans = []
    for rank in range(ranks):
        there = 0.08 if rank == slow else 0.06 if slow is not None else 0.08
        spans.append(Span(rank, "step", "compute", 0, 0.1))
        spans += [Span(rank, "sum", "wait", there, 0.08)] if there < 0.08 else []
        spans.append(Span(rank, "sum", "transfer", 0.08, 0.09))
    return spans


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_any_number_of_ranks_can_be_read(ranks: int) -> None:
    picture = timeline(steps(ranks, slow=ranks // 2), cores=2)
    check_legible(picture)
    letters = [text.get_text() for text in letters_of(picture)]
    for rank in range(ranks):
        assert f"rank {rank}" in letters
        assert f"rank {rank}: compute " in picture.alt


def test_the_rank_that_all_wait_for_is_named_with_its_time_and_theirs() -> None:
    title = title_of(timeline(steps(4, slow=2), cores=4)).replace("\n", " ")
    assert title == "4 ranks on 4 cores: rank 2 computed for 90 ms, ranks 0, 1 and 3 waited 20 ms for it"


def test_a_rank_that_began_late_is_not_said_to_have_computed_longest() -> None:
    spans = [span for span in steps(2, slow=1) if span.rank == 0]
    spans += [Span(1, "step", "compute", 0.04, 0.1), Span(1, "sum", "transfer", 0.08, 0.09)]
    assert title_of(timeline(spans, cores=2)) == (
        "2 ranks on 2 cores: rank 1 came last, rank 0 waited 20 ms for it"
    )


def test_nobody_is_called_slow_when_all_are_alike_or_alone() -> None:
    assert slow_rank(totals(steps(4))) is None
    assert slow_rank(totals(steps(1, slow=0))) is None
    assert timeline_title(totals(steps(4)), 4) == (
        "4 ranks on 4 cores: 90.0% of the time computing, 0.0% waiting, 10.0% transferring"
    )


def test_two_slow_ranks_are_not_told_as_one() -> None:
    spans = [*steps(2, slow=0), *(Span(2, *rest) for rest in (("step", "compute", 0, 0.1),))]
    assert slow_rank(totals(spans)) is None


def test_more_ranks_than_cores_are_said_to_share_them() -> None:
    assert title_of(timeline(steps(2), cores=1)).startswith("2 ranks sharing 1 core: ")


def test_bars_are_where_the_spans_were_in_the_look_of_their_activity() -> None:
    lanes = timeline(steps(2, slow=1), cores=2).figure.axes[0]
    bars = {}
    for bar in lanes.collections:
        places = [path.get_extents() for path in bar.get_paths()]
        activity = next(name for name, look in ACTIVITIES.items() if look["hatch"] == bar.get_hatch() or "")
        if places:
            row = round((places[0].y0 + places[0].y1) / 2)
            bars[row, activity] = [(round(place.x0), round(place.x1)) for place in places]
    assert bars[0, "compute"] == [(0, 60), (90, 100)]
    assert bars[0, "wait"] == [(60, 80)]
    assert bars[1, "transfer"] == [(80, 90)]
    assert (1, "wait") not in bars


def test_the_parts_of_a_computation_have_a_shade_each_and_stand_in_the_legend() -> None:
    spans = [
        Span(0, "load", "compute", 0, 0.01),
        Span(0, "forward", "compute", 0.01, 0.03),
        *steps(2, slow=0)[2:],
    ]
    picture = timeline(spans, parts=True)
    check_legible(picture)
    legend = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert legend == ["load", "forward", "step", "wait", "transfer"]
    looks = part_looks(spans)
    assert len({look["facecolor"] for look in looks.values()}) == len(looks)
    bars = [bar for bar in picture.figure.axes[0].collections if bar.get_paths()]
    assert len(bars) == 5  # load and forward on rank 0; step, wait and transfer on rank 1


def test_ranks_that_sleep_are_not_said_to_share_cores() -> None:
    title = title_of(timeline(steps(4, slow=2))).replace("\n", " ")
    assert title == "Rank 2 computed for 90 ms, ranks 0, 1 and 3 waited 20 ms for it"


def test_activities_differ_in_colour_and_in_hatching() -> None:
    assert len({look["facecolor"] for look in ACTIVITIES.values()}) == 3
    assert len({look["hatch"] for look in ACTIVITIES.values()}) == 3


def test_the_table_stands_beside_the_lanes_and_in_the_text() -> None:
    spans = steps(2, slow=1)
    shown = [text.get_text() for text in timeline(spans, cores=2).figure.axes[1].texts]
    compute, wait, transfer = ["70.0", "90.0"], ["20.0", "0.0"], ["10.0", "10.0"]
    assert shown == ["compute\n(ms)", *compute, "wait\n(ms)", *wait, "transfer\n(ms)", *transfer]
    assert [line.split() for line in time_table(spans).splitlines()] == [
        ["ms", "compute", "wait", "transfer"],
        ["rank", "0", "70", "20", "10"],
        ["rank", "1", "90", "0", "10"],
    ]
    assert "rank 1: compute 90 ms, wait 0 s, transfer 10 ms" in timeline(spans, cores=2).alt


def test_spans_that_took_no_time_can_be_drawn() -> None:
    check_legible(timeline([Span(0, "x", "compute", 0, 0)], cores=2))


def test_no_spans_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no spans to draw; pass what"):
        timeline([], cores=2)


def test_numbers_of_one_column_have_the_same_decimals() -> None:
    assert same_decimals([20.0, 19.62]) == ["20.0", "19.6"]
    assert same_decimals([0.0, 0.466]) == ["0.000", "0.466"]
    assert same_decimals([120.4, 7.0]) == ["120", "7"]
