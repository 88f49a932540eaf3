"""`mpiexec` and the others as they are typed: what they start, in which environment, and whose mpiexec."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from pathlib import Path

import pytest

from mpi_classroom import commands
from mpi_classroom.commands import count, job_environment, mpiexec_of, own_options, settle, untouched
from mpi_classroom.folders import SEGMENTS
from mpi_classroom.launch import ALLOW_ROOT, KEPT_MPIEXEC, TRANSPORT
from mpi_classroom.processes import marked_processes
from packages.mpi_classroom.tests.waiting import until

MARK = "MPI_CLASSROOM_TEST_TYPED"
NAMES = {"PATH": "/usr/bin"}  # of a shell in which nothing is set
SLEEPS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
)


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("-n 4 python ring.py -n 9", 4),
        ("--wdir /tmp -np 8 python pi.py", 8),
        ("-n 2 --oversubscribe head -n 5 file", 2),
        ("-n 2 --map-by=core head -n 5 : -n 3 tail -n 7 file", 5),
        ("--map-by env -n 4 head -n 5 file", 4),
        ("--np=3 --map-by slot python3.11 ring.py", 3),
        ("--nproc-per-node 2 train.py --np 9", 2),
        ("--num_gpus 2 train.py", 2),
        ("python ring.py", commands.available_cores()),
        ("--nproc-per-node auto train.py", commands.available_cores()),
    ],
)
def test_a_command_says_how_many_processes_it_starts(words, size):
    assert count(own_options(words.split())) == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "7"),
        ("OMPI_MCA_btl", "self,tcp"),
        ("DS_ACCELERATOR", "xpu"),
    ],
)
def test_what_a_learner_has_set_stays(name, value):
    assert job_environment(["-n", "2", "python", "x.py"], NAMES)[name] != value
    assert job_environment(["-n", "2", "python", "x.py"], NAMES | {name: value})[name] == value


def test_a_program_of_a_kernel_without_tcp_can_spawn_others_all_the_same():
    assert job_environment(["-n", "1", "python", "x.py"], NAMES | TRANSPORT)["OMPI_MCA_btl"] == "self,sm,tcp"


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("words", ["-n 2 python x.py", "--host n1 python x.py"])
def test_only_root_is_allowed_to_be_root(monkeypatch, root, words):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    environment = job_environment(words.split(), NAMES) or untouched(NAMES)
    assert {name for name in ALLOW_ROOT if name in environment} == (set(ALLOW_ROOT) if root else set())


@pytest.mark.parametrize(
    ("words", "around"),
    [
        ("--host n1,n2 -n 2 python x.py", {}),
        ("-n 2 --hostfile=hosts python x.py", {}),
        ("-H n1:2 python x.py", {}),
        ("--nnodes=1:4 --nproc-per-node 2 x.py", {}),
        ("-n 2 python x.py", {"SLURM_JOB_ID": "7"}),
        ("-n 2 python x.py", {"PMIX_RANK": "1"}),
        ("-n 2 python x.py", {"PRTE_MCA_prte_default_hostfile": "hosts"}),
    ],
)
def test_a_command_that_runs_elsewhere_is_not_touched(monkeypatch, words, around):
    given = NAMES | {"OMPI_MCA_pml": "ucx", "OMP_NUM_THREADS": "5"} | around
    of_the_kernel = {"OMPI_MCA_btl": TRANSPORT["OMPI_MCA_btl"], SEGMENTS: "/dev/shm/course-mpi-x/own"}
    started = []
    monkeypatch.setattr(os, "execve", lambda *what: started.append(what) or sys.exit(5))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "environ", given | of_the_kernel)
    monkeypatch.setattr(commands, "real_command", lambda name: [f"/real/{name}"])
    monkeypatch.setattr(job_environment, "__defaults__", (os.environ,))
    monkeypatch.setattr(untouched, "__defaults__", (os.environ,))
    with pytest.raises(SystemExit):
        commands.run("mpiexec", words.split())
    assert started == [("/real/mpiexec", ["mpiexec", *words.split()], given)]


@pytest.mark.parametrize(
    ("words", "around"),
    [
        ("--nnodes 1 --nproc-per-node 2 x.py", {}),
        ("--nnodes=1 x.py --nnodes=2", {}),
        ("-n 2 python x.py --host n1", {}),
        ("-n 2 python x.py", {"SLURM_CONF": "/etc/slurm.conf"}),
    ],
)
def test_other_commands_run_here(words, around):
    assert job_environment(words.split(), NAMES | around) is not None


# -------------------------------------------------------------------- whose mpiexec


def empty(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    return path


def test_mpiexec_is_that_of_the_library(tmp_path):
    debian = empty(tmp_path / "usr" / "bin" / "mpiexec")
    of_mpich = empty(tmp_path / "usr" / "bin" / "mpiexec.mpich")
    assert mpiexec_of(tmp_path / "usr/lib/x86_64/libmpich.so.12", "MPICH") == of_mpich
    assert mpiexec_of(tmp_path / "usr/lib/x86_64/openmpi/lib/libmpi.so.40", "Open MPI") == debian
    assert mpiexec_of(tmp_path / "opt/lib/libmpi.so.40", "Open MPI") is None


def test_the_library_that_mpi4py_loads_is_asked_for(monkeypatch, tmp_path):
    real, *_ = commands.real_command("mpirun")
    assert Path(real).parent == Path(sys.executable).parent and not commands.is_ours(Path(real))
    fake = empty(tmp_path / "lib" / "bin" / "mpiexec")
    monkeypatch.setattr(commands, "mpiexec_of", lambda library, vendor: fake)
    assert commands.real_command("mpirun") == [str(fake)]


def test_an_environment_settles_once_and_again_after_openmpi_was_installed_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "mpiexec").write_bytes(b"\x7fELF first")
    settle()
    settle()
    assert (tmp_path / KEPT_MPIEXEC).read_bytes() == b"\x7fELF first"
    assert commands.find_mpiexec() == tmp_path / KEPT_MPIEXEC and commands.has_commands(tmp_path)
    (tmp_path / "mpiexec").write_bytes(b"\x7fELF second")
    settle()
    assert (tmp_path / KEPT_MPIEXEC).read_bytes() == b"\x7fELF second"
    assert {path.name for path in tmp_path.iterdir()} >= {"mpiexec", "mpirun", KEPT_MPIEXEC}


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A shell in which our commands come first, and a fake mpiexec would without them."""
    mpiexec = tmp_path / "others" / "mpiexec"
    empty(mpiexec).write_text("#!/bin/sh\necho fake\n")
    mpiexec.chmod(0o755)
    monkeypatch.setenv("PATH", str(mpiexec.parent), prepend=os.pathsep)
    assert shutil.which("mpiexec") == str(mpiexec)
    (tmp_path / "ours").mkdir()
    commands.write_commands(tmp_path / "ours")
    monkeypatch.setenv("PATH", str(tmp_path / "ours"), prepend=os.pathsep)
    for name in [name for name in os.environ if name.startswith(("PMIX_", "OMPI_", "PRTE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(MARK, uuid.uuid4().hex)


OFFERED = """
import shutil, subprocess
from mpi_classroom import commands
commands.has_commands = lambda folder: False
for _ in range(2):
    commands.offer_commands()
print(shutil.which("mpirun"), flush=True)
subprocess.run(["mpirun", "-n", "3", "python", "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"])
"""


def test_a_kernel_elsewhere_has_commands_of_its_own_that_go_with_it(typed):
    done = subprocess.run([sys.executable, "-c", OFFERED], capture_output=True, text=True, timeout=60)
    path, *sizes = done.stdout.splitlines()
    assert (sizes, done.stderr) == (["3"] * 3, "")
    assert Path(path).parent.parent.name.startswith("course-mpi-") and not Path(path).exists()


def test_a_command_that_is_ended_or_killed_leaves_nothing(typed):
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(["mpiexec", "-n", "2", "python", "-c", SLEEPS], stdout=subprocess.PIPE) as job:
            assert job.stdout.readline()
            job.send_signal(number)
        until(lambda: not [its for _, its in marked_processes(MARK) if its[MARK] == os.environ[MARK]])
        assert job.returncode == (128 + number if number == signal.SIGTERM else -number)


def test_our_own_command_on_path_is_never_taken_for_mpiexec(tmp_path, monkeypatch):
    ours, real = tmp_path / "ours", tmp_path / "real"
    for folder in (ours, real):
        folder.mkdir()
    commands.write_commands(ours)
    (real / "mpiexec").write_bytes(b"\x7fELF")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "bare"))
    monkeypatch.setenv("PATH", f"{ours}:{real}")
    assert commands.find_mpiexec() == real / "mpiexec"
    monkeypatch.setenv("PATH", str(ours))
    with pytest.raises(FileNotFoundError, match="load your cluster's MPI"):
        commands.find_mpiexec()
