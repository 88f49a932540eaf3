"""What ranks share lies in a folder of the process that started them, and goes with it, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.comm import segments
from course_lib.comm.launch import run_ranks
from course_lib.comm.segments import place_for_shared_files, segment_environment, segment_folder

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
from course_lib.comm.segments import segment_folder
print(segment_folder(), flush=True)
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
    assert len(shared) == 2 and {path.parent for path in shared} == {Path(segment_folder())}
    assert not [path for path in shared if path.exists()]


def test_two_processes_have_two_folders_and_the_folder_goes_with_its_process():
    (first, code), (second, _) = start("ended"), start("ended")
    assert code == 0 and first.parent == Path("/dev/shm") and first != second
    assert not first.exists() and not second.exists()
    assert Path(segment_folder()).is_dir(), "another process must not take the folder of one that lives"


def test_the_folder_of_a_killed_process_is_removed_by_the_next():
    left, code = start("killed")
    assert code == -signal.SIGKILL and left.is_dir()
    start("ended")
    assert not left.exists()


@pytest.mark.parametrize("place", ["missing", "read-only"])
def test_without_a_place_in_memory_mpi_chooses_its_own(place, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SHARED_MEMORY", tmp_path / "none" if place == "missing" else tmp_path)
    if place == "read-only":
        monkeypatch.setattr(os, "access", lambda *a: False)
    segment_folder.cache_clear()
    try:
        assert segment_environment() == {}
    finally:
        segment_folder.cache_clear()


def test_a_rank_puts_its_files_beside_the_segments_or_where_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setenv(segments.TOLD, str(tmp_path))
    assert place_for_shared_files() == str(tmp_path)
    monkeypatch.setenv(segments.TOLD, str(tmp_path / "gone"))
    assert place_for_shared_files() == "/dev/shm"
