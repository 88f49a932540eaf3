"""What start_cluster says of other clusters on this machine."""

import os
from pathlib import Path

import pytest

from mpi_classroom import processes, welcome
from mpi_classroom.processes import EXERCISE, ClusterProcesses


@pytest.fixture
def others(monkeypatch):
    """Pretends that these clusters are running; lists those that were stopped."""
    stopped = []

    def pretend(*clusters):
        monkeypatch.setattr(processes, "running_clusters", lambda: list(clusters))
        monkeypatch.setattr(processes, "stop_cluster", stopped.append)
        return stopped

    return pretend


def cluster(notebook, *, owner=1, alive=True):
    return ClusterProcesses(f"{notebook}-id", Path("/tmp/x"), owner, alive, notebook, (2, 3))


def test_an_exercise_that_is_being_checked_is_not_mentioned_or_stopped(others):
    stopped = others(cluster(EXERCISE), cluster(EXERCISE, owner=os.getpid()))
    assert welcome.other_clusters(stop=False) == welcome.other_clusters(stop=True) == []
    assert stopped == []


def test_what_a_killed_exercise_left_is_stopped(others):
    stopped = others(cluster(EXERCISE, alive=False))
    assert welcome.other_clusters(stop=False) == ["Stopped the cluster of an exercise, which was killed."]
    assert stopped == ["an exercise-id"]
