"""Sleep is not counted."""

from types import SimpleNamespace

import pytest

from mpi_classroom import awake
from mpi_classroom.awake import Awake, Deadline


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(awake.time, "monotonic", lambda: now.seconds)
    return now


def test_ten_minutes_of_sleep_count_as_one_look_at_the_clock(clock):
    watch = Awake()
    for _ in range(5):
        clock.seconds += 0.5
        watch.tick()
    clock.seconds += 600
    assert watch.tick() == 2.5 + awake.GAP_SECONDS


def test_a_deadline_does_not_pass_while_the_machine_sleeps(clock):
    deadline = Deadline(3.0)
    clock.seconds += 600
    assert not deadline.over
    for _ in range(3):
        clock.seconds += 0.9
        over = deadline.over
    assert over
