"""What the observer sees of processes and files becomes a snapshot."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from mpi_classroom import host
from mpi_classroom.host import LocalHost, ProcessState, process_state, some_child_runs
from mpi_classroom.observer import Observer
from mpi_classroom.recording import calls
from mpi_classroom.recording.calls import CODES, EVERYONE, NOTHING, Collectives, call_file
from mpi_classroom.snapshot import Death, RankState
from packages.mpi_classroom.tests.waiting import until


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


def test_a_stopped_process_differs_from_one_that_runs_or_is_gone(process):
    pid = process("import time; time.sleep(60)")
    assert process_state(pid).condition == ""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: process_state(pid).condition == "stopped")
    os.kill(pid, signal.SIGKILL)
    until(lambda: process_state(pid).condition == "gone")
    assert process_state(2**22 + 1).condition == "gone"


def test_who_sleeps_wants_no_cpu_and_who_computes_does(process):
    sleeping, computing = process("import time; time.sleep(60)"), process("while True: pass")
    until(lambda: not process_state(sleeping).runnable and process_state(computing).runnable)
    until(lambda: (process_state(computing).cpu_seconds or 0) > 0.1)
    assert some_child_runs(os.getpid())


def test_a_process_that_hides_what_it_moves_is_not_gone(monkeypatch):
    def refuse(self):
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", refuse)
    state = process_state(os.getpid(), counts_bytes=True)
    assert (state.condition, state.moved) == ("", None) and state.cpu_seconds > 0


def test_a_rank_without_a_process_keeps_no_signal_from_the_others(process, tmp_path):
    pid = process("import time; time.sleep(60)")
    LocalHost(tmp_path, {2: pid}).signal([1, 2], signal.SIGKILL)
    until(lambda: process_state(pid).condition == "gone")


def in_call(folder, rank, number, name="Barrier"):
    """Write what a rank writes that is in its call `number`."""
    record = bytearray(calls.SIZE)
    nothing = (NOTHING,) * 3
    calls.NOW.pack_into(record, 0, number, 7, *nothing, 0, 0, 0, 0, CODES[name])
    calls.TALLY.pack_into(record, calls.TALLIES_AT, 0, number, *[0] * 5)
    call_file(folder, rank).write_bytes(record)


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """An observer of ranks 0 and 1, both this process, and a clock that is set by hand."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("mpi_classroom.awake.time", clock)
    monkeypatch.setattr(host, "time", clock)
    here = LocalHost(tmp_path, {0: os.getpid(), 1: os.getpid()})
    here.ask_stacks = lambda ranks: dict
    return Observer(dict.fromkeys(range(5), here), lambda file: None), now


def test_since_is_when_a_rank_was_first_seen_in_a_call(looks, tmp_path):
    looking, now = looks
    since = []
    for seconds, number in ((0.5, 1), (0.5, 1), (0.5, 2), (0.5, 2)):
        now[0] += seconds
        in_call(tmp_path, 0, number)
        since.append(looking.look([0])[0].since)
    assert since == [0.5, 0.5, 1.5, 1.5], "the same call again has another number: it is a move"


def test_a_call_that_a_slow_close_look_finds_began_after_it(looks, tmp_path):
    """A rank that makes call after call must not seem to have stood still while the stacks were awaited."""
    looking, now = looks
    in_call(tmp_path, 0, 1)
    looking.look([0])

    def slow():
        now[0] += 0.9
        in_call(tmp_path, 0, 2)
        return {}

    looking.hosts[0].ask_stacks = lambda ranks: slow
    seen = looking.snapshot([0], ended={}, close=True)
    assert seen.ranks[0].since == pytest.approx(seen.seconds)


def test_a_snapshot_has_all_ranks_whatever_is_known_of_them(looks, tmp_path):
    looking, _ = looks
    in_call(tmp_path, 0, 3)
    ended = {2: RankState(2, "finished"), 3: RankState(3, "raised", error="raised ValueError")}
    in_call(tmp_path, 2, 9)
    deaths = {4: Death(4, "signal", 9)}
    now = looking.snapshot([0, 2, 3, 4], ended=ended, background={1}, deaths=deaths)
    assert [state.kind for state in now.ranks] == ["waiting", "finished", "raised", "gone"]
    assert [state.kind for state in now.background] == ["computing"]
    assert (now.ranks[0].counts.sent, now.ranks[1].counts.collectives) == (7, {EVERYONE: Collectives(9)})
    assert (now.ranks[3].death, now.died, now.ended) == (deaths[4], True, False)
    assert [state.rank for state in now.busy] == [0, 4, 1]
    assert looking.snapshot([2, 3], ended=ended).ended


def test_a_rank_that_ended_and_then_died_has_ended_the_cell(looks):
    looking, _ = looks
    died = {0: Death(0, "exit", exit_code=1)}
    now = looking.snapshot([0], ended={0: RankState(0, "finished")}, deaths=died)
    assert now.ended and now.ranks[0].what() == "ended itself with exit code 1"


def test_a_rank_that_crashed_inside_a_call_says_which(looks, tmp_path):
    looking, _ = looks
    in_call(tmp_path, 0, 3)
    call = looking.look([0])[0].call
    for how, number, words in (
        ("crash", 11, f"crashed (signal 11) in {call}"),
        ("signal", 15, "was ended by signal 15"),
    ):
        now = looking.snapshot([0], ended={}, deaths={0: Death(0, how, number)})
        assert now.ranks[0].what() == words


def test_a_process_that_is_gone_was_ended_with_the_others(looks, monkeypatch):
    looking, _ = looks
    monkeypatch.setattr(host, "process_state", lambda pid, **_: ProcessState("gone"))
    state = looking.look([0], close=True)[0]
    assert (state.kind, state.error) == ("gone", "was ended with the others") and state.death is None


def test_processes_are_not_asked_about_at_every_look(looks, monkeypatch):
    looking, now = looks
    asked = []
    plain = host.process_state
    monkeypatch.setattr(host, "process_state", lambda pid, **_: asked.append(pid) or plain(pid))
    for _ in range(10):
        now[0] += host.PROCESS_SECONDS / 4
        looking.look([0])
    assert len(asked) <= 4
    now[0] += host.PROCESS_SECONDS / 4
    before = len(asked)
    looking.look([0], close=True)
    assert len(asked) == before + 1


class Far:
    """Another host, whose last answer is `age` seconds old, and a fresh one `fresh_age`."""

    name, lost, pids = "n3", "", {0: 7, 1: 8}

    def __init__(self, record, age, fresh_age=0.0):
        self.record, self.age, self.fresh_age = record, age, fresh_age

    def look(self, ranks, *, fresh, processes):
        state = ProcessState("", 1.0, True, 4096)
        age = self.fresh_age if fresh else self.age
        return {rank: host.Look(self.record, 5.0, state, age) for rank in ranks}


def test_a_rank_on_a_host_that_is_silent_is_in_no_call_that_counts(tmp_path):
    in_call(tmp_path, 0, 3)
    record = call_file(tmp_path, 0).read_bytes()
    for age, kind, what in (
        (0.3, "waiting", "waiting in Barrier"),
        (4.2, "stopped", "n3 has not answered for 4 s"),
    ):
        (state,) = Observer(dict.fromkeys([0], Far(record, age)), lambda file: None).look([0])
        assert (state.kind, state.what(), state.host, state.moved) == (kind, what, "n3", 4096)
        assert (state.call is None) is (kind == "stopped")


def test_counts_of_a_host_that_does_not_answer_in_time_are_not_known():
    ended = {0: RankState(0, "finished"), 1: RankState(1, "finished")}
    for fresh_age, known in ((0.1, True), (7.0, False)):
        looking = Observer(dict.fromkeys([0, 1], Far(bytes(calls.SIZE), 7.0, fresh_age)), lambda file: None)
        assert bool(looking.counts([0, 1])) is known
        assert looking.snapshot([0, 1], ended=ended).counted is known


@pytest.mark.parametrize("status", [psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP])
def test_a_rank_that_is_stopped_says_its_process(looks, monkeypatch, status):
    looking, _ = looks
    stopped = replace(RankState(0, "stopped"), error=f"is stopped (process {os.getpid()})")
    monkeypatch.setattr(psutil.Process, "status", lambda self: status)
    state = looking.look([0], close=True)[0]
    assert (state.kind, state.what(), state.pid) == ("stopped", stopped.error, os.getpid())
