"""Pictures of pipelines: what they conclude is what the simulation says."""

import pytest

from course.lessons.shared.figures.schedules import boxes, idle, length
from course_lib.theory.schedules import interleaved_one_f_one_b, one_f_one_b, simulate
from tests.formulas import bubble_fraction


def test_boxes_are_those_of_the_simulation() -> None:
    found = boxes(simulate(one_f_one_b(3, 4), 1, 2))
    assert len(found) == 3 * 2 * 4 and {box.chunk for box in found} == {0}
    assert length(found) == pytest.approx(18)
    assert idle(found) == pytest.approx(bubble_fraction(3, 4))


def test_a_rank_with_two_stages_has_two_chunks() -> None:
    found = boxes(simulate(interleaved_one_f_one_b(2, 4, chunks=2), 1, 2))
    mine = [(box.kind, box.label, box.chunk) for box in found if box.rank == 1 and box.label == "0"]
    assert mine == [("forward", "0", 0), ("forward", "0", 1), ("backward", "0", 1), ("backward", "0", 0)]
