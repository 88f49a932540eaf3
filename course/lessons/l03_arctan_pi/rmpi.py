"""MPI programs in R: run one with the MPI that R was given.

Debian's Rmpi is built with Debian's Open MPI, which is another one than Python's: another version, another
mpirun, other variables in the environment. Ranks of the two cannot talk to each other, and an mpirun of one
starts n lonely ranks of the other. So an R program gets the system's own mpirun and a clean environment.
Where R or Rmpi is missing, that is said in one sentence.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from course.lessons.shared.programs import output_of
from mpi_classroom.folders import scratch_folder
from mpi_classroom.launch import threads_per_rank

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
INSTALL = "on Debian or Ubuntu: sudo apt install r-cran-rmpi libopenmpi-dev"


def why_no_r() -> str | None:
    """Why R programs with MPI cannot run here, with the remedy; None when they can."""
    for program, name in (("Rscript", "R"), ("mpirun", "MPI of the system, which R needs")):
        if shutil.which(program, path=SYSTEM_PATH) is None:
            return f"found no {name} (no {program} in {SYSTEM_PATH}); {INSTALL}"
    if not has_rmpi():
        return f"R is here, but its package Rmpi is not; {INSTALL}"
    return None


def has_rmpi() -> bool:
    """Whether R finds its package Rmpi; the package is not loaded, which would start MPI."""
    look = [_found("Rscript"), "--vanilla", "-e", "cat(system.file(package = 'Rmpi'))"]
    done = subprocess.run(look, env=clean_environment(1), capture_output=True, text=True, timeout=30)
    return done.returncode == 0 and bool(done.stdout.strip())


def run_r(size: int, script: Path, arguments: Sequence[str] = (), *, timeout: float = 60) -> str:
    """Run an R program on `size` ranks and return what it printed, without the end of its last line.

    Raises RuntimeError with the reason when R is missing, or with the ranks' own words when they fail;
    subprocess.TimeoutExpired when they are not done after `timeout` seconds.
    """
    reason = why_no_r()
    if reason is not None:
        raise RuntimeError(reason)
    command = [_found("mpirun"), "--oversubscribe", "--bind-to", "none", "-n", str(size)]
    command += [_found("Rscript"), "--vanilla", str(script), *arguments]
    # R leaves its temporary folder behind when it is killed: it goes with this one.
    with tempfile.TemporaryDirectory(dir=scratch_folder(), ignore_cleanup_errors=True) as folder:
        return output_of(command, clean_environment(size) | {"TMPDIR": folder}, timeout)


def clean_environment(size: int) -> dict[str, str]:
    """An environment that says nothing of Python's MPI, and lets root start ranks where root must."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    threads = str(threads_per_rank(size))
    kept |= {"PATH": SYSTEM_PATH, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    # Ranks share memory; with TCP they would listen on all addresses of the machine.
    kept |= {"OMPI_MCA_btl": "^tcp", "OMPI_MCA_oob_tcp_if_include": "lo"}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept


def _found(program: str) -> str:
    path = shutil.which(program, path=SYSTEM_PATH)
    if path is None:
        raise FileNotFoundError(f"there is no {program} in {SYSTEM_PATH}; {INSTALL}")
    return path
