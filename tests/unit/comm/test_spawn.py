"""Spawned workers: π from them, alone and below mpiexec, and what is said of workers that die or hang."""

import math
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import psutil
import pytest

from course.lessons.l03_arctan_pi.spawn import SpawnError, prepare_to_spawn, spawned_pi, what_happened
from course.paths import ROOT
from course_lib.pi import midpoint_loop
from mpi_classroom.launch import mpiexec_command

INTERVALS = 10_000
PACKAGES = sysconfig.get_path("purelib")
BEFORE_MPI = "import os\nos._exit(5)\n"
WORKER = """\
import os, sys, time
from pathlib import Path
from mpi4py import MPI
import numpy as np

parent = MPI.Comm.Get_parent()
last = parent.rank == parent.size - 1
{before}
intervals = np.zeros((), dtype=np.int64)
parent.Bcast(intervals, root=0)
{after}
parent.Reduce(np.array(float(intervals) / parent.size), None, root=0)
{end}
"""


def worker(folder: Path, *, before: str = "", after: str = "", end: str = "parent.Disconnect()") -> list[str]:
    """The arguments of Python for a worker that does this before and after the broadcast, and at its end."""
    script = folder / "worker.py"
    script.write_text(WORKER.format(before=before, after=after, end=end))
    return ["-m", "mpi4py", str(script)]


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """A parent as a shell starts it: without the environment that the course's launcher makes."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **variables}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


def python_of_everyone() -> str:
    """A Python of this version that an ordinary user may run; skips where there is none."""
    minor = f"/usr/bin/python3.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), minor):
        folders = [Path(path), *Path(path).parents]
        if Path(path).exists() and all(folder.stat().st_mode & 0o001 for folder in folders):
            return path
    pytest.skip(f"no Python that an ordinary user may run: {sys.executable} is root's, there is no {minor}")


# -------------------------------------------------------------------- π


@pytest.mark.parametrize("workers", [1, 3])
def test_spawned_workers_add_up_what_one_process_does(workers: int) -> None:
    found = spawned_pi(workers, INTERVALS)
    assert found.pi == pytest.approx(midpoint_loop(INTERVALS), abs=1e-12)
    assert (found.workers, found.intervals) == (workers, INTERVALS)
    assert found.seconds > 0


def test_fewer_intervals_than_workers_leave_some_without_work() -> None:
    assert spawned_pi(3, 2).pi == pytest.approx(midpoint_loop(2))


@pytest.mark.parametrize(("workers", "intervals"), [(0, 5), (2, 0), (2, -1)])
def test_nothing_to_do_is_refused_before_anything_starts(workers: int, intervals: int) -> None:
    with pytest.raises(ValueError, match=f"{workers} workers for {intervals} intervals; give at least 1"):
        spawned_pi(workers, intervals)


def test_intervals_past_32_bits_arrive_whole(tmp_path: Path) -> None:
    assert spawned_pi(2, 2**40 + 3, worker=worker(tmp_path)).pi == 2**40 + 3


def test_intervals_of_32_bits_are_the_articles_mistake() -> None:
    with pytest.raises(OverflowError):
        np.array(2**40 + 3, dtype="i")


PARENT = [sys.executable, "-m", "course.lessons.l03_arctan_pi.spawn", "3", str(INTERVALS)]


def test_a_process_that_nobody_started_with_mpiexec_can_spawn() -> None:
    done = run(PARENT)
    assert done.returncode == 0, done.stderr
    assert "π ≈ 3.14159265" in done.stdout and "from 3 spawned workers" in done.stdout


def test_a_process_below_mpiexec_can_spawn() -> None:
    done = run(mpiexec_command(1, PARENT), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    assert done.returncode == 0, done.stderr
    assert "π ≈ 3.14159265" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="this user is not root: the other tests show that it can spawn")
@pytest.mark.parametrize("below_mpiexec", [False, True])
def test_who_is_not_root_can_spawn(below_mpiexec: bool) -> None:
    command = [python_of_everyone(), *PARENT[1:]]
    command = mpiexec_command(1, command) if below_mpiexec else command
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ours = {
        "PYTHONPATH": f"{ROOT}:{ROOT}/packages/mpi_classroom:{PACKAGES}",
        "PATH": f"{sysconfig.get_path('scripts')}:/usr/bin:/bin",
        "MPI4PY_LIBMPI": str(Path(sys.prefix, "lib", "libmpi.so.40")),  # not the one of the system
    }
    done = run([*nobody, *command], **ours)
    assert done.returncode == 0, done.stderr
    assert "π ≈ 3.14159265" in done.stdout


def test_the_parent_learns_where_prte_is_and_that_root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/usr/bin"})
    prepare_to_spawn(2)
    prepare_to_spawn(2)
    assert os.environ["PATH"].split(os.pathsep) == [sysconfig.get_path("scripts"), "/usr/bin"]
    assert ("PRTE_ALLOW_RUN_AS_ROOT" in os.environ) == (os.geteuid() == 0)
    assert "tcp" in dict(os.environ)["OMPI_MCA_btl"], "parent and workers connect through it"


def test_a_worker_that_was_not_spawned_says_how_to_spawn_it() -> None:
    done = run([sys.executable, "-m", "course.lessons.l03_arctan_pi.pi_worker"])
    assert done.returncode == 1
    assert done.stderr.startswith("this worker was not spawned; start parent and workers with: python -m ")


# -------------------------------------------------------------------- workers that die or hang


def end_of(tmp_path: Path, script: list[str], timeout: float, intervals: int = 8) -> str:
    """What is said of workers that give no answer; none of them is left. They would hang for ten minutes."""
    with pytest.raises(SpawnError) as raised:
        spawned_pi(3, intervals, timeout=timeout, worker=script)
    assert not [p for p in psutil.process_iter() if str(tmp_path) in " ".join(command_line(p))]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


EXIT = "if last: os._exit(7)"
KILL = "if last: os.kill(os.getpid(), 9)"
RAISE = "if last: raise ValueError('I have had enough')"
HANG = "if last: time.sleep(600)"


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (EXIT, "spawned worker 2 of 3 left with exit code 7 before its work was done"),
        (KILL, "spawned worker 2 of 3 was ended by signal 9 (Killed)"),
        (RAISE, "the 3 spawned workers gave no answer: ValueError: I have had enough"),
    ],
    ids=["exit", "kill", "raise"],
)
def test_a_worker_that_dies_is_named(tmp_path: Path, when: str, how: str, words: str) -> None:
    assert end_of(tmp_path, worker(tmp_path, **{when: how}), timeout=30) == words


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_worker_that_hangs_is_ended_at_the_deadline(tmp_path: Path, when: str) -> None:
    said = end_of(tmp_path, worker(tmp_path, **{when: HANG}), timeout=4)
    assert said.startswith("the 3 spawned workers gave no answer within 4 s: one of them hangs")


def test_workers_that_end_before_they_start_mpi_are_named(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(BEFORE_MPI)
    assert "left with exit code 5" in end_of(tmp_path, [str(script)], timeout=12)


def test_workers_that_do_not_disconnect_leave_the_parent_waiting(tmp_path: Path) -> None:
    said = end_of(tmp_path, worker(tmp_path, end="time.sleep(600)"), timeout=4)
    assert "no answer within 4 s" in said


def test_what_mpi_does_not_explain_is_passed_on() -> None:
    assert what_happened("Socket closed", 2, 5).endswith("broke: Socket closed")
    assert what_happened("", 2, 5).endswith("MPI does not say why")


def test_pi_of_the_workers_is_not_pi_of_the_parent() -> None:
    assert spawned_pi(2, 1).pi == pytest.approx(3.2) != pytest.approx(math.pi)
