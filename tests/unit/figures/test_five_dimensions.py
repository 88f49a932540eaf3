"""The picture of lesson 17: what its replay says, pass by pass."""

from itertools import pairwise

import pytest

from course.lessons.l17_five_dimensions.figures import replay


@pytest.mark.parametrize(
    ("images", "one_way", "both_ways"), [(1, 12, 12), (2, 24, 21), (4, 48, 39), (8, 96, 75)]
)
def test_each_further_image_from_the_other_end_adds_9_slots_not_12(
    images: int, one_way: int, both_ways: int
) -> None:
    for arrows, slots in (("→→", one_way), ("→←", both_ways)):
        assert max(each.end for each in replay((arrows * images)[:images])) == slots


def test_a_rank_does_one_thing_at_a_time_and_no_pass_precedes_its_input() -> None:
    passes = replay("→←←→")
    for rank in range(4):
        mine = sorted((each.start, each.end) for each in passes if each.rank == rank)
        assert len(mine) == 8
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
    assert [each.rank for each in passes[8:16]] == [3, 2, 1, 0, 0, 1, 2, 3]
    assert all(one.end <= next.start for one, next in pairwise(passes[:8]))
