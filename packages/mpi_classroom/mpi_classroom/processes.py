"""Which clusters are running on this machine, and how to end them.

Every process of a cluster (controller, mpiexec, engines and whatever they start) inherits three environment
variables:

    MPI_CLASSROOM_CLUSTER            the cluster's private folder
    MPI_CLASSROOM_CLUSTER_OWNER      the kernel that started it, as "pid:start time:pid namespace@boot"
    MPI_CLASSROOM_CLUSTER_NOTEBOOK   the notebook of that kernel

So a cluster is found by asking the processes themselves, also when everything else about it was lost, and
nothing is ever ended by its name. The folder that a variable names is removed only if it is one of ours (see
`folders`). In the same way all processes of a job outside a notebook inherit MPI_CLASSROOM_JOB, a path in the
folder of the process that started it.

A process in whose environment MPI_CLASSROOM_SCOPE is set knows only those with the same one: so tests ignore
the clusters of open notebooks, and those of the tests beside them.

Ranks may belong to a notebook on another machine, whose process ids mean nothing here. Linux gives every boot
an id, by which we know the machine (the first pid namespace has the same number everywhere). An agent of that
notebook holds the cluster's folder on this machine (see `folders.lock`) for as long as the notebook lives.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpi_classroom.folders import JOB, is_held, remove_leftovers, remove_ours

CLUSTER = "MPI_CLASSROOM_CLUSTER"
OWNER, NOTEBOOK = f"{CLUSTER}_OWNER", f"{CLUSTER}_NOTEBOOK"
SCOPE = "MPI_CLASSROOM_SCOPE"
NETWORK = "MPI_CLASSROOM_NETWORK"  # the folder of a lab, see `network`
NETWORK_OWNER = f"{NETWORK}_OWNER"
LOOKS = 20
EXERCISE = "an exercise"  # instead of a notebook's name


@dataclass(frozen=True, slots=True)
class ClusterProcesses:
    """One running cluster: its folder, the kernel it belongs to, and its processes here.

    `owner_pid` is 0 when the kernel runs on another machine.
    """

    id: str
    folder: Path
    owner_pid: int
    owner_alive: bool
    notebook: str
    pids: tuple[int, ...]

    @property
    def exercise(self) -> bool:
        """Whether it is the throwaway job that checks an answer."""
        return self.notebook == EXERCISE


def marker(folder: Path, notebook: str) -> dict[str, str]:
    """The variables that mark every process of the cluster in `folder` as belonging to this process."""
    me = psutil.Process()
    owner = f"{me.pid}:{me.create_time():.2f}:{_pid_namespace()}@{boot()}"
    return {CLUSTER: str(folder), OWNER: owner, NOTEBOOK: notebook}


def boot() -> str:
    """What distinguishes this machine, since it was started, from all others; empty where that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """What distinguishes a container's process ids from the host's; empty where there is no such thing."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def marked_processes(variable: str = CLUSTER) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Every other process of this user and scope whose environment has `variable`, and that environment."""
    scope = os.environ.get(SCOPE)
    for process in psutil.process_iter():
        try:
            if hasattr(os, "getuid") and process.uids().real != os.getuid():
                continue  # root may read everybody's
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        ours = scope is None or environment.get(SCOPE) == scope
        if variable in environment and ours and process.pid != os.getpid():
            yield process, environment


def owner_alive(owner: str, folder: Path | None = None) -> bool:
    """Whether the process "pid:start time:namespace@boot" still runs (a later one with its pid is another).

    One of another machine counts as alive while somebody here holds the cluster's `folder`.
    """
    process_on_it, _, machine = owner.partition("@")
    if machine and machine != boot():
        return folder is not None and is_held(folder)
    pid, started, namespace = (*process_on_it.split(":", 2), "", "")[:3]
    if namespace and namespace != _pid_namespace():
        return True  # in another container, where it cannot be looked up from here
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def _pid_here(owner: str) -> int:
    """The owner's process id; 0 for one of another machine, which may have that of a process here."""
    process, _, machine = owner.partition("@")
    return 0 if machine and machine != boot() else int(process.partition(":")[0] or 0)


def running_clusters() -> list[ClusterProcesses]:
    """All clusters of this user on this machine, this notebook's own included, oldest process first."""
    found: dict[str, tuple[dict[str, str], list[int]]] = {}
    for process, environment in marked_processes():
        found.setdefault(environment[CLUSTER], (environment, []))[1].append(process.pid)
    return [
        ClusterProcesses(
            id=Path(folder).name,
            folder=Path(folder),
            owner_pid=_pid_here(environment.get(OWNER, "")),
            owner_alive=owner_alive(environment.get(OWNER, ""), Path(folder)),
            notebook=environment.get(NOTEBOOK, ""),
            pids=tuple(pids),
        )
        for folder, (environment, pids) in found.items()
    ]


def end_marked(variable: str, *values: str, timeout: float = 3.0) -> int:
    """End every process marked with one of `values`, or a path in it, in `variable`; return their number.

    They are asked first, so that mpiexec can remove its ranks and their shared memory; whoever is still
    there after `timeout` seconds is killed, all at once: stopped first, so that none starts another.
    """

    paths = tuple(f"{value}/" for value in values)

    def members() -> list[psutil.Process]:
        return [
            process
            for process, environment in marked_processes(variable)
            if f"{environment[variable]}/".startswith(paths)
        ]

    everyone = members()
    for process in everyone:
        _send(process, "terminate")
    _wait(everyone, timeout)
    stopped: set[psutil.Process] = set()
    for _ in range(LOOKS):  # looked up again: somebody may have been starting just now
        new = set(members()) - stopped
        if not new:
            break
        for process in new:
            _send(process, "suspend")
        stopped |= new
    for process in stopped:
        _send(process, "kill")
    everyone.extend(stopped)
    _wait(everyone, timeout)
    return len({process.pid for process in everyone})


def _wait(processes: list[psutil.Process], timeout: float) -> None:
    """Wait until all have ended, also those whose parent, perhaps another kernel, has not reaped them yet."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and any(_runs(process) for process in processes):
        time.sleep(0.02)
    psutil.wait_procs(processes, timeout=min(timeout, 0.5))  # most parents reap at once


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill_labs(folder: Path) -> None:
    """Kill all processes on the nodes of the labs in `folder`, also those that threw their marks away."""
    spaces = set()
    for process, environment in marked_processes(NETWORK):
        if f"{environment[NETWORK]}/".startswith(f"{folder}/"):
            spaces.add(_network_namespace(process.pid))
    spaces -= {"", _network_namespace(os.getpid())}
    for pid in psutil.pids() if spaces else ():
        if _network_namespace(pid) in spaces:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _network_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def stop_cluster(id: str) -> int:
    """End the cluster with this id and remove its folder; return the number of processes ended."""
    ended = 0
    for cluster in running_clusters():
        if cluster.id == id:
            ended += end_marked(CLUSTER, str(cluster.folder))
            remove_ours(cluster.folder)
    return ended


def stop_orphans() -> int:
    """End every cluster whose kernel no longer exists; return how many clusters that were."""
    orphans = [cluster for cluster in running_clusters() if not cluster.owner_alive]
    if orphans:
        end_marked(CLUSTER, *(str(cluster.folder) for cluster in orphans))  # they are waited for together
    for cluster in orphans:
        remove_ours(cluster.folder)
    return len(orphans)


def _send(process: psutil.Process, action: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        getattr(process, action)()


if __name__ == "__main__":  # what a watchdog runs: of a cluster, or of a process that started jobs
    folder = Path(sys.argv[1])
    kill_labs(folder)
    for mark in (CLUSTER, JOB, NETWORK):
        end_marked(mark, str(folder))
    remove_ours(folder)
    remove_leftovers()
