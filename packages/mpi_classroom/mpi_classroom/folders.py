"""Where jobs keep their files: folders of the process that starts them, gone with it.

Open MPI names what it writes by numbers that come again, and killed jobs leave theirs behind.

- The memory that ranks share: a file for each straight in /dev/shm, named after 16 bits of the job's number.
  Two jobs with the same 16 bits write into each other's memory: a crash inside MPI, once in some hundred jobs
  on a machine with some hundred such files.
- mpiexec's own: a folder ompi.<its process number> in the temporary folder. Where a killed mpiexec with the
  same number left one, as in a container that starts again, it says that "the PMIx server's listener thread
  failed to start" and nothing else.
- A rank's own: a folder in ompi.<host>.<user> in the temporary folder, made by each process that starts MPI
  without an mpiexec, or whose mpiexec dies meanwhile. Open MPI does not remove all of it, even at its end.

In folders of the process that starts the jobs none of this can happen. Where /dev/shm has too little room for
a job, as the 64 MB of `docker run`, the memory is in the temporary folder: files that the system keeps in
memory as long as it can, and writes to the disk besides.

A process that is killed can neither end its jobs nor remove its folders. A watchdog does: a shell that reads
from a pipe of which only that process has the other end. When the pipe closes and the folder is still there,
it starts `mpi_classroom.processes`. Where the watchdog is killed too, the next process that starts a job or a
cluster removes the folders: it knows them by their locks. Each folder straight in /tmp or /dev/shm is locked
by the process that owns it, and the system opens the lock when that process ends, however it ends.

Any user can make a file with one of our names in /tmp or /dev/shm. So a folder counts as ours only if its
name has our prefix, this user owns it, others have no access, and it is a folder itself: no link, no pipe.
"""

import atexit
import fcntl
import functools
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_PER_RANK = 20 * 2**20  # Open MPI maps one segment of 16 MiB per rank
PREFIX = "course-mpi-"
CLUSTER_PREFIX, EXERCISE_PREFIX = "course-cluster-", "course-exercise-"
PREFIXES = (PREFIX, CLUSTER_PREFIX, EXERCISE_PREFIX)
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
WINDOWS = ("OMPI_MCA_osc_sm_backing_directory", "OMPI_MCA_osc_rdma_backing_directory")
MPIEXEC = "PRTE_MCA_prte_local_tmpdir_base"
TEMPORARY = "TMPDIR"  # where MPI itself makes files, and Python's tempfile
JOB = "MPI_CLASSROOM_JOB"  # marks all processes of a job; mpiexec does not hand its own variables on
MARKS = "MPI_CLASSROOM_"
WATCHDOG = 'trap "" TERM; read nothing; test -d "$1" && exec "$0" -m mpi_classroom.processes "$1"'

_jobs = itertools.count()


def folder_environment(size: int = 0) -> dict[str, str]:
    """The variables that say where a job of `size` ranks keeps its files: in our folder, anew at each call.

    Without a name whose place cannot be written to: Open MPI then chooses, or says what is wrong. Where a job
    runs on several hosts, somebody has to make the folders there.
    """
    job = f"{os.getpid()}.{next(_jobs)}"  # a fork of this process counts on from the same number
    environment = memory_environment(job, size)
    with suppress(FileNotFoundError):  # there is no temporary folder that can be written to
        if files := scratch_folder():
            environment[MPIEXEC] = environment[JOB] = os.path.join(files, job)
            make_job_folders(environment)
    return environment


@functools.cache
def _watch(folder: str) -> None:
    """Start the watchdog of this process, which has `folder` and whose jobs are marked with it."""
    command = ["/bin/sh", "-c", WATCHDOG, sys.executable, folder]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with suppress(OSError):
        watchdog = subprocess.Popen(
            command, env=unmarked(), stdin=pipe, stdout=nothing, stderr=nothing, start_new_session=True
        )
        atexit.register(_dismiss, watchdog, os.getpid())


def unmarked() -> dict[str, str]:
    """The environment of a watchdog: this process's without our marks.

    Whoever ends all that this process started, and kills what does not end in time, must not meet it.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(MARKS)}


def scratch_folder() -> str | None:
    """Where this process may put its own files: they go with it, also when it is killed.

    None where the temporary folder cannot be written to, which is tempfile's default too.
    """
    folder = own_folder(Path(tempfile.gettempdir()))
    if folder is not None:
        _watch(folder)
    return folder


def _dismiss(watchdog: "subprocess.Popen[bytes]", owner: int) -> None:
    """End the watchdog at the end of the process that started it, which clears up by itself."""
    if os.getpid() == owner:
        watchdog.kill()
        watchdog.wait()


def make_job_folders(environment: Mapping[str, str]) -> None:
    """Make the folders that `folder_environment` named, unless an earlier job with it has left them."""
    for folder in _job_folders(environment):
        with suppress(OSError):  # Open MPI says what is wrong
            folder.mkdir(mode=0o700, exist_ok=True)


def remove_job_folders(environment: Mapping[str, str]) -> None:
    """Remove the folders that `folder_environment` named, when the job has ended: killed ones leave files."""
    for folder in _job_folders(environment):
        shutil.rmtree(folder, ignore_errors=True)


def _job_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    for name in (SEGMENTS, MPIEXEC):
        folder = Path(environment.get(name, "nowhere"))
        if folder.name.startswith(f"{os.getpid()}.") and is_ours(folder.parent):
            yield folder


def memory_environment(job: str, size: int = 0) -> dict[str, str]:
    """The variables that say where Open MPI keeps shared memory and windows: in this job's folder.

    That is in /dev/shm, or in the temporary folder where /dev/shm has too little room for `size` ranks.
    """
    files = None
    with suppress(FileNotFoundError):
        files = scratch_folder()  # with the watchdog, which removes the memory of a killed process as well
    if not (memory := files if is_short(SHARED_MEMORY, size) else own_folder(SHARED_MEMORY)):
        return {}
    folder = os.path.join(memory, job)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:  # somebody has removed ours
        return {}
    return dict.fromkeys((SEGMENTS, *WINDOWS), folder)


def is_short(place: Path, size: int) -> bool:
    """Whether there is such a folder, and less room in it than the memory that `size` ranks share."""
    with suppress(OSError):
        return shutil.disk_usage(place).free < size * SHARED_MEMORY_PER_RANK
    return False


@functools.cache
def own_folder(place: Path) -> str | None:
    """This process's folder in `place`, made at the first call and removed when the process ends.

    A process that is killed leaves its folder; the next one to come removes it, for nobody holds its lock.
    None where it cannot be made.
    """
    if not os.access(place, os.W_OK):
        return None
    remove_leftovers(place)
    try:
        folder, held = make_folder(PREFIX, place)  # until this process ends
        if held is None:
            folder.rmdir()
            return None
    except OSError:
        return None
    atexit.register(remove, folder, os.getpid())
    return str(folder)


def make_folder(prefix: str, place: Path) -> tuple[Path, int | None]:
    """Make a private folder in `place` and hold it, until the file descriptor that is returned closes.

    The descriptor is None where the file system has no locks: then nobody takes the folder for a leftover.
    Raises OSError when no folder can be made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))  # mode 0700
        try:
            return folder, lock(folder)
        except BlockingIOError:  # a search for leftovers came first, and removes it
            continue
        except OSError:
            if os.path.lexists(folder):  # else the search has removed it
                return folder, None


def remove_leftovers(*places: Path) -> None:
    """Remove the folders of killed processes of this user in `places`, default those that we use."""
    for place in places or (SHARED_MEMORY, Path(tempfile.gettempdir())):
        for left in (path for prefix in PREFIXES for path in place.glob(f"{prefix}*")):
            with suppress(OSError):  # not ours, or in use
                held = lock(left)
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)


def is_ours(folder: Path) -> bool:
    """Whether `folder` has one of our names, is this user's alone, and is a folder and no link to one."""
    try:
        found = folder.lstat()
    except (OSError, ValueError):
        return False
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    return folder.name.startswith(PREFIXES) and private and found.st_uid == os.geteuid()


def remove_ours(folder: Path) -> None:
    """Remove `folder` if it is ours; anything else stays, whoever names it."""
    if is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)


def lock(folder: Path) -> int:
    """Hold our folder until the file descriptor that is returned closes.

    Raises OSError when another process holds it or has removed it meanwhile, or when it is not ours; what
    others put there never blocks.
    """
    if not is_ours(folder):
        raise PermissionError(f"{folder} is not a private folder of ours")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
            raise FileNotFoundError(f"{folder} was removed")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_held(folder: Path) -> bool:
    """Whether another process holds our folder."""
    try:
        os.close(lock(folder))
    except BlockingIOError:
        return True
    except OSError:  # not ours, or gone
        pass
    return False


def remove(folder: Path, owner: int) -> None:
    """Remove the folder, unless this is a fork of the process that owns it."""
    if os.getpid() == owner:
        remove_ours(folder)
