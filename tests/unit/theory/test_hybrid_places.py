"""Places of a hybrid, held to the drawing, and to being a permutation."""

import pytest

from course_lib.theory.hybrid_places import HybridShape, Place, StageShape, actions

FIVE = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
HY_FI = HybridShape((StageShape(columns=2), StageShape(), StageShape()), data=2, replicas=2)


def test_places_are_those_of_the_drawing() -> None:
    tiles, shards = [Place(0, 0, 0), Place(0, 1, 0)], [Place(1, 0, 0), Place(1, 0, 1)]
    assert [FIVE.place(0, position) for position in range(4)] == [*tiles, *shards]
    assert [FIVE.place(1, position) for position in range(4)] == [*reversed(shards), *reversed(tiles)]
    assert FIVE.ranks == HY_FI.ranks == 8


@pytest.mark.parametrize("shape", [FIVE, HY_FI])
def test_every_place_has_one_position_in_each_replica(shape: HybridShape) -> None:
    for replica in range(2):
        places = [shape.place(replica, position) for position in range(shape.positions)]
        assert len(set(places)) == shape.positions
        assert [shape.position(replica, place) for place in places] == list(range(shape.positions))


def test_replicas_take_turns_and_microbatches_go_as_in_gpipe() -> None:
    assert actions(FIVE, 1, 2) == [
        *[("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)],
        *[("F", 1, 2), ("F", 1, 3), ("B", 1, 3), ("B", 1, 2)],
    ]
    assert len(actions(HybridShape((StageShape(),)), 3, 2)) == 12


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="are 8 ranks, and there are 4"):
        FIVE.check(4)
    with pytest.raises(ValueError, match="1 or 2 replicas"):
        HybridShape((), replicas=2).check(1)
    with pytest.raises(ValueError, match="1 × 2; keep them, or join them"):
        HybridShape((StageShape(rows=2), StageShape(columns=2))).check(4)
