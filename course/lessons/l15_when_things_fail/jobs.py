"""Jobs in which something fails, and what was seen of it. The kernel imports it: neither MPI nor torch.

Each function starts processes of its own, whose failure cannot hurt the cluster of the notebook, and returns
what happened when.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from course.lessons.l15_when_things_fail.kill_points import Save, packed_saver
from course_lib.network import loopback
from course_lib.training.saving import atomic_save
from mpi_classroom.folders import scratch_folder
from mpi_classroom.job_output import Death, last_error, marked_lines, read_deaths, read_events
from mpi_classroom.launch import mpiexec_command, rank_environment, run_ranks, running_job

PACKAGE = __spec__.parent
LOOK = 0.005  # seconds from one look at the processes to the next
LONGEST = 180.0  # seconds that a job of ours may take on a busy machine
LEFT_AFTER = 10.0  # seconds after mpiexec's end in which its ranks must have ended
GLOO = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), loopback())  # workers of one machine
# Else workers of the second attempt may find addresses of the first: torch 2.13 keeps one store for both (the
# race of pytorch issue 135712).
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ENDED = "ended by mpiexec"
FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')

# ------------------------------------------------------------------ one rank fails, the others wait


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rank did from `start` to `end`, in seconds since the failure: compute, wait or fails."""

    activity: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Notice:
    """That a rank raised a timeout, or was ended, so many seconds after the failure; and in what words."""

    seconds: float
    words: str

    @property
    def was_ended(self) -> bool:
        """Whether mpiexec ended the rank before it noticed anything itself."""
        return self.words == ENDED


@dataclass(frozen=True, slots=True)
class Failure:
    """A job in which rank `guilty` failed, as `how` says.

    `lanes[rank]` ends with the rank's process. `noticed` has the ranks that noticed, or were ended. `blamed`
    is the rank that mpiexec names in the end, None when the job ended well. `stacks[rank]` says in which
    function the rank stood while the others waited; ranks that were gone by then are not in it.
    """

    how: str
    guilty: int
    lanes: Mapping[int, Sequence[Moment]]
    noticed: Mapping[int, Notice]
    blamed: int | None
    stacks: Mapping[int, str]
    exit_code: int
    said: str


def run_failure(how: str, *, ranks: int = 3, guilty: int = 1, deadline: float = 2.0) -> Failure:
    """Run a job in which rank `guilty` "raises", "hangs", "is slow" or "dies" in the third step.

    The others give up an all-reduce after `deadline` seconds. RuntimeError with the job's output when it
    cannot start, or does not end by itself.
    """
    with tempfile.TemporaryDirectory(prefix="failure-", dir=scratch_folder()) as place:
        folder = Path(place)
        task = [how, str(guilty), str(deadline), place]
        command = [sys.executable, "-m", "mpi4py", "-m", f"{PACKAGE}.failing", *task]
        with (folder / "output").open("w") as output:
            environment = rank_environment(ranks)
            started = mpiexec_command(ranks, command)
            with running_job(started, environment, stdout=output, stderr=output) as process:
                ended = watch(process, folder, ranks, ask_after=0.35 * deadline)
        text = (folder / "output").read_text()
        if process.returncode is None or process.returncode < 0:
            raise RuntimeError(f"the job did not end by itself within {LONGEST:g} s:\n{text}")
        if left := set(range(ranks)) - ended.keys():
            raise RuntimeError(
                f"mpiexec ended, but ranks {sorted(left)} did not start or did not end:\n{text}"
            )
        events = [read_events(folder, rank) for rank in range(ranks)]
        stacks = {rank: standing_at(folder / f"stack-{rank}") for rank in range(ranks)}
    failed_at = next(event["at"] for event in events[guilty] if event["what"] == "fails")
    lanes, noticed = {}, {}
    for rank in range(ranks):
        lanes[rank] = lane(events[rank], ended[rank], failed_at)
        for event in events[rank]:
            if event["what"] == "notices":
                noticed[rank] = Notice(event["at"] - failed_at, event["words"])
        if process.returncode and rank not in noticed and rank != guilty:
            noticed[rank] = Notice(ended[rank] - failed_at, ENDED)
    deaths = read_deaths(text) if process.returncode else []
    blamed = deaths[0].rank if deaths else None
    stacks = {rank: words for rank, words in stacks.items() if words}
    return Failure(how, guilty, lanes, noticed, blamed, stacks, process.returncode, last_words(text, deaths))


def first_notice(failure: Failure) -> tuple[int, float] | None:
    """The rank that noticed first, or was ended, and after how many seconds; None if nobody did."""
    if not failure.noticed:
        return None
    rank = min(failure.noticed, key=lambda rank: failure.noticed[rank].seconds)
    return rank, failure.noticed[rank].seconds


def watch(process: subprocess.Popen[Any], folder: Path, ranks: int, *, ask_after: float) -> dict[int, float]:
    """Wait for the end of the job; when each rank's process ended, on the clock of the events.

    So many seconds after the failure, every rank is asked where it stands. A rank that did not start, or
    that mpiexec left behind, is missing.
    """
    limit, ended, asked = time.monotonic() + LONGEST, dict[int, float](), False
    job_over = False
    while time.monotonic() < limit and (process.poll() is None or len(ended) < ranks):
        if process.poll() is not None and not job_over:
            job_over, limit = True, time.monotonic() + LEFT_AFTER
        events = [read_events(folder, rank) for rank in range(ranks)]
        for rank in range(ranks):
            if rank not in ended and events[rank] and not is_alive(events[rank][0]["pid"]):
                ended[rank] = time.monotonic()
        failed = [event["at"] for each in events for event in each if event["what"] == "fails"]
        if failed and not asked and time.monotonic() > failed[0] + ask_after:
            asked = True
            for rank in set(range(ranks)) - ended.keys():
                os.kill(events[rank][0]["pid"], signal.SIGUSR1)
        time.sleep(LOOK)
    return ended


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that is dead and not yet collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lane(events: Sequence[Mapping[str, float]], ended: float, failed_at: float) -> list[Moment]:
    """What a rank did, in order, until its process ended."""
    starts = [event for event in events if event["what"] != "notices"]
    ends = [event["at"] for event in starts[1:]] + [ended]
    return [
        Moment(str(event["what"]), event["at"] - failed_at, end - failed_at)
        for event, end in zip(starts, ends, strict=True)
    ]


def standing_at(path: Path) -> str:
    """The function of our program in which a rank stood, and its line; "" if it did not say."""
    for file, line, name in FRAME.findall(path.read_text() if path.exists() else ""):
        if Path(file).name == "failing.py":
            return f"{name}, line {line} of failing.py"
    return ""


def last_words(output: str, deaths: Sequence[Death]) -> str:
    """What a user sees last: the last exception, and what mpiexec says about the rank it names."""
    said = [last_error(output)] if last_error(output) else []
    for death in deaths[:1]:
        how = {"signal": f"was ended by signal {death.signal_words}", "abort": "called MPI_Abort"}
        said.append(f"mpiexec: rank {death.rank} {how.get(death.how, 'ended before its time')}")
    return "\n".join(said)


# ------------------------------------------------------------------ survivors go on


@dataclass(frozen=True, slots=True)
class Step:
    """A step of training on so many ranks: its loss, and its seconds on the lowest rank."""

    step: int
    ranks: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SurvivorRun:
    """A training whose rank `victim` died; the steps as its lowest survivor took them.

    Seconds count from the death: until a survivor noticed it, until all had a communicator without the dead,
    and until the interrupted step was done. `missing`: why this MPI cannot; then there are no steps.
    """

    victim: int
    steps: Sequence[Step]
    noticed_seconds: float = 0.0
    shrunk_seconds: float = 0.0
    recovered_seconds: float = 0.0
    missing: str = ""


def run_survivors(*, ranks: int = 3, victim: int = 1, steps: int = 20, dies_at: int = 8) -> SurvivorRun:
    """Train with `mpiexec --with-ft ulfm`; rank `victim` is killed in step `dies_at`, if it is not negative.

    ValueError for a rank that there is not; RuntimeError with the job's output when a survivor does not
    finish.
    """
    if not 0 <= victim < ranks:
        raise ValueError(f"rank {victim} cannot die: there are {ranks} ranks, from 0 to {ranks - 1}")
    with tempfile.TemporaryDirectory(prefix="survivors-", dir=scratch_folder()) as place:
        folder = Path(place)
        task = [str(victim), str(steps), str(dies_at), place]
        command = [sys.executable, "-m", "mpi4py", "-m", f"{PACKAGE}.surviving", *task]
        with (folder / "output").open("w") as output:
            started = mpiexec_command(ranks, command, ["--with-ft", "ulfm"])
            with running_job(started, rank_environment(ranks), stdout=output, stderr=output) as process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LONGEST)
                ended_alone = process.poll() is not None
        text = (folder / "output").read_text()
        events = [read_events(folder, rank) for rank in range(ranks)]
    if lacking := cannot_survive(text):
        return SurvivorRun(victim, [], missing=lacking)
    dead = victim if dies_at >= 0 else -1
    living = [events[rank] for rank in range(ranks) if rank != dead]
    taken = [[Step(**without_time(event)) for event in each if "step" in event] for each in living]
    if not ended_alone or any(len(each) < steps for each in taken):
        raise RuntimeError(f"not all survivors took all steps within {LONGEST:g} s:\n{text}")
    if dead < 0:
        return SurvivorRun(victim, taken[0])
    died = next(event["at"] for event in events[victim] if "dies" in event)

    def after(word: str, choose: Callable[[Iterable[float]], float]) -> float:
        return choose(event["at"] for each in living for event in each if word in event) - died

    again = max(event["at"] for each in living for event in each if event.get("step") == dies_at)
    return SurvivorRun(victim, taken[0], after("noticed", min), after("shrunk", max), again - died)


def without_time(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event without when it was."""
    return {name: value for name, value in event.items() if name != "at"}


def cannot_survive(output: str) -> str:
    """Why no rank can outlive another one with this MPI, from the output of a job; "" if it can."""
    if re.search(
        r"(?i)unrecognized (option|argument|parameter).*with-ft|--with-ft.*(unknown|not supported)", output
    ):
        return "This mpiexec has no option --with-ft ulfm; Open MPI 5 has it."
    if "NotImplementedError" in output:
        return "This MPI was built without ULFM, so mpi4py cannot shrink a communicator; Open MPI 5 has it."
    return ""


# ------------------------------------------------------------------ torchrun restarts all


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of one attempt: when its program started, had loaded, and its process ended.

    In seconds since the kill. `steps`: when each of its steps was done.
    """

    attempt: int
    rank: int
    started: float
    loaded: float
    steps: Mapping[int, float]
    ended: float


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """A training that torchrun restarted. Seconds count from the moment in which a worker was killed.

    `losses[attempt]` by step. It took `noticed_seconds` until the last of the other workers was ended,
    `restarted_seconds` until all programs had started again, `loaded_seconds` until they had loaded, and
    `recovered_seconds` until the step in which the worker was killed was done.
    """

    losses: Sequence[Mapping[int, float]]
    killed_in_step: int
    workers: Sequence[Worker]
    noticed_seconds: float
    restarted_seconds: float
    loaded_seconds: float
    recovered_seconds: float

    @property
    def repeated_steps(self) -> int:
        """How many steps were computed twice."""
        return len(self.losses[0].keys() & self.losses[1].keys())


def run_elastic(
    *, workers: int = 2, steps: int = 30, kill_at: int = 12, save_every: int = 5, save: Save = atomic_save
) -> ElasticRun:
    """Train with `torchrun --max-restarts=1`; the last worker is killed in step `kill_at`.

    The first worker saves with `save(path, data)` after every `save_every` steps. RuntimeError with the
    output when the training does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-", dir=scratch_folder()) as place:
        folder = Path(place)
        (folder / "saver").write_text(packed_saver(save))
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        task = [place, str(steps), str(save_every), str(kill_at)]
        command = [sys.executable, *torchrun, "--max-restarts", "1", "-m", f"{PACKAGE}.elastic_worker", *task]
        environment = {**rank_environment(workers), **GLOO, **NEW_STORE, "TMPDIR": place}  # torchrun's logs
        with (
            (folder / "output").open("w") as output,
            running_job(command, environment, stdout=output, stderr=output) as process,
        ):
            ended = watch_workers(process, folder, workers)
        text = (folder / "output").read_text()
        events = [read_events(folder, rank) for rank in range(workers)]
    if process.returncode != 0:
        raise RuntimeError(f"torchrun did not end well within {LONGEST:g} s:\n{text}")
    killed_at = next(event["at"] for event in events[-1] if "killed" in event)
    found = [
        worker_of(attempt, rank, events[rank], ended, killed_at)
        for attempt in (0, 1)
        for rank in range(workers)
    ]
    first, second = found[:workers], found[workers:]
    return ElasticRun(
        losses=[
            {
                each["step"]: each["loss"]
                for each in events[0]
                if "step" in each and each["attempt"] == attempt
            }
            for attempt in (0, 1)
        ],
        killed_in_step=kill_at,
        workers=found,
        noticed_seconds=max(each.ended for each in first),
        restarted_seconds=max(each.started for each in second),
        loaded_seconds=max(each.loaded for each in second),
        recovered_seconds=max(each.steps[kill_at] for each in second),
    )


def watch_workers(process: subprocess.Popen[Any], folder: Path, workers: int) -> dict[int, float]:
    """Wait for the end of torchrun; when each worker's process ended, by its number."""
    limit, ended = time.monotonic() + LONGEST, dict[int, float]()
    while time.monotonic() < limit and process.poll() is None:
        for event in (event for rank in range(workers) for event in read_events(folder, rank)):
            if "pid" in event and event["pid"] not in ended and not is_alive(event["pid"]):
                ended[event["pid"]] = time.monotonic()
        time.sleep(LOOK)
    return ended


def worker_of(
    attempt: int, rank: int, events: Sequence[Mapping[str, Any]], ended: Mapping[int, float], killed_at: float
) -> Worker:
    """What one worker noted in one attempt."""
    mine = [event for event in events if event["attempt"] == attempt]
    begin = next(event for event in mine if "started" in event)
    loaded = next(event["at"] for event in mine if "loaded" in event)
    end = ended.get(begin["pid"], mine[-1]["at"])
    taken = {event["step"]: event["at"] - killed_at for event in mine if "step" in event}
    return Worker(attempt, rank, begin["started"] - killed_at, loaded - killed_at, taken, end - killed_at)


# ------------------------------------------------------------------ remote calls


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Median seconds of a remote call, and in what words an error and a missed deadline come back."""

    seconds: float
    error: str
    late: str


def time_remote_calls(calls: int = 200) -> dict[str, CallTimes]:
    """Calls between two ranks: "ours" over tags, and those of "torch"; RuntimeError with the job's output."""
    with tempfile.TemporaryDirectory(prefix="calls-", dir=scratch_folder()) as place:
        task = ["-m", "mpi4py", "-m", f"{PACKAGE}.remote_calls", str(calls), place]
        job = run_ranks(2, task, timeout=LONGEST, environment={**os.environ, **GLOO})
    if job.returncode != 0:
        raise RuntimeError(f"the job ended with exit code {job.returncode}:\n{job.stdout}\n{job.stderr}")
    return {name: CallTimes(**found) for name, found in marked_lines(job.stdout, "calls: ")}
