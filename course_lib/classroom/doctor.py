"""`course doctor`: is this machine ready? Every check is a small function that says what it found and,
when that is not good enough, what to do.

    ok    ranks        4 ranks summed 1 + 2 + 3 + 4 = 10 in one world
    FIX   /dev/shm     64 MiB free, 4 ranks need 80
                       → in Docker, start the container with --shm-size=1g
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.classroom import leftovers, processes
from course_lib.classroom.launcher import SHARED_MEMORY_PER_RANK
from course_lib.comm.launch import available_cores, find_mpiexec, run_ranks, threads_per_rank
from course_lib.paths import ROOT

RANKS = 4
MIB, GIB = 2**20, 2**30
MEMORY_NEEDED = 2 * GIB  # four ranks with torch and a small model, and the notebook
SHARED_MEMORY_NEEDED = RANKS * SHARED_MEMORY_PER_RANK
DISK_NEEDED = 1 * GIB
SUM_OVER_RANKS = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(comm.size, comm.allreduce(comm.rank + 1), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: `detail` is what was found, `remedy` what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3]), prefix: str = sys.prefix) -> Check:
    """Python 3.11 or newer."""
    words = ".".join(map(str, version))
    return Check(
        "Python", version >= (3, 11), f"{words} in {prefix}", "install Python 3.11 or newer, then: make setup"
    )


def check_pins(
    constraints: Path = ROOT / "constraints.txt", installed: Mapping[str, str] | None = None
) -> Check:
    """What is installed has the versions in constraints.txt; a build such as 2.13.0+cpu counts as 2.13.0."""
    have = _installed() if installed is None else installed
    pins = dict(line.split("==") for line in constraints.read_text().split() if "==" in line)
    other = [
        f"{name} {have[name]} instead of {pin}"
        for name, pin in pins.items()
        if name in have and have[name].partition("+")[0] != pin
    ]
    missing = [f"{name} is missing" for name in _required() if name not in have]
    wrong = missing + other
    detail = _some(wrong) or f"{sum(name in have for name in pins)} packages, all as in {constraints.name}"
    return Check(
        "packages", not wrong, detail, "make setup; if that does not help: rm -rf .venv && make setup"
    )


def check_kernel() -> Check:
    """JupyterLab's kernel `python3` is this Python, not one of the same name that was installed elsewhere."""
    if importlib.util.find_spec("ipykernel") is None:
        return Check("kernel", False, "ipykernel is not installed", "make setup")
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return Check("kernel", False, "Jupyter knows no kernel python3", "rm -rf .venv && make setup")
    # A bare name means: the Python that runs Jupyter.
    ours = "/" not in command or Path(command).parent.resolve() == Path(sys.executable).parent.resolve()
    remedy = "start JupyterLab with: make lab (it prefers this course's kernel)"
    return Check("kernel", ours, f"python3 is {command if '/' in command else sys.executable}", remedy)


def check_mpiexec() -> Check:
    """This Python has an mpiexec of its own, and it runs."""
    remedy = "make setup; if that does not help: rm -rf .venv && make setup"
    try:
        path = find_mpiexec()
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("mpiexec", False, str(error), remedy)
    version = next(iter(answer.stdout.splitlines()), "") or next(
        iter(answer.stderr.splitlines()), "no answer"
    )
    return Check("mpiexec", answer.returncode == 0, f"{version}, {path}", remedy)


def check_ranks(program: str = SUM_OVER_RANKS, size: int = RANKS, seconds: float = 60.0) -> Check:
    """A real job: every rank finds `size` ranks in its world, and an all-reduce gives the right sum."""
    remedy = "look at the checks above; then: course clean, and course doctor again"
    try:
        job = run_ranks(size, ["-c", program], timeout=seconds)
    except subprocess.TimeoutExpired:
        return Check(
            "ranks", False, f"{size} ranks did not sum {size} numbers within {seconds:.0f} s", remedy
        )
    except OSError as error:
        return Check("ranks", False, str(error), remedy)
    if job.returncode != 0:
        last = _last_line(job.stderr) or "it said nothing"
        return Check("ranks", False, f"the job ended with exit code {job.returncode}: {last}", remedy)
    answers = [line for line in job.stdout.splitlines() if line]
    expected = f"{size} {sum(range(1, size + 1))}"  # ranks in the world, sum over them
    if answers == [expected] * size:
        terms = " + ".join(str(rank + 1) for rank in range(size))
        return Check("ranks", True, f"{size} ranks in one world summed {terms} = {expected.split()[1]}")
    heard = _some(sorted(set(answers))) or "nothing"
    return Check(
        "ranks", False, f"{size} ranks should each say {expected!r}; {len(answers)} said {heard}", remedy
    )


def check_cores() -> Check:
    """How many cores the ranks share; fewer cores than ranks is no fault."""
    cores, threads = available_cores(), threads_per_rank(RANKS)
    share = f"{RANKS} ranks take turns on them" if cores < RANKS else "one or more for each of 4 ranks"
    return Check("cores", True, f"{cores} ({share}), {threads} thread{'s' * (threads > 1)} a rank")


def check_memory(available: int | None = None) -> Check:
    """Enough free memory for four ranks that train, within the limit of a container where there is one."""
    free = available_memory() if available is None else available
    detail = f"{free / GIB:.1f} GiB free, a lesson needs {MEMORY_NEEDED / GIB:.0f}"
    return Check(
        "memory", free >= MEMORY_NEEDED, detail, "close other programs and notebooks, then: course clean"
    )


def check_shared_memory(folder: Path = Path("/dev/shm"), free: int | None = None) -> Check:
    """Room in /dev/shm, through which the ranks of one machine talk."""
    if not folder.is_dir():
        return Check("shared memory", True, f"there is no {folder} on this system")
    free = shutil.disk_usage(folder).free if free is None else free
    detail = f"{free / MIB:.0f} MiB free in {folder}, {RANKS} ranks need {SHARED_MEMORY_NEEDED / MIB:.0f}"
    remedy = f"in Docker, start the container with --shm-size=1g; elsewhere, remove old files from {folder}"
    return Check("shared memory", free >= SHARED_MEMORY_NEEDED, detail, remedy)


def check_disk(folder: Path = ROOT, free: int | None = None) -> Check:
    """Room for data sets and results."""
    free = shutil.disk_usage(folder).free if free is None else free
    detail = f"{free / GIB:.1f} GiB free in {folder}, the course needs {DISK_NEEDED / GIB:.0f}"
    writable = os.access(folder, os.W_OK)
    remedy = (
        "free some disk space" if writable else f"{folder} is read-only; copy the course to a folder of yours"
    )
    return Check("disk", free >= DISK_NEEDED and writable, detail, remedy)


def check_leftovers() -> Check:
    """No cluster and no run that nobody waits for any more."""
    clusters = processes.running_clusters()
    left = [cluster.pids for cluster in clusters if not cluster.owner_alive]
    left += [run.pids for run in leftovers.leftover_runs()]
    if left:
        count = len({pid for pids in left for pid in pids})
        return Check("leftovers", False, f"{count} processes of killed notebooks or runs", "course clean")
    living = len(clusters)
    return Check("leftovers", True, f"none; {living} cluster{'' if living == 1 else 's'} in use")


def check_data() -> Check:
    """MNIST is here and whole, or will be replaced; nothing is downloaded or drawn for this."""
    from course_lib.training import datasets

    remedy = "do as it says; or remove the damaged files, then: course fetch"
    try:
        download = datasets.read_registry("mnist")
        folder = datasets.find(download)
        if folder is not None:
            return Check("data sets", True, datasets.read(download, folder).source)
    except datasets.DataError as error:
        return Check("data sets", False, str(error), remedy)
    detail = "MNIST is not here; lessons download it, or draw digits in its stead (course fetch gets it now)"
    return Check("data sets", True, detail)


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_pins,
    check_kernel,
    check_mpiexec,
    check_ranks,
    check_cores,
    check_memory,
    check_shared_memory,
    check_disk,
    check_leftovers,
    check_data,
)


def report(checks: list[Check]) -> dict[str, object]:
    """What a bug report needs, ready for JSON."""
    return {
        "course": importlib.metadata.version("course-lib"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "ok": all(check.ok for check in checks),
        "checks": [
            {"name": check.name, "ok": check.ok, "detail": check.detail}
            | ({} if check.ok else {"remedy": check.remedy})
            for check in checks
        ],
    }


def available_memory() -> int:
    """Bytes of memory that can still be had: what the machine has, or what the container may still take."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def _installed() -> dict[str, str]:
    return {_normal(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()}


def _required() -> list[str]:
    """The packages that this one cannot do without."""
    lines = importlib.metadata.requires("course-lib") or []
    return [_normal(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(items: list[str], limit: int = 3) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(items[:limit]) + more


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip(" -")), "")
