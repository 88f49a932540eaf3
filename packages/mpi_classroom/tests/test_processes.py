"""Clusters are found and ended by the mark of their processes, and nothing else is ever touched."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from mpi_classroom import processes
from mpi_classroom.folders import CLUSTER_PREFIX, lock
from mpi_classroom.processes import CLUSTER, OWNER
from packages.mpi_classroom.tests.waiting import dead_owner, is_running

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = "trap 'echo bye > \"$0\"; exit' TERM; echo ready; while :; do sleep 0.05; done"
FAMILY = "sleep 600 & echo $!; setsid sleep 600 & echo $!; wait"
BUSY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], env=os.environ | {sys.argv[1]: sys.argv[2]})
print(flush=True)
time.sleep(600)
"""
HEIR = "trap 'setsid sleep 600 & exit' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def start(tmp_path):
    """Starts a process of the cluster whose folder is `tmp_path`, or without a mark; waits for its words."""
    started = []

    def starter(*command, words=0, **environment):
        child = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child, [child.stdout.readline().strip() for _ in range(words)]

    yield starter
    for process, environment in processes.marked_processes():
        if environment[CLUSTER].startswith(str(tmp_path)):
            process.kill()
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def private(tmp_path):
    """A folder that is one of ours."""
    folder = tmp_path / f"{CLUSTER_PREFIX}x"
    folder.mkdir(mode=0o700)
    return folder


def mark(folder, notebook="lesson.ipynb"):
    return processes.marker(folder, notebook)


def found(folder):
    return next((cluster for cluster in processes.running_clusters() if cluster.folder == folder), None)


# -------------------------------------------------------------------- whose is it?


def test_a_zombie_is_no_owner():
    child = subprocess.Popen(["true"])
    owner = f"{child.pid}:{psutil.Process(child.pid).create_time():.2f}"
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not processes.owner_alive(owner)
    child.wait()


def test_a_later_process_with_the_same_pid_is_not_the_owner():
    me = psutil.Process()
    assert processes.owner_alive(f"{me.pid}:{me.create_time():.2f}")
    assert not processes.owner_alive(f"{me.pid}:{me.create_time() - 100:.2f}")


def test_an_owner_in_another_container_counts_as_alive():
    """Its pid means nothing here, so it cannot be said to be gone."""
    assert processes.owner_alive("999999:1.00:pid:[4026539999]")


def test_an_owner_on_another_machine_is_alive_while_its_agent_holds_the_folder(private):
    """Its pid may be that of a process here, such as this one."""
    me = psutil.Process()
    owner = f"{me.pid}:{me.create_time():.2f}:{os.readlink('/proc/self/ns/pid')}"
    assert processes.owner_alive(f"{owner}@{processes.boot()}")
    elsewhere = f"{owner}@00000000-0000-4000-8000-000000000000"
    assert not processes.owner_alive(elsewhere, private) and not processes.owner_alive(elsewhere)
    held = lock(private)
    assert processes.owner_alive(elsewhere, private)
    os.close(held)
    assert not processes.owner_alive(elsewhere, private)


def test_a_cluster_of_another_machine_is_not_this_notebooks_own(start, private):
    owner = f"{os.getpid()}:1.00:pid:[4026531836]@00000000-0000-4000-8000-000000000000"
    start("sleep", "600", **(mark(private) | {OWNER: owner}))
    held = lock(private)
    assert (found(private).owner_pid, found(private).owner_alive) == (0, True)
    os.close(held)
    assert not found(private).owner_alive


@pytest.mark.parametrize("owner", ["", "nonsense", "12:", "-1:2.0"])
def test_a_garbled_owner_is_nobody(owner):
    assert not processes.owner_alive(owner)


def test_who_has_a_scope_sees_it_alone_and_who_has_none_sees_all(start, monkeypatch, tmp_path):
    start("sleep", "600", **mark(tmp_path))
    assert processes.SCOPE in os.environ, "tests have one: they must not end the clusters of open notebooks"
    monkeypatch.setenv(processes.SCOPE, "another")
    assert found(tmp_path) is None
    monkeypatch.delenv(processes.SCOPE)
    assert found(tmp_path)


# -------------------------------------------------------------------- the end


def test_a_process_is_asked_before_it_is_killed(start, tmp_path):
    """mpiexec needs the time to remove the shared memory of its ranks."""
    child, _ = start("sh", "-c", POLITE, str(tmp_path / "word"), words=1, **mark(tmp_path))
    processes.end_marked(CLUSTER, str(tmp_path))
    assert child.wait(5) is not None
    assert (tmp_path / "word").read_text() == "bye\n"


def test_a_process_that_nobody_reaps_has_ended(start, tmp_path):
    """Its parent, perhaps another kernel, may be busy for an hour: nobody waits for that."""
    start(sys.executable, "-c", BUSY, CLUSTER, str(tmp_path), words=1)
    assert processes.end_marked(CLUSTER, str(tmp_path), timeout=3600) == 1


def test_a_process_born_while_the_others_are_ended_is_ended_too(start, tmp_path):
    child, _ = start("sh", "-c", HEIR, words=1, **mark(tmp_path))
    assert processes.end_marked(CLUSTER, str(tmp_path), timeout=2) >= 2
    child.wait(5)
    assert found(tmp_path) is None


def test_processes_of_others_are_never_touched(start, tmp_path):
    mine, _ = start("sleep", "600", **mark(tmp_path / "mine"))
    unmarked, _ = start("sleep", "600")
    other, _ = start("sleep", "600", **mark(tmp_path / "mine-too"))  # a longer name, no part of mine
    likewise, _ = start("sleep", "600", OTHER_VARIABLE=str(tmp_path / "mine"))
    assert processes.end_marked(CLUSTER, str(tmp_path / "mine")) == 1
    assert mine.wait(5) is not None
    assert [child.poll() for child in (unmarked, other, likewise)] == [None, None, None]


def test_the_marking_process_itself_is_never_ended(monkeypatch, tmp_path):
    monkeypatch.setenv(CLUSTER, str(tmp_path))
    assert os.getpid() not in [process.pid for process, _ in processes.marked_processes()]


def test_stopping_a_cluster_ends_all_its_processes_and_removes_its_folder(start, tmp_path):
    folder = tmp_path / "course-cluster-x"
    folder.mkdir(mode=0o700)
    child, pids = start("sh", "-c", FAMILY, words=2, **mark(folder))
    assert processes.stop_cluster("course-cluster-x") == 3
    assert child.wait(5) is not None
    assert not folder.exists()
    assert not [pid for pid in map(int, pids) if is_running(pid)]


def test_orphans_are_stopped_and_clusters_with_a_living_kernel_are_not(start, tmp_path):
    orphaned, owned = tmp_path / "orphaned", tmp_path / "owned"
    lost, _ = start("sleep", "600", **(mark(orphaned) | {OWNER: dead_owner()}))
    kept, _ = start("sleep", "600", **mark(owned))
    assert not found(orphaned).owner_alive
    assert processes.stop_orphans() >= 1
    assert lost.wait(5) is not None
    assert kept.poll() is None and found(owned) is not None


def test_orphans_that_ignore_sigterm_are_waited_for_together(start, tmp_path):
    for name in "abc":
        start("sh", "-c", DEAF, words=1, **mark(tmp_path / name) | {OWNER: dead_owner()})
    began = time.monotonic()
    assert processes.stop_orphans() >= 3
    assert time.monotonic() - began < 8  # each of them has 3 s to end by itself
    assert not any(found(tmp_path / name) for name in "abc")


def test_a_folder_that_a_variable_names_and_that_is_not_ours_stays(start, tmp_path):
    """A process of the user may carry any value in MPI_CLASSROOM_CLUSTER."""
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter").touch()
    lost, _ = start("sleep", "600", **(mark(precious) | {OWNER: dead_owner()}))
    assert processes.stop_orphans() >= 1
    assert lost.wait(5) is not None
    subprocess.run([sys.executable, "-m", "mpi_classroom.processes", str(precious)], timeout=30, check=True)
    assert (precious / "chapter").exists()
