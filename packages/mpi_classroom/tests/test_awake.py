"""Sleep is not counted, and who gets no processor is not blamed."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from mpi_classroom import awake
from mpi_classroom.awake import Awake, Deadline, Turns, condition


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


@pytest.fixture
def process():
    """Starts `python -c code`; everything is ended afterwards."""
    started = []

    def start(code):
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1].pid

    yield start
    for child in started:
        child.kill()
        child.wait()


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stopped_process_is_told_from_one_that_runs_or_is_gone(process):
    pid = process("import time; time.sleep(60)")
    assert condition(pid) == ""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: condition(pid) == "stopped")
    os.kill(pid, signal.SIGKILL)
    until(lambda: condition(pid) == "gone")
    assert condition(2**22 + 1) == "gone"


class Fake:
    """A process that has used so many seconds of a processor."""

    def __init__(self, used, status):
        self.used, self.state = used, status

    def oneshot(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def cpu_times(self):
        return (self.used, 0.0, 0.0, 0.0)

    def status(self):
        return self.state


@pytest.mark.parametrize(
    ("status", "used", "starved"),
    [
        (psutil.STATUS_RUNNING, 0.0, True),  # it could run and was not let
        (psutil.STATUS_RUNNING, 0.2, False),
        (psutil.STATUS_SLEEPING, 0.0, False),  # it waits for something: nobody keeps it from running
        (psutil.STATUS_STOPPED, 0.0, True),
    ],
)
def test_who_could_run_and_was_not_let_is_starved(monkeypatch, status, used, starved):
    processes = {1: Fake(5.0, status)}
    monkeypatch.setattr(awake.psutil, "Process", processes.__getitem__)
    turns = Turns()
    turns.starved([1])
    processes[1].used += used
    assert turns.starved([1]) is starved
    turns.restart()
    assert turns.starved([1]) is (status != psutil.STATUS_SLEEPING), "counted from there on again"


def test_a_process_that_is_gone_is_not_starved():
    assert not Turns().starved([2**22 + 1])


def test_who_sleeps_is_not_at_work_and_asks_for_no_processor(monkeypatch):
    processes = {1: Fake(5.0, psutil.STATUS_RUNNING), 2: Fake(5.0, psutil.STATUS_SLEEPING)}
    monkeypatch.setattr(awake.psutil, "Process", processes.__getitem__)
    assert awake.processor_seconds(1) == 5.0 and awake.at_work(1)
    assert awake.processor_seconds(2) == float("inf") and not awake.at_work(2)
