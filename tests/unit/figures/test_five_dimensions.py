"""The picture of lesson 17: what its replay says, pass by pass."""

import pytest

from course.lessons.l17_five_dimensions.figures import draw_directions, replay
from tests.unit.figures.pictures import check_legible


@pytest.mark.parametrize(
    ("images", "one_way", "both_ways"), [(1, 12, 12), (2, 24, 21), (4, 48, 39), (8, 96, 75)]
)
def test_each_further_image_from_the_other_end_adds_9_slots_not_12(
    images: int, one_way: int, both_ways: int
) -> None:
    for arrows, slots in (("→→", one_way), ("→←", both_ways)):
        assert max(each.end for each in replay((arrows * images)[:images])) == slots


def test_the_picture_is_legible_and_says_how_long_each_way_takes() -> None:
    picture = draw_directions({"Basic": "→→→→", "MASTER": "→←→←"})
    check_legible(picture)
    assert "Basic: 48 slots, 75% idle; MASTER: 39 slots, 69% idle" in picture.alt
