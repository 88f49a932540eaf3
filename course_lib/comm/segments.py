"""Where the ranks of our jobs keep the memory they share: a folder of this process, gone with it.

Open MPI puts a file for every rank straight into /dev/shm and names it after 16 bits of the job's number.
Ranks that are killed leave theirs behind, and two jobs with the same 16 bits write into each other's
memory: a crash inside MPI, once in some hundred jobs on a machine with some hundred such files. In a folder
for each process that starts jobs neither can happen.
"""

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "course-mpi-"
TOLD = "OMPI_MCA_btl_sm_backing_directory"


def segment_environment() -> dict[str, str]:
    """What tells Open MPI to use this process's folder; empty where there is no /dev/shm to write to."""
    folder = segment_folder()
    return {TOLD: folder} if folder else {}


@functools.cache
def segment_folder() -> str | None:
    """This process's folder, made at the first call and removed when the process ends.

    A process that is killed leaves its folder; the next one to come removes it, for nobody holds its lock.
    """
    if not os.access(SHARED_MEMORY, os.W_OK):
        return None
    for left in SHARED_MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):  # of another user, or in use
            held = lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHARED_MEMORY))
        lock(folder)
    except OSError:
        return None
    atexit.register(remove, folder, os.getpid())
    return str(folder) if folder.is_dir() else None  # another process may have taken it for left


def place_for_shared_files() -> str:
    """For a rank: where a file is memory that all ranks of this machine see, the job's folder at best."""
    places = [os.environ.get(TOLD, ""), str(SHARED_MEMORY), tempfile.gettempdir()]
    return next(place for place in places if os.path.isdir(place))


def lock(folder: Path) -> int:
    """Hold the folder until the file descriptor that is returned closes; OSError when another holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove(folder: Path, owner: int) -> None:
    """Remove the folder, unless this is a fork of the process that owns it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
