"""Unattended runs whose master is gone, found by a mark in the environment of everything they started.

`course run` and the tests of the notebooks start kernels, and kernels start clusters. Each of them inherits
MPI_CLASSROOM_RUN, which names the processes that must be alive for the work to be wanted: the runner, and the
make that started it. Whoever was killed, what is left can be found and ended, and nothing is ended by its
name.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpi_classroom import network, processes
from mpi_classroom.folders import remove_ours

RUN = "MPI_CLASSROOM_RUN"


@dataclass(frozen=True, slots=True)
class LeftoverRun:
    """A run nobody waits for any more: its mark, its notebook and the processes that carry the mark."""

    mark: str
    notebook: str
    pids: tuple[int, ...]


def run_mark() -> str:
    """MPI_CLASSROOM_RUN for kernels that this process starts: its "pid:start time", make's after a comma."""
    me = psutil.Process()
    owners = [me]
    if "MAKELEVEL" in os.environ and (parent := me.parent()) is not None:
        owners.append(parent)
    return ",".join(f"{owner.pid}:{owner.create_time():.2f}" for owner in owners)


def leftover_runs() -> list[LeftoverRun]:
    """The runs of which something is still here while a process that wanted it is not."""
    found: dict[str, list[tuple[int, str]]] = {}
    for process, environment in processes.marked_processes(RUN):
        notebook = environment.get("JPY_SESSION_NAME", "")
        found.setdefault(environment[RUN], []).append((process.pid, notebook))
    return [
        LeftoverRun(mark, next((name for _, name in members if name), ""), tuple(pid for pid, _ in members))
        for mark, members in found.items()
        if not all(processes.owner_alive(owner) for owner in mark.split(","))
    ]


def clean(*, everything: bool = False) -> list[str]:
    """End what killed runs, notebooks and labs left, with `everything` all other clusters and labs too.

    Returns one sentence for each thing that was ended.
    """
    done = []
    for run in leftover_runs():
        ended = end_leftover_run(run)
        done.append(f"Stopped a run that was killed{_at(run.notebook)}: {ended} processes.")
    for cluster in processes.running_clusters():
        if not cluster.owner_alive:
            ended = processes.stop_cluster(cluster.id)
            done.append(
                f"Stopped a cluster whose notebook was killed{_at(cluster.notebook)}: {ended} processes."
            )
        elif everything:
            ended = processes.stop_cluster(cluster.id)
            done.append(f"Stopped a cluster in use{_at(cluster.notebook)}: {ended} processes.")
    done += network.clean(everything=everything)  # and folders that nobody uses
    return done


def _at(notebook: str) -> str:
    return f" at {Path(notebook).name}" if notebook else ""


def end_leftover_run(run: LeftoverRun) -> int:
    """End `run`, with the runner itself when only its make is gone; return how many processes were ended."""
    runner = run.mark.split(",")[0]
    ended = 0
    if processes.owner_alive(runner):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(runner.partition(":")[0]))
            process.terminate()
            ended = 1
            psutil.wait_procs([process], timeout=3)
            if process.is_running():
                process.kill()
    return ended + end_run_processes(run.mark)


def end_run_processes(mark: str) -> int:
    """End whatever carries this mark, and remove the folders of its clusters; return how many processes."""
    marked = {
        process.pid for process, environment in processes.marked_processes(RUN) if environment[RUN] == mark
    }
    clusters = [cluster for cluster in processes.running_clusters() if marked & set(cluster.pids)]
    ended = processes.end_marked(RUN, mark) if marked else 0
    for cluster in clusters:
        remove_ours(cluster.folder)
    return ended
