"""The MPI cluster of a notebook: `cluster = start_cluster(n=4)`, then `%%px`.

    notebook ── kernel ──┬── controller                    passes cells to the engines, results back
                         └── mpiexec ──┬── engine 0 = rank 0
                                       ├── engine 1 = rank 1      one MPI world, on loopback
                                       └── …                      and shared memory only

Controller and engines start at once, quietly, in a private folder that holds their connection files and
logs. A cluster that is ill is not repaired piece by piece: all of it is replaced, which takes the same few
seconds. A watchdog ends it when the kernel is gone, however it went.
"""

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ipyparallel
import psutil
from IPython.core.getipython import get_ipython
from IPython.display import display

from course_lib.classroom import processes
from course_lib.classroom.errors import ClusterError
from course_lib.classroom.guard import GuardedMagics
from course_lib.comm.launch import available_cores, mpiexec_command, rank_environment, threads_per_rank

START_SECONDS = 60.0
ANSWER_SECONDS = 15.0
SHARED_MEMORY_PER_RANK = 20 * 2**20  # Open MPI maps one 16 MiB segment a rank
MEMORY_PER_RANK = 150 * 2**20
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one engine says of itself."""

    rank: int
    size: int
    pid: int
    library: str


class Cluster:
    """A controller and `n` engines, each of them one rank of the same MPI world."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.timeout = 60.0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._client: Any = None
        self._view: Any = None
        self.facts: tuple[RankFacts, ...] = ()

    # ---------------------------------------------------------------- use

    def __getitem__(self, name: str) -> list[Any]:
        """The values that the variable `name` has on the ranks, in rank order."""
        return list(self._ask(self.view.pull(name, block=False)))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the variable `name` to `value` on every rank."""
        self._ask(self.view.push({name: value}, block=False))

    def __repr__(self) -> str:
        if not self.facts:
            return f"<cluster of {self.n} ranks, stopped>"
        cores, threads = available_cores(), threads_per_rank(self.n)
        share = "oversubscribed: the ranks take turns" if self.n > cores else "a core for every rank"
        return (
            f"{self.n} ranks on {cores} core{'s' * (cores > 1)} ({share}), "
            f"{threads} thread{'s' * (threads > 1)} a rank, {self.facts[0].library}"
        )

    @property
    def view(self) -> Any:
        """ipyparallel's view of all ranks; raises ClusterError when the cluster is stopped."""
        if self._view is None:
            raise ClusterError("the cluster is stopped; run the cell with start_cluster() again")
        return self._view

    def stop(self) -> None:
        """End all processes of this cluster and remove its folder; safe to call twice."""
        atexit.unregister(self.stop)
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.close(linger=0)
        self._client = self._view = None
        self.facts = ()
        for process in reversed(self._processes):  # watchdog, ranks, controller
            _end(process)
        if self._processes:
            processes.end_marked(processes.CLUSTER, str(self.folder), patience=1.0)
            shutil.rmtree(self.folder, ignore_errors=True)
        self._processes = []

    def restart(self) -> None:
        """Replace every process by a fresh one. All variables on the ranks are lost."""
        self.stop()
        self.start()

    # ---------------------------------------------------------------- start

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Start controller and engines and check their world; raises ClusterError, leaving nothing behind."""
        _check_machine(self.n)
        self.folder = Path(tempfile.mkdtemp(prefix="course-cluster-"))
        atexit.register(self.stop)
        try:
            self._launch()
            self._connect(report)
            self._introduce()
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        profile = f"--profile-dir={self.folder}"
        notebook = os.environ.get("JPY_SESSION_NAME", "")
        mark = processes.marker(self.folder, notebook)
        controller = [sys.executable, "-m", "ipyparallel.controller", profile]
        controller += ["--ip=127.0.0.1", "--location=127.0.0.1", "--IPController.broadcast_scheduler_depth=0"]
        # Engines register with the first heartbeat; a rank that computes for long must not count as dead.
        controller += ["--HeartMonitor.period=200", "--HeartMonitor.max_heartmonitor_misses=100"]
        engine = [
            sys.executable,
            "-m",
            "ipyparallel.engine",
            profile,
            "--mpi",
            "--IPEngine.enable_nanny=False",
        ]
        engine += ["--IPEngine.wait_for_url_file=60", "--IPEngine.timeout=60"]
        try:
            ranks = mpiexec_command(self.n, engine)
        except FileNotFoundError as error:
            raise ClusterError(str(error)) from None
        self._spawn("controller", controller, os.environ | mark)
        self._spawn("ranks", ranks, rank_environment(self.n) | mark)
        # Reads until this kernel closes the pipe by ending, then ends whatever is left of the cluster.
        watchdog = 'read nothing; exec "$0" -m course_lib.classroom.processes "$1"'
        self._spawn("watchdog", ["/bin/sh", "-c", watchdog, sys.executable, str(self.folder)], os.environ)

    def _spawn(self, name: str, command: Sequence[str], environment: Any) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE if name == "watchdog" else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the kernel is not for them
            )
        self._processes.append(process)

    def _connect(self, report: Callable[[str], None]) -> None:
        connection = self.folder / "security" / "ipcontroller-client.json"
        deadline = time.monotonic() + START_SECONDS
        report(f"starting {self.n} ranks: controller")
        self._wait_until(connection.exists, deadline, "the controller to answer")
        self._client = ipyparallel.Client(str(connection), profile_dir=str(self.folder))

        def everyone() -> bool:
            report(f"starting {self.n} ranks: {len(self._client.ids)} of {self.n} are up")
            return len(self._client.ids) >= self.n

        self._wait_until(everyone, deadline, f"{self.n} engines to register")
        self._view = self._client[:]
        self._view.block = True

    def _introduce(self) -> None:
        answers = self._ask(self.view.apply_async(_facts))
        self.facts = tuple(RankFacts(*answer) for answer in answers)
        check_world(self.facts, self.n)

    def _wait_until(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        while not condition():
            self.check_alive()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"waited {START_SECONDS:.0f} s in vain for {what}; close other programs and "
                    f"run the cell again\n{self.log_tail()}"
                )
            time.sleep(0.02)

    # ---------------------------------------------------------------- health

    def check_alive(self) -> None:
        """Raise ClusterError, with the processes' own last words, when controller or ranks have ended."""
        names = ("the controller", "the MPI job with the ranks")
        for name, process in zip(names, self._processes, strict=False):
            code = process.poll()
            if code is not None:
                raise ClusterError(f"{name} ended with {_exit_words(code)}\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that controller and engines wrote, errors first in mind."""
        tails = []
        for name in ("controller", "ranks"):
            path = self.folder / f"{name}.log"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            telling = [line for line in lines if " INFO " not in line and line.strip()][-LOG_LINES:]
            if telling:
                tails.append(f"--- what the {name} wrote last\n" + "\n".join(telling))
        return "\n".join(tails)

    def answers(self) -> bool:
        """Whether all ranks answer within seconds; False also when one is busy or stuck."""
        try:
            self.check_alive()
            self._ask(self.view.apply_async(_facts), seconds=5)
        except ClusterError:
            return False
        return True

    def _ask(self, result: Any, seconds: float = ANSWER_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while not result.wait(0.05):
            self.check_alive()
            if time.monotonic() > deadline:
                raise ClusterError(f"a rank did not answer within {seconds:.0f} s; run cluster.restart()")
        return result.get()


def check_world(facts: Sequence[RankFacts], n: int) -> None:
    """Raise ClusterError unless `facts`, in engine order, are of one world of `n` ranks, rank = engine id."""
    sizes, ranks = {fact.size for fact in facts}, [fact.rank for fact in facts]
    if sizes != {n}:
        raise ClusterError(
            f"the {len(facts)} engines are in worlds of {sorted(sizes)} ranks, not in one of {n}: "
            "mpiexec and mpi4py come from different MPI installations; remove .venv and run make setup"
        )
    if ranks != list(range(n)):
        raise ClusterError(f"engines 0 to {n - 1} have the ranks {ranks}; run the cell again")


# -------------------------------------------------------------------- the one call of a lesson

_current: Cluster | None = None


def start_cluster(n: int = 4, *, stop_others: bool = False) -> Cluster:
    """Start `n` ranks for this notebook, or return the running ones, and register `%%px`.

    Clusters whose notebook was killed are ended. One that belongs to another open notebook is mentioned,
    and ended with `stop_others=True`. Raises ClusterError with one sentence and its remedy.
    """
    global _current
    if n < 1:
        raise ValueError(f"a cluster needs at least 1 rank, not {n}")
    line = _StatusLine()
    notes = _other_clusters(stop_others)
    began = time.monotonic()
    if _current is not None and _current.n == n and _current.answers():
        how = "already running"
    else:
        if _current is not None:
            _current.stop()
        _current = Cluster(n)
        _current.start(line.show)
        how = f"started in {time.monotonic() - began:.1f} s"
    shell = get_ipython()
    if shell is not None:
        shell.register_magics(GuardedMagics(shell, _current))
    line.show("\n".join([f"{_current!r}, {how}", *notes]), final=True)
    return _current


def _other_clusters(stop: bool) -> list[str]:
    notes = []
    for cluster in processes.running_clusters():
        if cluster.owner_pid == os.getpid():
            continue
        name = cluster.notebook or "another notebook"
        if not cluster.owner_alive:
            processes.stop_cluster(cluster.id)
            notes.append(f"Stopped a cluster that {name} had left behind.")
        elif stop:
            processes.stop_cluster(cluster.id)
            notes.append(f"Stopped the cluster of {name}.")
        else:
            notes.append(
                f"{name} has a cluster running too, and both share the cores; "
                f"to stop it: start_cluster(n=…, stop_others=True)"
            )
    return notes


def _check_machine(n: int) -> None:
    """Raise ClusterError when shared memory or memory cannot hold `n` ranks."""
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
        _check_room("/dev/shm has", free, n, SHARED_MEMORY_PER_RANK, "in Docker, start it with --shm-size=1g")
    free = psutil.virtual_memory().available
    _check_room(
        "memory has", free, n, MEMORY_PER_RANK, "close other programs or notebooks, or start fewer ranks"
    )


def _check_room(where: str, free: int, n: int, per_rank: int, remedy: str) -> None:
    if free < n * per_rank:
        needed = n * per_rank / 2**20
        raise ClusterError(f"{where} {free / 2**20:.0f} MiB free and {n} ranks need {needed:.0f}; {remedy}")


class _StatusLine:
    """One line that is rewritten while things start, and stays as the result."""

    def __init__(self) -> None:
        self._live = get_ipython() is not None and "IPP_NONINTERACTIVE" not in os.environ
        self._handle: Any = None
        self._text = ""

    def show(self, text: str, final: bool = False) -> None:
        if text == self._text:
            return
        self._text = text
        if self._live:
            bundle = {"text/plain": text}
            if self._handle is None:
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
        elif final:
            print(text)


def _facts() -> tuple[int, int, int, str]:
    """Runs on every engine: its rank, the size of its world, its pid, its MPI library."""
    import os

    from mpi4py import MPI

    library = MPI.Get_library_version().split(",")[0].replace("Open MPI v", "Open MPI ")
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.getpid(), library


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours and its children, at once; mpiexec removes shared memory when its ranks die."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if process.stdin is not None:  # the watchdog, which would take the closed pipe for the end of the kernel
        process.kill()
        process.stdin.close()
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
    if process.poll() is None:
        process.kill()
        process.wait()


def _exit_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
