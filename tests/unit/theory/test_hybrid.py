"""Coordinates in a hybrid, held to the drawing, and to being a permutation; its schedule as drawn."""

import pytest

from course_lib.theory.hybrid import HybridShape, StageShape

FIVE = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
HY_FI = HybridShape((StageShape(columns=2), StageShape(), StageShape()), data=2, replicas=2)


@pytest.mark.parametrize("shape", [FIVE, HY_FI])
def test_all_coordinates_have_one_position_in_each_replica(shape: HybridShape) -> None:
    for replica in range(2):
        found = [shape.coordinates(replica, position) for position in range(shape.positions)]
        assert len(set(found)) == shape.positions
        assert [shape.position(replica, one) for one in found] == list(range(shape.positions))
