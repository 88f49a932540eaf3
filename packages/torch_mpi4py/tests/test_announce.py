"""A wait that only another rank can end is announced by MPI_Pcontrol, and what ends by itself is not."""

import threading
import time
from collections.abc import Callable

import pytest
from mpi4py import MPI

from torch_mpi4py import announce
from torch_mpi4py.announce import GOES_ON, MOVED, MOVES, WAITS, wait_for_ranks
from torch_mpi4py.work import Lane, Pending


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What a tool hears: whether the main thread says it, and the level."""
    levels: list[tuple[bool, int]] = []
    main = threading.current_thread()
    monkeypatch.setattr(
        MPI, "Pcontrol", lambda level: levels.append((threading.current_thread() is main, level))
    )
    return levels


def after(seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() > ends


def never() -> bool:
    return False


def test_a_wait_that_is_soon_over_is_not_announced(heard: list[tuple[bool, int]]) -> None:
    assert wait_for_ranks(after(0.0), 60.0) and heard == []


def test_a_longer_wait_is_announced_once(heard: list[tuple[bool, int]]) -> None:
    assert wait_for_ranks(after(2.5 * announce.LOOK_SECONDS), 60.0)
    assert heard == [(True, WAITS), (True, GOES_ON)]


def test_a_wait_that_raises_is_over(heard: list[tuple[bool, int]]) -> None:
    late = after(0.3)

    def interrupted() -> bool:
        if late():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        wait_for_ranks(interrupted, 60.0)
    assert heard == [(True, WAITS), (True, GOES_ON)]


def test_without_a_tool_nothing_is_said() -> None:
    """mpi4py's own function raises an error at levels that it does not know."""
    with pytest.raises(MPI.Exception):
        MPI.Pcontrol(WAITS)
    announce.tell(WAITS)
    assert wait_for_ranks(after(0.3), 60.0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.02, 0.5])
def test_a_wait_with_a_short_timeout_ends_with_its_own_error(
    heard: list[tuple[bool, int]], seconds: float
) -> None:
    began = time.monotonic()
    assert not wait_for_ranks(never, seconds)
    assert time.monotonic() - began < seconds + 5 and heard == []


def test_while_a_message_arrives_data_moves(
    heard: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Message:
        def __init__(self) -> None:
            self.look = after(0.8)

    message = Message()
    monkeypatch.setattr(announce, "LOOK_SECONDS", 0.1)
    monkeypatch.setitem(announce.arriving, id(message), message)  # type: ignore[misc]
    assert wait_for_ranks(after(1.5), 60.0)
    assert [level for _, level in heard] == [WAITS, MOVES, MOVED, GOES_ON]
    assert id(message) not in announce.arriving


def test_a_thread_that_waits_for_the_lane_waits_for_the_ranks(heard: list[tuple[bool, int]]) -> None:
    """The owner thread stands at the gate with the lane's lock, and then moves the data."""
    lane, standing, come = Lane("0"), threading.Event(), threading.Event()

    def execute() -> None:
        standing.set()
        come.wait(30)
        announce.moving(lambda: time.sleep(0.01))()

    work = Pending(lane, execute, [])
    lane.submit(work)
    assert standing.wait(30)
    threading.Timer(0.2, come.set).start()
    assert work.wait()
    assert [level for main, level in heard if main] == [WAITS, GOES_ON, GOES_ON]
    assert [level for main, level in heard if not main][:4] == [WAITS, GOES_ON, MOVES, MOVED]
    assert lane.close(5.0)
