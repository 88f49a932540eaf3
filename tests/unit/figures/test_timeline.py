"""Timelines: bars where the spans were, their totals in the table, and whom the others waited for."""

import pytest

from course.lessons.shared.figures.timeline import slow_rank, timeline, timeline_title
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


def test_nobody_is_called_slow_when_all_are_alike_or_alone() -> None:
    assert slow_rank(totals(steps(4))) is None
    assert slow_rank(totals(steps(1, slow=0))) is None
    assert timeline_title(totals(steps(4)), 4) == (
        "4 ranks on 4 cores: 90.0% of the time computing, 0.0% waiting, 10.0% transferring"
    )


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


def test_no_spans_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no spans to draw; pass what"):
        timeline([], cores=2)
