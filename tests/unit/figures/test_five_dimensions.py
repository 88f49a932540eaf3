"""The picture of lesson 17: what its replay says, pass by pass."""

from course.lessons.l17_five_dimensions.figures import draw_replays
from tests.unit.figures.pictures import check_legible


def test_passes_are_drawn_where_the_replay_puts_them() -> None:
    alone = [(0, "F", 0, 0, 1), (1, "F", 0, 1, 1), (1, "B", 0, 2, 2), (0, "B", 0, 4, 2)]
    picture = draw_replays({"alone": alone, "first half": alone[:2]})
    check_legible(picture)
    assert "alone: 6 slots, 50% idle; first half: 2 slots, 50% idle" in picture.alt
    assert (
        "alone, rank 0 F0 B0; alone, rank 1 F0 B0; first half, rank 0 F0; first half, rank 1 F0"
        in picture.alt
    )
