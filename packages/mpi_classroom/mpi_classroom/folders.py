"""Where jobs keep their files: folders of the process that starts them, gone with it.

Open MPI names what it writes by numbers that come again, and killed jobs leave theirs behind.

- The memory that ranks share: a file for each straight in /dev/shm, named after 16 bits of the job's number.
  Two jobs with the same 16 bits write into each other's memory: a crash inside MPI, once in some hundred jobs
  on a machine with some hundred such files.
- mpiexec's own: a folder ompi.<its process number> in the temporary folder. Where a killed mpiexec with the
  same number left one, as in a container that starts again, it says that "the PMIx server's listener thread
  failed to start" and nothing else.

In folders of the process that starts the jobs neither can happen.
"""

import atexit
import fcntl
import functools
import itertools
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "course-mpi-"
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
MPIEXEC = "PRTE_MCA_prte_local_tmpdir_base"

_jobs = itertools.count()


def folder_environment() -> dict[str, str]:
    """What tells Open MPI to use this process's folders, the one of mpiexec anew at each call.

    Without a name whose place cannot be written to: Open MPI then chooses, or says what is wrong.
    """
    environment = {}
    if memory := own_folder(SHARED_MEMORY):
        environment[SEGMENTS] = memory
    with suppress(FileNotFoundError):  # there is no temporary folder that can be written to
        if files := own_folder(Path(tempfile.gettempdir())):
            environment[MPIEXEC] = os.path.join(files, str(next(_jobs)))
    return environment


@functools.cache
def own_folder(place: Path) -> str | None:
    """This process's folder in `place`, made at the first call and removed when the process ends.

    A process that is killed leaves its folder; the next one to come removes it, for nobody holds its lock.
    None where it cannot be made.
    """
    if not os.access(place, os.W_OK):
        return None
    for left in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # of another user, or in use
            held = lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        lock(folder)
    except OSError:
        return None
    atexit.register(remove, folder, os.getpid())
    return str(folder) if folder.is_dir() else None  # another process may have taken it for left


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
