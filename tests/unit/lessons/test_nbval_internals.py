"""The names of nbval and DeepSpeed that the course stands on are there."""

from course.tools import internals


def test_nothing_has_moved() -> None:
    assert internals.moved() == []
