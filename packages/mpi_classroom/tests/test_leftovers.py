"""Runs are known by their mark alone: the living are left alone, the leftovers end."""

import os
import subprocess

import psutil
import pytest

from mpi_classroom import leftovers


@pytest.fixture
def marked():
    """Starts a process that carries a mark, as a kernel does."""
    started = []

    def start(mark, **environment):
        child = subprocess.Popen(["sleep", "600"], env=os.environ | {leftovers.RUN: mark} | environment)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def dead_owner():
    """The mark of a process that is gone."""
    child = subprocess.Popen(["true"])
    mark = f"{child.pid}:{psutil.Process(child.pid).create_time():.2f}"
    child.wait()
    return mark


def test_a_run_is_wanted_by_its_runner_and_under_make_by_make_too(monkeypatch):
    monkeypatch.delenv("MAKELEVEL", raising=False)
    assert leftovers.run_mark().startswith(f"{os.getpid()}:")
    assert "," not in leftovers.run_mark()
    monkeypatch.setenv("MAKELEVEL", "1")
    runner, make = leftovers.run_mark().split(",")
    assert runner.startswith(f"{os.getpid()}:")
    assert make.startswith(f"{os.getppid()}:")


def test_what_a_living_run_started_is_no_leftover(marked, monkeypatch):
    monkeypatch.delenv("MAKELEVEL", raising=False)
    child = marked(leftovers.run_mark())
    assert child.pid not in [pid for run in leftovers.leftover_runs() for pid in run.pids]


def test_a_leftover_is_found_with_its_notebook_and_ended(marked):
    mark = dead_owner()
    children = [marked(mark), marked(mark, JPY_SESSION_NAME="/x/06_data_parallel.ipynb")]
    run = next(run for run in leftovers.leftover_runs() if run.mark == mark)
    assert set(run.pids) == {child.pid for child in children}
    assert run.notebook == "/x/06_data_parallel.ipynb"
    assert leftovers.end_leftover_run(run) == 2
    assert all(child.wait(5) is not None for child in children)
    assert mark not in [run.mark for run in leftovers.leftover_runs()]


def test_ending_one_run_leaves_another_alone(marked):
    first, second = dead_owner(), dead_owner()
    mine, other = marked(first), marked(second)
    assert leftovers.end_run_processes(first) == 1
    assert mine.wait(5) is not None
    assert other.poll() is None


def test_a_reused_pid_is_not_taken_for_the_owner(marked):
    child = marked(f"{os.getpid()}:1.00")  # this process's pid, another start time
    assert child.pid in [pid for run in leftovers.leftover_runs() for pid in run.pids]


def test_ending_a_run_with_a_reused_pid_spares_the_process_that_has_it_now(marked):
    child = marked(f"{os.getpid()}:1.00")
    run = next(run for run in leftovers.leftover_runs() if child.pid in run.pids)
    assert leftovers.end_leftover_run(run) == 1
    assert psutil.pid_exists(os.getpid())
