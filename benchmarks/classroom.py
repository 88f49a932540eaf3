"""What the classroom costs beside plain ipyparallel: start, guard, healing, recorder.

Clusters of four ranks start and stop in turn. Both run the same MPI in the same environment; ipyparallel's
own has its default settings, except that for restarts its engines may register quickly (heartbeats of
0.3 s, as they do by default only after 3.5 s): the comparison that is harder to win.

    python -m benchmarks.classroom [--quick] [--json FILE]
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import ipyparallel
import numpy as np
from ipyparallel.client.magics import ParallelMagics
from IPython.core.interactiveshell import InteractiveShell
from mpi4py import MPI

from benchmarks.harness import Row, Timing, main, on_ranks, row
from mpi_classroom.cluster import Cluster
from mpi_classroom.guard import GuardedMagics
from mpi_classroom.launch import find_mpiexec, rank_environment
from mpi_classroom.recording import checks
from mpi_classroom.recording.recorder import RecordedComm

if TYPE_CHECKING:
    from collections.abc import Mapping

RANKS = 4
QUICK_HEARTBEAT = ["--HeartMonitor.period=300", "--HeartMonitor.max_heartmonitor_misses=100"]
DEADLOCK = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: MPI.COMM_WORLD.recv()"


def measure(quick: bool) -> list[Row]:
    """All rows: seconds of starting and healing, milliseconds of a cell, microseconds of a call."""
    times = 2 if quick else 5
    recorded = []
    for ranks in (1, 2):
        found = on_ranks(ranks, race_recorder, calls=200 if quick else 1_000, repetitions=40 * times)
        recorded += recorder_rows(ranks, found)
    return [start_row(times), *cell_rows(20 * times), heal_row(times), *recorded]


# -------------------------------------------------------------------- starting and healing


def start_row(repetitions: int) -> Row:
    """From nothing to all ranks having answered."""
    ours, peer = [], []
    for _ in range(repetitions):
        seconds, cluster = timed(started)
        ours.append(seconds)
        cluster.stop()
        with plain_cluster([]) as (seconds, _):
            peer.append(seconds)
    return row(
        "start of 4 ranks", RANKS, Timing.of(ours), Timing.of(peer), "ipyparallel.Cluster, MPI engines"
    )


def heal_row(repetitions: int) -> Row:
    """From ranks that wait for ever to fresh ones that answer."""
    ours, peer = [], []
    guarded = started()
    magics = GuardedMagics(notebook(), guarded)
    with plain_cluster(QUICK_HEARTBEAT) as (_, cluster), contextlib.ExitStack() as at_the_end:
        at_the_end.callback(guarded.stop)
        for _ in range(repetitions):
            guarded.view.execute(DEADLOCK, block=False)
            ours.append(timed(magics.heal)[0])
            client = cluster.connect_client_sync()
            client[:].execute(DEADLOCK, block=False)
            peer.append(timed(partial(restart_engines, cluster, client))[0])
            client.close()
    name = "ipyparallel: engines stopped, started"
    return row("healing 4 stuck ranks", RANKS, Timing.of(ours), Timing.of(peer), name)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `action` takes, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def started() -> Cluster:
    """Our cluster, running."""
    cluster = Cluster(RANKS)
    cluster.start()
    return cluster


def notebook() -> InteractiveShell:
    """What a notebook's magics live in; it must not take the place of this program's own `__main__`."""
    return InteractiveShell.instance(user_module=ModuleType("notebook"), user_ns={})


@contextlib.contextmanager
def plain_cluster(controller_arguments: list[str]) -> Iterator[tuple[float, Any]]:
    """The seconds that ipyparallel's own cluster took to start, and the cluster, running."""
    environment = rank_environment(RANKS)
    environment["PATH"] = f"{find_mpiexec().parent}{os.pathsep}{environment['PATH']}"
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment):
        cluster = ipyparallel.Cluster(
            n=RANKS,
            engines="mpi",
            profile_dir=folder,
            controller_args=["--ip=127.0.0.1", *controller_arguments],
            log_level=50,
        )
        try:
            yield timed(lambda: start_plain(cluster))[0], cluster
        finally:
            cluster.stop_cluster_sync()


def start_plain(cluster: Any) -> None:
    """Start ipyparallel's cluster and wait until all ranks have answered."""
    cluster.start_cluster_sync()
    client = cluster.connect_client_sync()
    await_answers(client)
    client.close()


def restart_engines(cluster: Any, client: Any) -> None:
    """The order of calls that works; `restart_engines_sync` alone races with the engines' registration."""
    cluster.stop_engines_sync()
    while client.ids:
        time.sleep(0.02)
    cluster.start_engines_sync(n=RANKS)
    await_answers(client)


def await_answers(client: Any) -> None:
    """Return when all ranks have answered."""
    client.wait_for_engines(RANKS, timeout=60, interactive=False)
    client[:].apply_sync(os.getpid)


# -------------------------------------------------------------------- one cell


def cell_rows(repetitions: int) -> list[Row]:
    """A cell that does nothing, on the same ranks, by our `%%px` and by ipyparallel's."""
    shell, cluster = notebook(), started()
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(cluster.stop)
        guarded, plain = GuardedMagics(shell, cluster), ParallelMagics(shell, cluster.view)
        contenders = {"ours": lambda: guarded.cell_px("", "pass"), "peer": lambda: plain.cell_px("", "pass")}
        for contender in contenders.values():
            contender()
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repetitions):
            for name, contender in contenders.items():
                found[name].append(1000 * timed(contender)[0])
    ours, peer = (Timing.of(found[name]) for name in ("ours", "peer"))
    return [row("%%px pass on 4 ranks", RANKS, ours, peer, "ipyparallel's %%px", unit="ms")]


# -------------------------------------------------------------------- one MPI call


def race_recorder(comm: MPI.Intracomm, calls: int, repetitions: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of a call, in every repetition, of each contender; messages go to the next rank.

    The contenders take turns, each first every second time. A rank alone counts its own CPU time, on which
    other programs have little influence.
    """
    clock = time.thread_time if comm.size == 1 else time.perf_counter
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    plain, recorded = comm.Dup(), RecordedComm(comm.Dup())
    recorded._checked = 1  # its calls are noted for the comparison of the ranks, as in a cell
    few, more, many, more_of_them = np.zeros(1), np.zeros(1), np.zeros(2**17), np.zeros(2**17)
    kinds: Mapping[str, Callable[[Any], object]] = {
        "Barrier": lambda c: c.Barrier(),
        "Allreduce": lambda c: c.Allreduce(MPI.IN_PLACE, few),
        "Sendrecv": lambda c: c.Sendrecv(few, dest=right, recvbuf=more, source=left),
        "Sendrecv of 1 MB": lambda c: c.Sendrecv(many, dest=right, recvbuf=more_of_them, source=left),
    }
    found: dict[str, dict[str, list[float]]] = {kind: {"ours": [], "peer": []} for kind in kinds}
    contenders = [("ours", recorded), ("peer", plain)]
    for _ in range(repetitions):
        contenders.reverse()
        for kind, call in kinds.items():
            number = calls // 4 if "MB" in kind else calls
            for name, communicator in contenders:
                comm.Barrier()
                start = clock()
                for _ in range(number):
                    call(communicator)
                found[kind][name].append(1e6 * (clock() - start) / number)
            checks.collect()  # after every cell
    return found


def recorder_rows(ranks: int, found: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
    """A call that is recorded and checked, beside the same call that is not."""
    where = f"{ranks} rank{'s' * (ranks > 1)}"
    return [
        row(
            *(f"{kind} recorded, {where}", ranks, Timing.of(times["ours"]), Timing.of(times["peer"]), kind),
            unit="us",
        )
        for kind, times in found.items()
    ]


if __name__ == "__main__":
    main("The classroom beside plain ipyparallel", measure)
