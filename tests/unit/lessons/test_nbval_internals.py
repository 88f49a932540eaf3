"""The names of nbval that the plug-in stands on are there."""

from course.tools import internals


def test_nothing_has_moved() -> None:
    assert internals.moved() == []
