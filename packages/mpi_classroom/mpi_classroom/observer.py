"""The observer makes the snapshots, from what the hosts say of their ranks (see `host`).

The call that a rank is in comes from the small file that `recording/record.py` writes on that rank; the
source line from the Python stack that the rank writes when it receives SIGUSR1, even while it is blocked
inside MPI; CPU time and condition from the operating system. A stack costs the rank a signal, so it is asked
for in a close look only.
"""

import linecache
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mpi_classroom.awake import Awake
from mpi_classroom.host import FRESH_SECONDS, Host, Look
from mpi_classroom.recording.calls import (
    ALIKE,
    OF_TORCH,
    POINT_TO_POINT,
    ROOTED,
    Call,
    Counts,
    decode,
)
from mpi_classroom.snapshot import AWAITS, THREAD_WAITS, Death, Kind, RankState, Snapshot

SILENT_SECONDS = 1.0  # what is known of a host is no longer true then
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
# Calls that may wait and that the recorder may not see: known only by their source line.
_WAITS = re.compile(
    r"\b((?:[Ww]ait(?:all|any|some)?|Spawn|Merge|Fence|Free|Disconnect|Create_intercomm)(?=\s*\()"
    r"|(?:result|get|join)(?=\(\)))"
)
# Calls that are recorded, but not on an intercommunicator.
_CALL = re.compile(rf"\.({'|'.join((*POINT_TO_POINT, *ROOTED, *ALIKE))})\s*\(")

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


class Observer:
    """Looks at ranks; `hosts` has the host of each, and `source_of` finds a cell's lines."""

    def __init__(self, hosts: Mapping[int, Host], source_of: SourceOf) -> None:
        self.hosts, self.source_of = hosts, source_of
        self._names = {rank: host.name for rank, host in hosts.items()}
        self._clock = Awake()
        self._seen: dict[int, RankState] = {}

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
        all_ended = set(ended) >= set(ranks)
        states = self._dead(deaths)
        counted = [ended[rank] for rank in ended if rank not in deaths]
        looks = self._looks([state.rank for state in counted], fresh=all_ended, processes=False)
        states |= {state.rank: self._counted(state, looks[state.rank]) for state in counted}
        unknown = [rank for rank in ranks if rank not in states]
        states |= {state.rank: state for state in self.look(unknown, close=close)}
        others = self.look([rank for rank in background if rank not in states])
        seen = tuple(states[rank] for rank in sorted(ranks))
        fresh = all(look.age < FRESH_SECONDS for look in looks.values())
        return Snapshot(self.seconds, seen, tuple(others), down, bool(deaths), all_ended, fresh)

    def look(self, ranks: Iterable[int], *, close: bool = False) -> list[RankState]:
        """The states of `ranks`, none of which has ended the cell; `close` includes their source lines."""
        ranks = list(ranks)
        stacks = self._stacks(ranks) if close else {}
        looks = self._looks(ranks, fresh=close, processes=True)
        seconds = self.seconds  # now, because the stacks may take seconds
        return [self._state(rank, looks[rank], seconds, stacks.get(rank, ())) for rank in ranks]

    def _state(self, rank: int, look: Look, seconds: float, stack: Sequence[Frame]) -> RankState:
        record, process, host = decode(look.record, look.now), look.process, self.hosts[rank]
        line, code, inside = located(stack, self.source_of)
        silent = look.age > SILENT_SECONDS
        call = None if silent else named(record.call, torch_call(stack, asleep=not process.runnable))
        kind, unrecorded = kind_of(call is not None, stack, inside or code)
        error, pid = "", None
        if silent:
            kind, error = "stopped", f"{host.name} has not answered for {look.age:.0f} s"
        elif process.condition == "gone":
            kind, error = "gone", "was ended with the others"
        elif process.condition == "stopped":
            kind, pid = "stopped", host.pids[rank]
            error = f"is stopped (process {pid})"
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
            unrecorded,
            done=record.done,
            since=before.since if before is not None and same_call else seconds,
            counts=record.counts,
            cpu_seconds=process.cpu_seconds,
            runnable=process.runnable,
            silent=silent,
            moved=process.moved,
            host=host.name,
            pid=pid,
        )
        return self._seen[rank]

    def _dead(self, deaths: Mapping[int, Death]) -> dict[int, RankState]:
        """The ranks that died, and how; of a crash inside an MPI call, in which."""
        crashed = [rank for rank, death in deaths.items() if death.how == "crash"]
        crashed = [rank for rank in crashed if rank in self.hosts]  # spawned ranks are not
        looks = self._looks(crashed, fresh=False, processes=False)
        states = {}
        for rank, death in deaths.items():
            call = decode(looks[rank].record, looks[rank].now).call if rank in looks else None
            error = f"{death.words} in {call}" if call else death.words
            states[rank] = RankState(rank, "gone", error=error, death=death, host=self._names.get(rank, ""))
        return states

    def _counted(self, state: RankState, look: Look) -> RankState:
        """A rank that has ended the cell, with what it has done until then."""
        record = decode(look.record, look.now)
        done = record.done if state.kind == "finished" else None
        return replace(state, done=done, counts=record.counts, host=self._names[state.rank])

    def counts(self, ranks: Iterable[int]) -> dict[int, Counts]:
        """What each of `ranks` has begun, sent and received since it was started.

        Empty when a host does not say in time what its ranks have done until now.
        """
        looks = self._looks(ranks, fresh=True, processes=False)
        if any(look.age >= FRESH_SECONDS for look in looks.values()):
            return {}
        return {rank: decode(look.record, look.now).counts for rank, look in looks.items()}

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Interrupt `ranks`: this frees those that run Python, not those inside MPI."""
        for host, its_ranks in self._by_host(ranks).items():
            host.signal(its_ranks, signal.SIGINT)

    # ---------------------------------------------------------------- asking the hosts

    def _by_host(self, ranks: Iterable[int]) -> dict[Host, list[int]]:
        """Each host that has some of `ranks`, and which."""
        groups: dict[Host, list[int]] = {}
        for rank in ranks:
            groups.setdefault(self.hosts[rank], []).append(rank)
        return groups

    def _looks(self, ranks: Iterable[int], *, fresh: bool, processes: bool) -> dict[int, Look]:
        groups = self._by_host(ranks)

        def look(host: Host) -> Mapping[int, Look]:
            return host.look(groups[host], fresh=fresh, processes=processes)

        if fresh and len(groups) > 1:  # each waits for an answer
            with ThreadPoolExecutor(len(groups)) as pool:
                answers = list(pool.map(look, groups))
        else:
            answers = [look(host) for host in groups]
        return {rank: seen for answer in answers for rank, seen in answer.items()}

    def _stacks(self, ranks: Iterable[int]) -> dict[int, list[Frame]]:
        """The Python stacks of those of `ranks` that wrote one, innermost frame first."""
        asked = [host.ask_stacks(its_ranks) for host, its_ranks in self._by_host(ranks).items()]
        return {rank: frames(text) for collect in asked for rank, text in collect().items()}


# -------------------------------------------------------------------- source lines


def frames(text: str) -> list[Frame]:
    """The frames of a stack as Python's fault handler writes it, in the order of the text."""
    return [(frame["file"], int(frame["line"]), frame["function"]) for frame in _FRAME.finditer(text)]


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

    The backend torch_mpi4py waits in Python: its own frame is the innermost one, or waits for a thread. If
    others are above it, it runs a callback of a future, which computes. Another backend, such as Gloo, waits
    in C++ and sleeps, below a function of torch.distributed or below a backward pass in which
    DistributedDataParallel sums gradients.
    """
    public = [
        function for file, _, function in stack if file.endswith(_C10D) and not function.startswith("_")
    ]
    backend = [
        _OF_BACKEND.get((Path(file).name, function), function)
        for file, _, function in stack
        if _of_backend(file)
    ]
    innermost = next((file for file, _, _ in stack if Path(file).name != "threading.py"), "")
    if _of_backend(innermost):
        return Call(f"{OF_TORCH}.{(public or backend)[-1]}", None, None, None, 0)
    if not stack or not asleep:
        return None
    file, _, function = stack[0]
    if file.endswith(_C10D) and public:
        return Call(f"{OF_TORCH}.{public[-1]}", None, None, None, 0, interruptible=True)
    if function == "_engine_run_backward":
        return Call(f"{OF_TORCH} in backward", None, None, None, 0, interruptible=True)
    return None


def _of_backend(file: str) -> bool:
    return Path(file).parent.name == "torch_mpi4py"


def _line(source: Source, number: int) -> str:
    return source.lines[number - 1].strip() if 0 < number <= len(source.lines) else ""


def kind_of(in_a_call: bool, stack: Sequence[Frame], code: str) -> tuple[Kind, tuple[str, ...]]:
    """Whether a rank waits or computes, and `RankState.unrecorded`: from the line `code` that it is in."""
    waits = [found[1] for found in _WAITS.finditer(code)]
    if stack and stack[0][2] not in IN_THREADING:
        waits = [name for name in waits if name not in THREAD_WAITS]
    if in_a_call or waits:
        return "waiting", tuple(waits)
    return "computing", tuple(_CALL.findall(code))
