"""Ranks start on this machine alone, with their share of its cores, whoever starts them."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from mpi_classroom import launch
from mpi_classroom.launch import (
    available_cores,
    find_mpiexec,
    mpiexec_command,
    rank_environment,
    run_ranks,
    running_job,
    threads_per_rank,
)
from mpi_classroom.processes import end_marked
from packages.mpi_classroom.tests.waiting import is_running, until

WORLD = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.rank, c.size, flush=True)"


def lines(done):
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_two_jobs_may_have_the_same_environment():
    environment = rank_environment(2)
    for _ in range(2):
        command = mpiexec_command(2, [sys.executable, "-c", WORLD])
        with running_job(command, environment, stdout=subprocess.PIPE, text=True) as job:
            output, _ = job.communicate(timeout=60)
        assert job.returncode == 0 and sorted(output.splitlines()) == ["0 2", "1 2"]


def test_the_command_line_does_the_same(tmp_path):
    (tmp_path / "script.py").write_text(f"import sys\n{WORLD}\nprint(sys.argv[1:])")
    command = [sys.executable, "-m", "mpi_classroom.launch", "2", str(tmp_path / "script.py"), "--x", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert lines(done) == ["0 2", "1 2", "['--x', 'a b']", "['--x', 'a b']"]


def test_the_exit_code_of_a_rank_is_that_of_the_job():
    code = "import sys; from mpi4py import MPI; sys.exit(3 * MPI.COMM_WORLD.rank)"
    assert run_ranks(2, ["-c", code], timeout=60).returncode == 3


HANG = """
import json, os, pathlib, re, sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
maps = pathlib.Path("/proc/self/maps").read_text()
facts = {"pid": os.getpid(), "shared": re.findall(r"(/dev/shm/[^ ]+)$", maps, re.MULTILINE)}
pathlib.Path(sys.argv[1], f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(facts))
def stuck_here():
    MPI.COMM_WORLD.recv()
stuck_here()
"""


def test_a_job_that_does_not_end_says_where_it_stands_and_leaves_neither_ranks_nor_memory(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_ranks(2, ["-c", HANG, str(tmp_path)], timeout=7)
    facts = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(facts) == 2
    (note,) = caught.value.__notes__
    assert note.count("line 9 in stuck_here") == 2, note
    assert not [fact for fact in facts if is_running(fact["pid"])]
    segments = {name for fact in facts for name in fact["shared"]}
    assert segments and not [name for name in segments if os.path.exists(name)]


BUSY = """
import os, pathlib, sys, time
from mpi4py import MPI
from mpi_classroom import folders
comm = MPI.COMM_WORLD
report = pathlib.Path(sys.argv[1], f"{comm.rank}.part")
report.write_text(f"{os.getpid()} {os.getppid()} {os.environ[folders.SEGMENTS]} {os.environ[folders.JOB]}")
report.rename(report.with_suffix(".rank"))
while time.sleep(0.01) is None:  # no MPI, which would notice that mpiexec is gone
    pass
"""
STARTS = {
    "run_ranks": "import sys, mpi_classroom.launch as launch; launch.run_ranks(2, sys.argv[1:], timeout=60)",
    "the command line": "import sys, mpi_classroom.launch as launch; sys.argv.insert(1, '2'); launch.main()",
    "a call of mpiexec": (
        "import subprocess, sys; from mpi_classroom.launch import mpiexec_command, rank_environment;"
        "subprocess.run(mpiexec_command(2, [sys.executable, *sys.argv[1:]]), env=rank_environment(2))"
    ),
}


@pytest.mark.parametrize(
    ("how", "whom"), [*((how, "the parent") for how in STARTS), ("run_ranks", "mpiexec")]
)
def test_a_killed_parent_or_mpiexec_leaves_neither_ranks_nor_files(tmp_path, how, whom):
    command = [sys.executable, "-c", STARTS[how], "-c", BUSY, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: len(list(tmp_path.glob("*.rank"))) == 2)
            reports = [path.read_text().split() for path in tmp_path.glob("*.rank")]
            ranks, (mpiexec,) = [int(report[0]) for report in reports], {int(report[1]) for report in reports}
            files = [Path(name) for report in reports for name in report[2:]]
            assert all(path.exists() for path in files)
            os.kill(parent.pid if whom == "the parent" else mpiexec, signal.SIGKILL)
            until(lambda: not any(map(is_running, [mpiexec, *ranks])))
            until(lambda: not [path for path in files if path.exists()])
            if whom == "the parent":
                until(lambda: not [path for path in files if path.parent.exists()])
        finally:
            parent.kill()


def test_who_ends_all_that_a_process_started_leaves_its_watchdog_the_time_to_clear_up(tmp_path):
    """As `course run` does when a kernel is gone; a watchdog that it killed would leave the files."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", STARTS["run_ranks"], "-c", BUSY, str(tmp_path)]
    environment = os.environ | {"MPI_CLASSROOM_TEST_MARK": mark}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as parent:
        until(lambda: len(list(tmp_path.glob("*.rank"))) == 2)
        files = [Path(name) for path in tmp_path.glob("*.rank") for name in path.read_text().split()[2:]]
        end_marked("MPI_CLASSROOM_TEST_MARK", mark, timeout=0)
        parent.wait()
    until(lambda: not [path for path in files if path.parent.exists()])


def test_a_job_may_be_started_from_inside_a_rank():
    """Otherwise it would take itself for a part of that rank's job."""
    code = (
        "from mpi4py import MPI; from mpi_classroom.launch import run_ranks;"
        f"done = run_ranks(2, ['-c', {WORLD!r}], timeout=60);"
        "print(sorted(done.stdout.splitlines()), done.stderr, flush=True)"
    )
    assert lines(run_ranks(1, ["-c", code], timeout=90)) == ["['0 2', '1 2'] "]


# -------------------------------------------------------------------- the environment


def test_only_a_job_that_connects_to_another_has_tcp():
    chosen = {"OMPI_MCA_btl": "tcp,self"}
    assert rank_environment(4, chosen)["OMPI_MCA_btl"] == "self,sm"
    connecting = rank_environment(4, chosen, connects=True)
    assert connecting["OMPI_MCA_btl"] == "self,sm,tcp" and connecting["OMPI_MCA_btl_tcp_if_include"] == "lo"


def test_the_variables_of_a_surrounding_job_are_not_inherited_and_all_others_are():
    base = {
        "PMIX_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMI_SIZE": "4",
        "MPI_LOCALNRANKS": "4",
        "PRTE_LAUNCHED": "1",
        "OMPI_MCA_x": "y",
        "HOME": "/h",
    }
    environment = rank_environment(2, base)
    left = {"PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "PRTE_LAUNCHED", "PMI_SIZE", "MPI_LOCALNRANKS"}
    assert not left & set(environment)
    assert environment["OMPI_MCA_x"] == "y" and environment["HOME"] == "/h"
    assert "PMIX_RANK" in base, "the caller's own mapping is left as it is"


@pytest.mark.parametrize(("cores", "size", "threads"), [(8, 3, 2), (2, 4, 1), (4, 1, 4)])
def test_threads_of_all_ranks_together_fit_the_cores(monkeypatch, cores, size, threads):
    monkeypatch.setattr(launch, "available_cores", lambda: cores)
    assert threads_per_rank(size) == threads
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert rank_environment(size, {})[name] == str(threads)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("250000 100000", 2),
        ("50000 100000", 1),
    ],
)
def test_a_container_with_a_quota_has_that_many_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda self: quota)
    assert available_cores() == cores


def test_a_machine_without_quotas_has_the_cores_of_the_affinity_mask(monkeypatch):
    def missing(self):
        raise FileNotFoundError

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    monkeypatch.setattr(Path, "read_text", missing)
    assert available_cores() == 3


# -------------------------------------------------------------------- mpiexec


def test_mpiexec_is_the_one_beside_this_python_not_the_one_on_path(tmp_path, monkeypatch):
    (tmp_path / "mpiexec").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_mpiexec().parent == Path(sys.executable).parent
    assert mpiexec_command(3, ["a", "b"]) == [str(find_mpiexec()), "-n", "3", "a", "b"]
