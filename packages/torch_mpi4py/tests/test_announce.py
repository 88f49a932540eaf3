"""A wait that only another rank can end is announced by MPI_Pcontrol, and what ends by itself is not."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mpi4py import MPI

from torch_mpi4py import announce
from torch_mpi4py.announce import WAIT_BEGAN, WAIT_ENDED, WORK_BEGAN, WORK_ENDED, wait_for_ranks
from torch_mpi4py.channel import Call, Channel
from torch_mpi4py.gate import record
from torch_mpi4py.messages import Message
from torch_mpi4py.work import Lane, Pending

Heard = list[tuple[bool, int]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What a tool hears: whether the main thread says it, and the level."""
    levels: Heard = []
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


class Incomplete:
    """A message that has begun to arrive, until `look` says that it is complete."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self.look = look


def test_a_longer_wait_is_announced_once(heard: Heard) -> None:
    assert wait_for_ranks(after(2.5 * announce.LOOK_SECONDS), 60.0)
    assert heard == [(True, WAIT_BEGAN), (True, WAIT_ENDED)]


def test_a_wait_that_raises_is_over(heard: Heard) -> None:
    late = after(0.3)

    def interrupted() -> bool:
        if late():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        wait_for_ranks(interrupted, 60.0)
    assert heard == [(True, WAIT_BEGAN), (True, WAIT_ENDED)]


@pytest.mark.parametrize(
    ("interrupted_at", "others"),
    [(WORK_BEGAN, [WAIT_BEGAN, WAIT_ENDED]), (WAIT_ENDED, [WAIT_BEGAN, WORK_BEGAN, WORK_ENDED])],
)
def test_an_interrupt_at_an_announcement_leaves_no_other_one_out(
    interrupted_at: int, others: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of work without its begin makes the count negative, and no wait is noted any more."""
    levels: list[int] = []

    def hear(level: int) -> None:
        if level == interrupted_at:
            raise KeyboardInterrupt
        levels.append(level)

    monkeypatch.setattr(MPI, "Pcontrol", hear)
    message = Incomplete(never)
    monkeypatch.setitem(announce.arriving, id(message), message)
    with pytest.raises(KeyboardInterrupt):
        wait_for_ranks(after(0.3), 60.0)
    assert levels == others


def test_without_a_tool_nothing_is_said() -> None:
    """mpi4py's own function raises an error at levels that it does not know."""
    with pytest.raises(MPI.Exception):
        MPI.Pcontrol(WAIT_BEGAN)
    announce.tell(WAIT_BEGAN)
    assert wait_for_ranks(after(0.3), 60.0)


@pytest.mark.parametrize("seconds", [-1.0, 0.5])
def test_a_wait_with_a_short_timeout_ends_with_its_own_error(heard: Heard, seconds: float) -> None:
    began = time.monotonic()
    assert not wait_for_ranks(never, seconds)
    assert time.monotonic() - began < seconds + 5 and heard == []


def test_while_a_message_arrives_data_moves(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Incomplete(after(0.8))
    monkeypatch.setattr(announce, "LOOK_SECONDS", 0.1)
    monkeypatch.setitem(announce.arriving, id(message), message)
    assert wait_for_ranks(after(1.5), 60.0)
    assert [level for _, level in heard] == [WAIT_BEGAN, WORK_BEGAN, WORK_ENDED, WAIT_ENDED]
    assert id(message) not in announce.arriving


def test_a_thread_that_waits_for_the_lane_waits_for_the_ranks(heard: Heard) -> None:
    """The owner thread stands at the gate with the lane's lock, and then moves the data."""
    lane, standing, come = Lane("0", 60.0), threading.Event(), threading.Event()

    def execute() -> None:
        standing.set()
        come.wait(30)
        announce.as_work(lambda: time.sleep(0.01))()

    work = Pending(lane, execute, [], 60.0)
    lane.submit(work)
    assert standing.wait(30)
    threading.Timer(0.2, come.set).start()
    assert work.wait()
    assert [level for main, level in heard if main] == [WAIT_BEGAN, WAIT_ENDED, WAIT_ENDED]
    assert [level for main, level in heard if not main][:4] == [
        WAIT_BEGAN,
        WAIT_ENDED,
        WORK_BEGAN,
        WORK_ENDED,
    ]
    assert lane.close(5.0)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("running", "queued"), [(20.0, 60.0), (60.0, 20.0)])
def test_a_wait_for_a_collective_with_a_short_timeout_ends_with_its_own_error(
    heard: Heard, blocking: bool, running: float, queued: float
) -> None:
    channel = Channel(MPI.COMM_SELF.Dup(), 60.0, "0")
    standing, come = threading.Event(), threading.Event()
    meanwhile: Heard = []  # heard while the first one ran

    def stand() -> None:
        standing.set()
        come.wait(30)

    def let_go() -> None:
        meanwhile.extend(heard)
        come.set()

    first = Call(record("barrier", None), lambda: "first", stand, [])
    then = Call(record("barrier", None), lambda: "then", lambda: None, [])
    channel.run(first, running, later=True)
    assert standing.wait(30)
    channel.run(then, queued, later=True)
    heard.clear()
    threading.Timer(0.5, let_go).start()
    assert channel.run(then, 60.0, later=not blocking).wait()
    assert WAIT_BEGAN not in [level for main, level in meanwhile if main]
    channel.lane.step()  # with nothing to do, as the owner thread makes after others have run its works
    channel.close(lambda seconds: True)


def test_a_users_thread_that_moves_data_works(heard: Heard) -> None:
    """The main thread may wait for it, or for what it does next."""
    channel = Channel(MPI.COMM_SELF.Dup(), 60.0, "0")
    seen: list[Heard] = []
    call = Call(record("barrier", None), lambda: "", lambda: seen.append(list(heard)), [])
    thread = threading.Thread(target=lambda: channel.run(call, 60.0, later=False))
    thread.start()
    thread.join(30)
    assert seen == [[(False, WORK_BEGAN)]] and heard == [(False, WORK_BEGAN), (False, WORK_ENDED)]
    channel.run(call, 60.0, later=False)
    assert len(seen) == 2 and heard == [(False, WORK_BEGAN), (False, WORK_ENDED)], (
        "the main thread need not say so"
    )
    channel.close(lambda seconds: True)


def test_a_callback_runs_when_the_wait_for_its_message_is_over(heard: Heard) -> None:
    """It may compute for long, and no other rank can end that."""
    comes = after(0.3)
    seen: list[list[int]] = []

    class Late(Message):
        def test(self) -> None:
            self.done = comes()

    queue: Any = SimpleNamespace(channel=SimpleNamespace(seconds=60.0), look_after=lambda message: None)
    message = Late(queue, torch.zeros(1), torch.zeros(1), "recv")
    message.get_future().then(lambda _: seen.append([level for _, level in heard]))
    assert message.wait()
    assert seen == [[WAIT_BEGAN, WAIT_ENDED, WORK_BEGAN]]
    assert heard[-1] == (True, WORK_ENDED)


def test_a_callback_on_the_owner_thread_is_announced_as_work(heard: Heard) -> None:
    """The main thread may wait for that thread, and no other rank can end the callback."""
    lane = Lane("0", 60.0)
    work = Pending(lane, lambda: None, [], 60.0)
    ended = work.get_future().then(lambda _: time.sleep(0.01))
    lane.submit(work)
    ended.wait()
    assert lane.close(5.0)
    assert [level for main, level in heard if not main and level in (WORK_BEGAN, WORK_ENDED)] == [
        WORK_BEGAN,
        WORK_ENDED,
    ]
