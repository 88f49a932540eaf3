"""Coordinates in a hybrid, held to the drawing, and to being a permutation; its schedule as drawn."""

from course_lib.theory.hybrid import HybridShape, StageShape

HY_FI = HybridShape((StageShape(columns=2), StageShape(), StageShape()), data=2, replicas=2)


def test_all_coordinates_have_one_position_in_each_replica() -> None:
    for replica in range(2):
        found = [HY_FI.coordinates(replica, position) for position in range(HY_FI.positions)]
        assert len(set(found)) == HY_FI.positions
        assert [HY_FI.position(replica, one) for one in found] == list(range(HY_FI.positions))
