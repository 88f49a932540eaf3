"""Which operation of torch.distributed works on which backend, found out by trying, on this machine.

Printed tables of backends grow old with every release. Here each operation runs on two ranks of a throwaway
job, and its *result* is looked at: an operation may work, return something wrong, raise, hang or take its
rank down. The last two cost the job; the rest of the operations is then tried in a new one.

    print(probe_backends())
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_lib.network import loopback
from mpi_classroom.folders import scratch_folder
from mpi_classroom.job_output import Event, read_deaths, read_events
from mpi_classroom.launch import mpiexec_command, rank_environment, running_job

State = Literal["works", "wrong", "raises", "hangs", "crashes", "absent"]
MARKS: dict[State, str] = {
    "works": "✓",
    "wrong": "✗ wrong result",
    "raises": "✗ raises",
    "hangs": "✗ hangs",
    "crashes": "✗ crashes",
    "absent": "–",
}
WORST_FIRST: tuple[State, ...] = ("raises", "wrong", "absent", "works")

BACKENDS = ("gloo", "mpi4py", "mpi", "nccl")
OPERATIONS = (
    *("send, recv", "isend, irecv", "broadcast", "all_reduce", "reduce", "all_gather"),
    *("all_gather_into_tensor", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "object collectives", "barrier", "monitored_barrier"),
)
CHECKS_MODULE = "course.lessons.l04_collectives.backend_operations"
RANK_MODULE = "course.lessons.l04_collectives.backend_rank"
RANKS = 2
START_SECONDS = 60.0
TICK_SECONDS = 0.02
Task = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of one operation on one backend, and the reason where it does not work."""

    backend: str
    operation: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BackendTable:
    """All probes; prints as text, and shows itself as a table in a notebook."""

    probes: tuple[Probe, ...]

    def state(self, backend: str, operation: str) -> State:
        """What came of one operation on one backend; LookupError when it was not tried."""
        for probe in self.probes:
            if (probe.backend, probe.operation) == (backend, operation):
                return probe.state
        raise LookupError(f"{operation} was not tried on {backend}; tried were {', '.join(self.backends)}")

    @property
    def backends(self) -> list[str]:
        """The backends, in their order."""
        return list(dict.fromkeys(probe.backend for probe in self.probes))

    @property
    def operations(self) -> list[str]:
        """The operations, in their order."""
        return list(dict.fromkeys(probe.operation for probe in self.probes))

    def rows(self) -> list[list[str]]:
        """A heading, and a row of marks for each operation."""
        rows = [[name, *(MARKS[self.state(b, name)] for b in self.backends)] for name in self.operations]
        return [["operation", *self.backends], *rows]

    def reasons(self) -> list[str]:
        """A sentence for everything that does not work; one for a backend that is not there at all."""
        words = {f"{p.backend}: {p.reason}": None for p in self.probes if p.state == "absent"}
        failed = [p for p in self.probes if p.state not in ("works", "absent")]
        return [*(f"{p.backend}, {p.operation}: {p.reason}" for p in failed), *words]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), "", *self.reasons()]).rstrip()

    def markdown(self) -> str:
        """The table in Markdown, the reasons in a list below it."""
        head, *rows = self.rows()
        table = [head, ["---"] * len(head), *([f"`{name}`", *marks] for name, *marks in rows)]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        return "\n".join([*lines, "", *(f"- {reason}" for reason in self.reasons())]).rstrip()

    def _repr_markdown_(self) -> str:
        return self.markdown()


def probe_backends(
    backends: Iterable[str] = BACKENDS,
    *,
    operations: Iterable[str] = OPERATIONS,
    seconds: float = 5.0,
    module: str = CHECKS_MODULE,
) -> BackendTable:
    """Try all `operations` on all `backends`, on two ranks, and look at the results.

    `seconds` is how long nothing may happen before an operation is said to hang. `module` has the checks.
    """
    tasks = [(backend, operation) for backend in backends for operation in operations]
    found: dict[Task, Probe] = {}
    while pending := [task for task in tasks if task not in found]:
        with ProbeJob(pending, module) as job:
            probes = job.watch(seconds)
        found |= {(probe.backend, probe.operation): probe for probe in probes}
    return BackendTable(tuple(found[task] for task in tasks))


class ProbeJob:
    """A throwaway job of two ranks that goes through `tasks` until one of them takes it down."""

    def __init__(self, tasks: Sequence[Task], module: str) -> None:
        self.tasks, self.module = tasks, module

    def __enter__(self) -> "ProbeJob":
        with contextlib.ExitStack() as opened:
            self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=scratch_folder())))
            (self.folder / "tasks.json").write_text(json.dumps({"module": self.module, "tasks": self.tasks}))
            command = [sys.executable, "-m", RANK_MODULE, str(self.folder)]
            base = dict(os.environ) | {"GLOO_SOCKET_IFNAME": loopback(), "TORCH_CPP_LOG_LEVEL": "FATAL"}
            output = opened.enter_context(open(self.folder / "output", "wb"))
            job = running_job(
                mpiexec_command(RANKS, command),
                rank_environment(RANKS, base),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            self.process = opened.enter_context(job)
            self.opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.close()

    def watch(self, seconds: float) -> list[Probe]:
        """Wait until the job is done, dead, or silent for `seconds`; what is known of its tasks then."""
        began = heard = time.monotonic()
        seen = -1
        while True:
            ended = self.process.poll() is not None  # before reading: what it wrote last must be read
            logs = [read_events(self.folder, rank) for rank in range(RANKS)]
            if all(log and log[-1]["event"] == "done" for log in logs):
                return self._finished(logs)
            now, lines = time.monotonic(), sum(map(len, logs))
            seen, heard = lines, heard if lines == seen else now
            silent = now - heard > seconds if all(logs) else now - began > START_SECONDS
            if ended or silent:
                return [*self._finished(logs), self._culprit(logs, crashed=ended)]
            time.sleep(TICK_SECONDS)

    def _finished(self, logs: Sequence[Sequence[Event]]) -> list[Probe]:
        """The tasks that have an outcome on every rank; a task is as bad as on its worst rank."""
        probes = []
        for number, (backend, operation) in enumerate(self.tasks):
            outcomes = _outcomes(logs, number)
            if len(outcomes) == RANKS:
                rank = min(outcomes, key=lambda r: WORST_FIRST.index(outcomes[r]["event"]))
                worst = outcomes[rank]
                probes.append(Probe(backend, operation, worst["event"], worst["reason"]))
        return probes

    def _culprit(self, logs: Sequence[Sequence[Event]], *, crashed: bool) -> Probe:
        """The first task that some rank began and not all have ended: it took the job down."""
        begun = {event["task"] for log in logs for event in log if event["event"] == "began"}
        open_tasks = sorted(number for number in begun if len(_outcomes(logs, number)) < RANKS)
        if not open_tasks:
            last_words = (self.folder / "output").read_text(errors="replace")[-500:]
            raise RuntimeError(f"the {RANKS} ranks of the probe did not start; they said: {last_words}")
        outcomes = _outcomes(logs, open_tasks[0])
        waiting = " and ".join(f"rank {rank}" for rank in range(RANKS) if rank not in outcomes)
        backend, operation = self.tasks[open_tasks[0]]
        if crashed:
            return Probe(backend, operation, "crashes", _cause_of_death(self.folder / "output"))
        for rank, outcome in outcomes.items():
            if outcome["event"] == "raises":
                reason = f"{outcome['reason']} (on rank {rank}; {waiting} then waits for ever)"
                return Probe(backend, operation, "raises", reason)
        return Probe(backend, operation, "hangs", f"{waiting} did not come back")


def _outcomes(logs: Sequence[Sequence[Event]], number: int) -> dict[int, Event]:
    """What came of a task, by rank, as far as it is known."""
    return {
        rank: event
        for rank, log in enumerate(logs)
        for event in log
        if event.get("task") == number and event["event"] != "began"
    }


def _cause_of_death(output: Path) -> str:
    """What mpiexec says of a rank that is gone."""
    for death in read_deaths(output.read_text(errors="replace")):
        if death.how == "signal":
            return f"rank {death.rank} was ended by signal {death.signal_words}"
    return "a rank left Python in mid-air"
