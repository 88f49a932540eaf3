"""Coordinates in a hybrid, held to the drawing, and to being a permutation; its schedule as drawn."""

import pytest

from course_lib.theory.hybrid import Coordinates, HybridShape, StageShape, hybrid_schedule

FIVE = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
HY_FI = HybridShape((StageShape(columns=2), StageShape(), StageShape()), data=2, replicas=2)


def test_coordinates_are_those_of_the_drawing() -> None:
    tiles, shards = [Coordinates(0, 0, 0), Coordinates(0, 1, 0)], [Coordinates(1, 0, 0), Coordinates(1, 0, 1)]
    assert [FIVE.coordinates(0, position) for position in range(4)] == [*tiles, *shards]
    assert [FIVE.coordinates(1, position) for position in range(4)] == [*reversed(shards), *reversed(tiles)]
    assert FIVE.ranks == HY_FI.ranks == 8


@pytest.mark.parametrize("shape", [FIVE, HY_FI])
def test_all_coordinates_have_one_position_in_each_replica(shape: HybridShape) -> None:
    for replica in range(2):
        found = [shape.coordinates(replica, position) for position in range(shape.positions)]
        assert len(set(found)) == shape.positions
        assert [shape.position(replica, one) for one in found] == list(range(shape.positions))


def test_replicas_take_turns_and_microbatches_go_as_in_gpipe() -> None:
    schedule = hybrid_schedule(FIVE, 1, 2)
    assert [" ".join(map(repr, actions)) for actions in schedule] == ["F0 F1 B1 B0 F2' F3' B3' B2'"] * 4
    assert [[action.stage for action in actions] for actions in schedule] == [
        *[[0] * 4 + [1] * 4] * 2,
        *[[1] * 4 + [0] * 4] * 2,
    ]
    assert [len(actions) for actions in hybrid_schedule(HybridShape((StageShape(),)), 3, 2)] == [12]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="are 8 ranks, and there are 4"):
        FIVE.check(4)
    with pytest.raises(ValueError, match="1 or 2 replicas"):
        HybridShape((), replicas=2).check(1)
    with pytest.raises(ValueError, match="1 × 2; keep them, or join them"):
        HybridShape((StageShape(rows=2), StageShape(columns=2))).check(4)
