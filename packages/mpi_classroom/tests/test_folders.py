"""What jobs write lies in folders of the process that started them, and goes with it, however it ends."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mpi_classroom import folders, leftovers, welcome
from mpi_classroom.folders import (
    CLUSTER_PREFIX,
    JOB,
    MPIEXEC,
    PREFIX,
    PREFIXES,
    SEGMENTS,
    SHARED_MEMORY,
    WINDOWS,
    folder_environment,
    is_held,
    is_ours,
    make_folder,
    own_folder,
    remove_job_folders,
    remove_leftovers,
    remove_ours,
)
from mpi_classroom.launch import mpiexec_command, rank_environment, run_ranks
from packages.mpi_classroom.tests.waiting import until

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/dev/shm"), reason="ranks share files of another kind here"
)

MAPPED = (
    "import pathlib, re; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
    "maps = pathlib.Path('/proc/self/maps').read_text(); import tempfile; tempfile.mkdtemp();"
    "print(*re.findall(r'/dev/shm/[^ \\n]+', maps), tempfile.gettempdir(), sep='\\n', flush=True)"
)
KILLED_WITH_A_FOLDER = """
import os, signal
from mpi_classroom.folders import SHARED_MEMORY, own_folder
print(own_folder(SHARED_MEMORY), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_share_memory_and_make_temporary_files_in_the_folders_of_this_process_only():
    done = run_ranks(2, ["-c", MAPPED], timeout=60)
    paths = {Path(line) for line in done.stdout.split()}
    shared = {path for path in paths if path.is_relative_to("/dev/shm")}
    temporary = paths - shared
    assert len(shared) == 2 and {path.parent.parent for path in shared} == {Path(own_folder(SHARED_MEMORY))}
    assert {path.parent for path in temporary} == {Path(own_folder(Path(tempfile.gettempdir())))}
    assert not [path for path in shared if path.parent.exists()] and not any(map(Path.exists, temporary))


def test_the_folder_of_a_killed_process_is_removed_by_the_next():
    command = [sys.executable, "-c", KILLED_WITH_A_FOLDER]
    jobs = [subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(2)]
    assert [job.returncode for job in jobs] == [-signal.SIGKILL] * 2
    left, second = (Path(job.stdout.strip()) for job in jobs)
    assert left.parent == Path("/dev/shm") and left != second and not left.exists()
    assert Path(own_folder(SHARED_MEMORY)).is_dir(), "nobody takes the folder of one that lives"


STARTS_MPI = """
import os, signal, sys, tempfile
from mpi_classroom.launch import keep_mpi_private
keep_mpi_private()
print(os.environ["OMPI_MCA_btl_sm_backing_directory"], tempfile.gettempdir(), flush=True)
if "with MPI" in sys.argv:
    from mpi4py import MPI
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("what", ["with MPI", "without"])
@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_kernel_leaves_nothing_of_mpi_behind_though_it_runs_no_cell(what, how, tmp_path):
    """A process that starts MPI without mpiexec: its watchdog removes what it cannot."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS_MPI, what, how],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0), done.stderr
    memory, temporary = done.stdout.split()
    assert temporary == str(tmp_path), "the learner's files go where they went"
    folder = Path(memory).parent
    assert folder.name.startswith(PREFIX)
    until(lambda: not folder.exists() and list(tmp_path.iterdir()) == [], 60)


def test_what_a_rank_makes_that_has_lost_its_mpiexec_goes_with_the_job(tmp_path, monkeypatch):
    """Such a rank starts MPI as a process does that mpiexec did not start."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "scratch_folder", lambda: str(mine))
    (mine := tmp_path / f"{PREFIX}x").mkdir(mode=0o700)
    environment = rank_environment(1)
    lost = "import os; from mpi4py import MPI; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", lost], env=environment, timeout=60, check=False)
    assert list(tmp_path.iterdir()) == [mine]
    assert list(Path(environment[MPIEXEC]).glob("ompi.*")), "MPI made its folder"
    remove_job_folders(environment)
    assert list(mine.iterdir()) == []


@pytest.mark.parametrize("place", ["missing", "read-only"])
def test_without_a_place_in_memory_mpi_chooses_its_own(place, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "none" if place == "missing" else tmp_path)
    if place == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert folder_environment().keys() == {MPIEXEC, JOB}


def test_without_a_temporary_folder_mpiexec_says_what_is_wrong(monkeypatch):
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert folder_environment().keys() == {SEGMENTS, *WINDOWS}


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "Open MPI's own"])
def test_what_a_killed_mpiexec_left_does_not_stop_the_next_one_with_its_number(ours, tmp_path):
    """As in a container that starts again: a process becomes an mpiexec whose number has a folder."""
    (command, *arguments) = mpiexec_command(2, ["hostname"])
    becomes_mpiexec = (
        "import os, socket, sys; left = f'{sys.argv[1]}/ompi.{os.getpid()}'; os.mkdir(left, 0o700);"
        "open(f'{left}/pmix.{socket.gethostname().split(chr(46))[0]}.tool', 'w').close();"
        f"os.execv({command!r}, ['mpiexec', *{arguments!r}])"
    )
    environment = rank_environment(2) | {"TMPDIR": str(tmp_path)}
    if not ours:
        del environment[MPIEXEC]
    done = subprocess.run(
        [sys.executable, "-c", becomes_mpiexec, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (0 if ours else 213), done.stderr
    assert ("listener thread failed to start" in done.stderr) is not ours


# -------------------------------------------------------------------- of clusters whose kernel is gone

MAKES_A_CLUSTERS_FOLDER = """
import sys
from mpi_classroom.launcher import private_folder
print(private_folder()[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A process with a folder for a cluster in `tmp_path`, which is the temporary folder; and that folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipe, environment = subprocess.PIPE, os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", MAKES_A_CLUSTERS_FOLDER]
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.parametrize(
    "next_one", [lambda: welcome.other_clusters(stop=False), leftovers.clean], ids=["start_cluster", "clean"]
)
def test_the_next_start_or_clean_removes_the_folder_of_a_killed_kernels_cluster(next_one, kernel):
    """No process of the cluster is left, nor a watchdog: as when a container stops."""
    process, folder = kernel
    next_one()
    assert folder.is_dir(), "the kernel lives"
    process.kill()
    process.wait()
    next_one()
    assert not folder.exists()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_folder_of_a_process_that_is_gone_is_removed_and_a_held_one_is_not(prefix, tmp_path):
    left, held = make_folder(prefix, tmp_path)
    (left / "ranks.log").touch()
    remove_leftovers(tmp_path)
    assert (left / "ranks.log").exists()
    os.close(held)
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before it is locked", "while it is locked", "and holds it"])
def test_a_folder_that_a_search_for_leftovers_finds_as_it_is_made_is_made_anew(when, tmp_path, monkeypatch):
    lock, flock = folders.lock, folders.fcntl.flock

    def locking(folder):
        monkeypatch.setattr(folders, "lock", lock)
        if when == "before it is locked":
            remove_leftovers(tmp_path)
            return lock(folder)
        held = lock(folder)
        try:
            return lock(folder)
        finally:
            remove_ours(folder)
            os.close(held)

    def flocking(descriptor, how):
        monkeypatch.setattr(folders.fcntl, "flock", flock)
        remove_leftovers(tmp_path)
        flock(descriptor, how)

    if when == "while it is locked":
        monkeypatch.setattr(folders.fcntl, "flock", flocking)
    else:
        monkeypatch.setattr(folders, "lock", locking)
    folder, held = make_folder(CLUSTER_PREFIX, tmp_path)
    assert list(tmp_path.iterdir()) == [folder] and is_held(folder)
    os.close(held)


def test_without_locks_a_folder_is_nobodys_leftover(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", no_locks)
    folder, held = make_folder(CLUSTER_PREFIX, tmp_path)
    remove_leftovers(tmp_path)
    assert folder.is_dir() and held is None
    assert own_folder.__wrapped__(tmp_path) is None and list(tmp_path.iterdir()) == [folder]


# -------------------------------------------------------------------- only ours


def planted(place: Path, kind: str, prefix: str) -> Path:
    """Something with one of our names that is not a folder of ours."""
    path = place / f"{prefix}planted"
    if kind == "pipe":
        os.mkfifo(path, 0o700)
    elif kind == "link":
        aim = place / "precious"
        aim.mkdir(mode=0o700)
        (aim / "work").touch()
        path.symlink_to(aim)
    elif kind == "file":
        path.touch(mode=0o600)
    else:
        path.mkdir(mode=0o777)
        path.chmod(0o777 if kind == "open to others" else 0o700)
        (path / "work").touch()
    return path


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", ["pipe", "link", "file", "open to others", "another user's"])
@pytest.mark.timeout(20)
def test_what_others_put_in_our_place_neither_blocks_nor_is_removed(kind, prefix, tmp_path, monkeypatch):
    path, user = planted(tmp_path, kind, prefix), os.geteuid()
    if kind == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    own_folder.__wrapped__(tmp_path)
    remove_ours(path)
    assert path.lstat() and (kind != "link" or (path / "work").exists())
    assert kind not in ("open to others", "another user's") or (path / "work").exists()


def test_the_folder_of_this_process_is_open_to_nobody_else(tmp_path):
    folder = Path(own_folder.__wrapped__(tmp_path))
    assert stat.S_IMODE(folder.lstat().st_mode) == 0o700 and is_ours(folder)


@pytest.mark.parametrize("name", ["notes", "course-mpi", "course-cluster-x/.."])
def test_a_folder_with_another_name_is_not_removed(name, tmp_path):
    (tmp_path / "course-cluster-x").mkdir(mode=0o700)
    folder = tmp_path / name
    folder.mkdir(mode=0o700, exist_ok=True)
    remove_ours(folder)
    assert folder.is_dir()


SHARES = """
import json, os, pathlib, re, signal
from mpi4py import MPI
windows = [make(1000, 1, comm=MPI.COMM_WORLD) for make in (MPI.Win.Allocate_shared, MPI.Win.Allocate)]
maps = pathlib.Path("/proc/self/maps").read_text()
print(*re.findall(r"/dev/shm/[^ \\n]+", maps), sep="\\n", flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_WORLD.Barrier()
"""
KILLS_A_RANK = f"""
from mpi_classroom.launch import run_ranks
print(run_ranks(2, ["-c", {SHARES!r}], timeout=60).stdout)
"""


def test_a_killed_rank_leaves_neither_segments_nor_windows():
    done = subprocess.run([sys.executable, "-c", KILLS_A_RANK], capture_output=True, text=True, timeout=90)
    names = {Path(line) for line in done.stdout.split() if line.startswith("/dev/shm")}
    assert any("sm_segment" in path.name for path in names) and any("osc_" in path.name for path in names)
    assert {path.parents[1].name.startswith(PREFIX) for path in names} == {True}, (
        "all lie in a folder of ours"
    )
    assert not [path for path in names if path.exists() or path.parent.exists()]
