"""Runs are known by their mark alone: the living are left alone, the leftovers end."""

import os
import subprocess

import pytest

from mpi_classroom import leftovers
from packages.mpi_classroom.tests.waiting import dead_owner


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


def test_a_run_is_wanted_by_its_runner_and_under_make_by_make_too(monkeypatch):
    monkeypatch.delenv("MAKELEVEL", raising=False)
    assert leftovers.run_mark().startswith(f"{os.getpid()}:")
    assert "," not in leftovers.run_mark()
    monkeypatch.setenv("MAKELEVEL", "1")
    runner, make = leftovers.run_mark().split(",")
    assert runner.startswith(f"{os.getpid()}:")
    assert make.startswith(f"{os.getppid()}:")


def test_a_leftover_is_found_with_its_notebook_and_ended(marked):
    mark = dead_owner()
    children = [marked(mark), marked(mark, JPY_SESSION_NAME="/x/06_data_parallel.ipynb")]
    run = next(run for run in leftovers.leftover_runs() if run.mark == mark)
    assert set(run.pids) == {child.pid for child in children}
    assert run.notebook == "/x/06_data_parallel.ipynb"
    assert leftovers.end_leftover_run(run) == 2
    assert all(child.wait(5) is not None for child in children)
    assert mark not in [run.mark for run in leftovers.leftover_runs()]
