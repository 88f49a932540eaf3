"""The names of DeepSpeed that the course stands on are there."""

from course_lib.parallel import deepspeed_internals


def test_nothing_has_moved() -> None:
    assert deepspeed_internals.moved() == []
