"""The observer makes the snapshots: it alone knows the processes, signals and files of the ranks.

The call that a rank is in comes from the small file that `recording/record.py` writes on that rank; the
source line from the Python stack that the rank writes when it receives SIGUSR1, even while it is blocked
inside MPI; CPU time and condition from the operating system. A stack costs the rank a signal, so it is asked
for in a close look only.
"""

import contextlib
import linecache
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from mpi_classroom.awake import Awake
from mpi_classroom.job_output import Death
from mpi_classroom.recording.calls import OF_TORCH, Call, Counts, read_rank, stack_file
from mpi_classroom.snapshot import (
    AWAITS,
    ENDED_WITH_OTHERS,
    THREAD_WAITS,
    Kind,
    RankState,
    Snapshot,
    all_waits_in,
)

STACK_SECONDS, BUSY_STACK_SECONDS = 0.5, 3.0
PROCESS_SECONDS = 0.1  # the operating system is asked about processes this often, at most
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

_C10D = "torch/distributed/distributed_c10d.py"
# What the methods are called by which torch enters torch_mpi4py without one of its public functions.
_OF_BACKEND = {
    ("work.py", "wait"): "Work.wait",
    ("messages.py", "wait"): "Work.wait for a message",
    ("group.py", "allreduce"): "all_reduce",
    ("group.py", "allgather"): "all_gather",
}

# The functions of `threading` in which futures, queues and `join` wait; the second until Python 3.12.
IN_THREADING = ("wait", "_wait_for_tstate_lock", "join")

Frame = tuple[str, int, str]  # file, line, function


class Source(NamedTuple):
    """The lines of a cell, how many lines the notebook has above them, and a remark on the cell."""

    lines: Sequence[str]
    lines_above: int = 0
    remark: str = ""


SourceOf = Callable[[str], Source | None]  # by file name; None for a file that is no cell


class ProcessState(NamedTuple):
    """What the operating system says of a process: `condition` is "gone", "stopped" (by a signal) or ""."""

    condition: str
    cpu_seconds: float | None = None
    runnable: bool = False


class Observer:
    """Looks at ranks on this machine, whose files are in `folder`.

    `pids` has their processes by rank, and may grow while the ranks start. `source_of` finds a cell's lines.
    """

    def __init__(self, folder: Path, pids: Mapping[int, int], source_of: SourceOf) -> None:
        self.folder, self.pids, self.source_of = folder, pids, source_of
        self._clock = Awake()
        self._seen: dict[int, RankState] = {}
        self._processes: dict[int, tuple[float, ProcessState]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since this observer began, without those in which the machine slept."""
        return self._clock.tick()

    def snapshot(
        self,
        ranks: Iterable[int],
        *,
        ended: Mapping[int, RankState],
        background: Iterable[int] = (),
        down: str = "",
        deaths: Mapping[int, Death] | None = None,
        close: bool = False,
    ) -> Snapshot:
        """All of `ranks`: those that ended as `ended` has them, the others as they are now.

        `close` includes the source lines of those that have not ended.
        """
        ranks, deaths = list(ranks), deaths or {}
        states = {
            rank: RankState(rank, "gone", error=self._death(rank, death), signal=death.signal)
            for rank, death in deaths.items()
        }
        states |= {rank: self._counted(state) for rank, state in ended.items() if rank not in deaths}
        unknown = [rank for rank in ranks if rank not in states]
        states |= {state.rank: state for state in self.look(unknown, close=close)}
        others = self.look([rank for rank in background if rank not in states])
        seen = tuple(states[rank] for rank in sorted(ranks))
        return Snapshot(self.seconds, seen, tuple(others), down, bool(deaths), set(ended) >= set(ranks))

    def look(self, ranks: Iterable[int], *, close: bool = False) -> list[RankState]:
        """The states of `ranks`, none of which has ended the cell; `close` includes their source lines."""
        ranks, seconds = list(ranks), self.seconds
        stacks: Mapping[int, Sequence[Frame]] = {}
        if close:
            known = {rank: pid for rank in ranks if (pid := self.pids.get(rank))}
            stacks = request_stacks(self.folder, known)
        return [self._look_at(rank, seconds, stacks.get(rank, ()), close) for rank in ranks]

    def _look_at(self, rank: int, seconds: float, stack: Sequence[Frame], close: bool) -> RankState:
        record, process = read_rank(self.folder, rank), self._process(rank, seconds, fresh=close)
        line, code, inside = located(stack, self.source_of)
        call = named(record.call, torch_call(stack, asleep=not process.runnable))
        kind, error = kind_of(call is not None, stack, inside or code), ""
        if process.condition == "gone":
            kind, error = "gone", ENDED_WITH_OTHERS
        elif process.condition == "stopped":
            kind, error = "stopped", f"is stopped (process {self.pids[rank]})"
        before = self._seen.get(rank)
        same_call = before is not None and before.call_number == (call.number if call else None)
        self._seen[rank] = RankState(
            rank,
            kind,
            call,
            error,
            line,
            code,
            inside,
            done=record.done,
            since=before.since if before is not None and same_call else seconds,
            counts=record.counts,
            cpu_seconds=process.cpu_seconds,
            runnable=process.runnable,
        )
        return self._seen[rank]

    def _death(self, rank: int, death: Death) -> str:
        """How a rank died; of a crash inside an MPI call, in which."""
        call = read_rank(self.folder, rank).call if death.signal in CRASHES else None
        return f"{death_words(death)} in {call}" if call else death_words(death)

    def _counted(self, state: RankState) -> RankState:
        """A rank that has ended the cell, with what it has done until then."""
        record = read_rank(self.folder, state.rank)
        return replace(state, done=record.done if state.kind == "finished" else None, counts=record.counts)

    def counts(self, ranks: Iterable[int]) -> dict[int, Counts]:
        """What each of `ranks` has begun, sent and received since it was started."""
        return {rank: read_rank(self.folder, rank).counts for rank in ranks}

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Interrupt `ranks`: this frees those that run Python, not those inside MPI."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGINT)

    def _process(self, rank: int, seconds: float, *, fresh: bool) -> ProcessState:
        at, state = self._processes.get(rank, (0.0, None))
        if state is None or fresh or seconds - at >= PROCESS_SECONDS:
            state = process_state(self.pids.get(rank, 0))
            self._processes[rank] = seconds, state
        return state


# -------------------------------------------------------------------- processes


def process_state(pid: int) -> ProcessState:
    """What the operating system says of the process `pid`; 0 is one that is not known yet."""
    if not pid:
        return ProcessState("")
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            used, status = sum(process.cpu_times()[:2]), process.status()
    except psutil.Error:
        return ProcessState("gone")
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState("gone")
    return ProcessState("stopped" if status in _STOPPED else "", used, status == psutil.STATUS_RUNNING)


def some_child_runs(pid: int) -> bool:
    """Whether some process that `pid` started, directly or not, has work for a CPU."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(
            process_state(child.pid).runnable for child in psutil.Process(pid).children(recursive=True)
        )
    return False


def death_words(death: Death) -> str:
    """How a rank died, as its line of the report says it."""
    if death.how == "abort":
        return "called Abort"
    if death.how == "exit":
        return f"ended itself with exit code {death.exit_code}"
    if death.how == "left":
        return "left Python without finishing MPI (os._exit)"
    if death.signal == signal.SIGKILL:
        return "was killed (signal 9: by hand, or because memory ran out)"
    if death.signal in CRASHES:
        return f"crashed (signal {death.signal})"
    return f"was ended by signal {death.signal}"


# -------------------------------------------------------------------- source lines


def request_stacks(folder: Path, pids: Mapping[int, int]) -> dict[int, list[Frame]]:
    """The Python stacks of the ranks in `pids` (rank → pid), innermost frame first.

    A rank that is stopped or gone has none after STACK_SECONDS. One that wants a CPU gets longer to answer:
    on a busy machine it may not have had one.
    """
    sizes = {}
    for rank, pid in pids.items():
        path = stack_file(folder, rank)
        with contextlib.suppress(ProcessLookupError):
            if _answers(pid):
                sizes[rank] = path.stat().st_size if path.exists() else 0  # in bytes
                os.kill(pid, signal.SIGUSR1)
    stacks: dict[int, list[Frame]] = {}
    began = time.monotonic()
    while missing := sizes.keys() - stacks.keys():
        waited = time.monotonic() - began
        if waited > BUSY_STACK_SECONDS:
            break
        if waited > STACK_SECONDS and not any(process_state(pids[rank]).runnable for rank in missing):
            break
        time.sleep(0.02)
        for rank in missing:
            path = stack_file(folder, rank)
            text = path.read_bytes()[sizes[rank] :].decode(errors="replace") if path.exists() else ""
            if "_run_module_as_main" in text or "\n  ...\n" in text:  # the last frame, or the hundredth
                stacks[rank] = [
                    (frame["file"], int(frame["line"]), frame["function"]) for frame in _FRAME.finditer(text)
                ]
    return stacks


def _answers(pid: int) -> bool:
    """Whether the process handles SIGUSR1: without a handler, which a cell may remove, the signal ends it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # another system
        return True
    handled = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return handled is None or bool(int(handled[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def located(stack: Sequence[Frame], source_of: SourceOf) -> tuple[int | None, str, str]:
    """Where a stack is in the cell: number and text of the cell's line, and where that led (`inside`).

    Functions of earlier cells may be on the stack, too: the running cell is the outermost frame that is a
    `<module>` of a cell.
    """
    cells = [
        (source, line, function) for file, line, function in stack if (source := source_of(file)) is not None
    ]
    outermost = next(
        ((source, line) for source, line, function in reversed(cells) if function == "<module>"), None
    )
    number, code = None, ""
    if outermost:
        source, line = outermost
        number, code = line + source.lines_above, _line(*outermost) + source.remark
    inside = ""
    if cells and (cells[0][0], cells[0][1]) != outermost:
        inside = f"{_line(cells[0][0], cells[0][1])} in {cells[0][2]}"
    elif not cells and stack:
        file, line, function = stack[0]
        inside = f"{linecache.getline(file, line).strip()} in {function}"
        if function == "select":  # the rank's event loop
            inside = AWAITS
    return number, code, inside


def named(recorded: Call | None, from_stack: Call | None) -> Call | None:
    """The call that is recorded, under the name that the stack has for it if it is a library's."""
    if recorded is None or from_stack is None or not recorded.in_library:
        return recorded or from_stack
    return replace(from_stack, number=recorded.number, interruptible=False)


def torch_call(stack: Sequence[Frame], *, asleep: bool) -> Call | None:
    """The call of torch.distributed that a rank is in, None when it is in none.

    The backend torch_mpi4py waits in Python. Another one, such as Gloo, waits in C++ and sleeps, below a
    function of torch.distributed or below a backward pass in which DistributedDataParallel sums gradients.
    """
    public = [
        function for file, _, function in stack if file.endswith(_C10D) and not function.startswith("_")
    ]
    backend = [
        _OF_BACKEND.get((Path(file).name, function), function)
        for file, _, function in stack
        if Path(file).parent.name == "torch_mpi4py"
    ]
    if backend:
        return Call(f"{OF_TORCH}.{(public or backend)[-1]}", None, None, None, 0)
    if not stack or not asleep:
        return None
    file, _, function = stack[0]
    if file.endswith(_C10D) and public:
        return Call(f"{OF_TORCH}.{public[-1]}", None, None, None, 0, interruptible=True)
    if function == "_engine_run_backward":
        return Call(f"{OF_TORCH} in backward", None, None, None, 0, interruptible=True)
    return None


def _line(source: Source, number: int) -> str:
    return source.lines[number - 1].strip() if 0 < number <= len(source.lines) else ""


def kind_of(in_a_call: bool, stack: Sequence[Frame], code: str) -> Kind:
    """Whether a rank waits or computes, from its recorded call and the line `code` that it is in."""
    names = set(all_waits_in(code))
    if stack and stack[0][2] not in IN_THREADING:
        names -= THREAD_WAITS
    return "waiting" if in_a_call or names else "computing"
