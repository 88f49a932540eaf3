"""What jobs write lies in folders of the process that started them, and goes with it, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mpi_classroom import folders
from mpi_classroom.folders import (
    MPIEXEC,
    SEGMENTS,
    SHARED_MEMORY,
    folder_environment,
    own_folder,
)
from mpi_classroom.launch import mpiexec_command, rank_environment, run_ranks

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/dev/shm"), reason="ranks share files of another kind here"
)

MAPPED = (
    "import pathlib, re; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
    "maps = pathlib.Path('/proc/self/maps').read_text();"
    "print(*re.findall(r'/dev/shm/[^ \\n]+', maps), sep='\\n', flush=True)"
)
STARTS_A_JOB = """
import os, signal, sys
from mpi_classroom.folders import SHARED_MEMORY, own_folder
print(own_folder(SHARED_MEMORY), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(how: str) -> tuple[Path, int]:
    done = subprocess.run(
        [sys.executable, "-c", STARTS_A_JOB, how], capture_output=True, text=True, timeout=60
    )
    return Path(done.stdout.strip()), done.returncode


def test_ranks_share_memory_in_the_folder_of_this_process_only():
    done = run_ranks(2, ["-c", MAPPED], timeout=60)
    shared = {Path(line) for line in done.stdout.split()}
    assert len(shared) == 2 and {path.parent for path in shared} == {Path(own_folder(SHARED_MEMORY))}
    assert not [path for path in shared if path.exists()]


def test_two_processes_have_two_folders_and_the_folder_goes_with_its_process():
    (first, code), (second, _) = start("ended"), start("ended")
    assert code == 0 and first.parent == Path("/dev/shm") and first != second
    assert not first.exists() and not second.exists()
    assert Path(own_folder(SHARED_MEMORY)).is_dir(), (
        "another process must not take the folder of one that lives"
    )


def test_the_folder_of_a_killed_process_is_removed_by_the_next():
    left, code = start("killed")
    assert code == -signal.SIGKILL and left.is_dir()
    start("ended")
    assert not left.exists()


@pytest.mark.parametrize("place", ["missing", "read-only"])
def test_without_a_place_in_memory_mpi_chooses_its_own(place, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "none" if place == "missing" else tmp_path)
    if place == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert folder_environment().keys() == {MPIEXEC}


def test_without_a_temporary_folder_mpiexec_says_what_is_wrong(monkeypatch):
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert folder_environment().keys() == {SEGMENTS}


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
