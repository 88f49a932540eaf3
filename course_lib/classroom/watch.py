"""One running cell, watched until it ends: well, with errors, or with a report of who waited for what.

The watch steps in when a rank raised and the others wait inside MPI for it, when all ranks wait and none
moves, when the deadline is over, when a process died, and when the learner interrupts. Then it writes down
what every rank was doing and frees the ranks: by an interrupt where Python can hear it, otherwise by
replacing the cluster.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Protocol

from ipyparallel import error
from IPython.display import display

from course_lib.classroom.cells import Cell
from course_lib.classroom.errors import ClusterError, HangError
from course_lib.classroom.hang import RankState, observe, report, request_stacks
from course_lib.classroom.output import LiveOutput, clip
from course_lib.comm.recorder import read_call

TICK_SECONDS = 0.02
GRACE_SECONDS = 1.0  # after a rank raised, for the others to end by themselves
STANDSTILL_SECONDS = 10.0  # all ranks inside MPI and none moves
INTERRUPT_SECONDS = 1.0
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(  # of IPython's traceback: "Cell In[3], line 4, in f()" or "File /path/to.py:12, in f(x)"
    r"^(?:Cell In\[(?P<cell>\d+)\]|File (?P<file>\S+?)(?::(?P<line>\d+))?), ?(?:line (?P<at>\d+)|in )",
    re.MULTILINE,
)


class RanksRaised(error.CompositeError):
    """Some ranks raised, all ended the cell: each different error once, with its cell line."""

    def __init__(self, original: error.CompositeError, text: str) -> None:
        super().__init__(original.msg, original.elist)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def render_traceback(self, excid: Any = None) -> list[str]:
        """The report instead of one full traceback a rank."""
        return self.text.splitlines()


class Guard(Protocol):
    """What a watch asks of the magics that run it."""

    cluster: Any

    def heal(self) -> str:
        """Replace the cluster; return a sentence on what that lost."""
        ...

    def lines_of(self, file: str) -> Sequence[str] | None:
        """The lines of the cell that the engines call `file`."""
        ...


class Watch:
    """One running cell: shows its output, and ends it when it does not end by itself."""

    def __init__(
        self, magics: Guard, result: Any, cell: Cell, timeout: float, live: bool, groupby: str
    ) -> None:
        self.magics, self.cluster, self.result, self.cell = magics, magics.cluster, result, cell
        self.parts = dict(zip(result._targets, result.split(), strict=True))  # rank → its own result
        self.timeout, self.groupby = timeout, groupby
        self.output = LiveOutput(result, list(self.parts)) if live else None
        self.elapsed = 0.0
        self.raised_at: float | None = None
        self.still_since = 0.0
        self.last_calls: tuple[Any, ...] = ()

    def run(self) -> None:
        """Return when all ranks ended the cell well; raise RanksRaised or HangError otherwise."""
        try:
            reason = self._wait()
        except KeyboardInterrupt:
            reason = f"Interrupted after {self.elapsed:.0f} s."
        if reason:
            self._give_up(reason)
        self.result.wait_for_output(1)
        self._show_output()
        try:
            replies = self.result.get()
        except error.CompositeError as problem:
            raise RanksRaised(problem, _errors(self._ended_states())) from None
        if self.output:
            for reply in replies:
                if reply.execute_result:
                    display(reply)

    def _wait(self) -> str:
        """Wait for the ranks; return why the cell must be ended, or "" when it has ended."""
        last = time.monotonic()
        while not self.result.wait(TICK_SECONDS):
            now = time.monotonic()
            self.elapsed += min(now - last, 1.0)  # a laptop that slept was not computing
            last = now
            if self.output:
                self.output.update()
                self.output.status(self.elapsed, self._status)
            if reason := self._reason_to_stop():
                return reason
        return ""

    def _reason_to_stop(self) -> str:
        try:
            self.cluster.check_alive()
        except ClusterError as death:
            return "A rank died." if _deaths(self.cluster.last_words()) else str(death)
        if self.elapsed > self.timeout:
            return f"Not done after {self.timeout:g} s (to allow more: %%px --timeout {5 * self.timeout:g})."
        calls = tuple(read_call(self.cluster.folder, rank) for rank in self._unfinished())
        if not all(calls) or calls != self.last_calls:
            self.still_since, self.last_calls = self.elapsed, calls
        standing = self.elapsed - self.still_since
        if self.raised_at is None and any(self._failed(rank) for rank in self.parts):
            self.raised_at = self.elapsed
        if self.raised_at is not None and standing > GRACE_SECONDS < self.elapsed - self.raised_at:
            return "A rank raised an error while others wait for it."
        if standing > STANDSTILL_SECONDS:
            return f"Nobody has moved for {STANDSTILL_SECONDS:.0f} s: no rank can go on."
        return ""

    def _give_up(self, reason: str) -> None:
        states = self._states()
        text = f"{reason}\n\n{report(states)}\n"
        self._free(states)
        healed = "The ranks are free again; their variables are as the cell left them."
        if self._unfinished() or not self.cluster.alive:
            with _uninterrupted():
                healed = self.magics.heal()
        self._show_output(wait=False)
        raise HangError(f"{text}\n{healed}")

    def _free(self, states: Sequence[RankState]) -> None:
        """Interrupt the ranks; this frees those that run Python, not those inside MPI."""
        if any(state.kind in ("waiting", "gone") for state in states):
            return
        for rank in self._unfinished():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.cluster.facts[rank].pid, signal.SIGINT)
        self.result.wait(INTERRUPT_SECONDS)

    def _unfinished(self) -> list[int]:
        return [rank for rank, part in self.parts.items() if not part.ready()]

    def _failed(self, rank: int) -> bool:
        return self.parts[rank].ready() and not self.parts[rank].successful()

    def _status(self) -> str:
        words = []
        for rank in self._unfinished():
            call = read_call(self.cluster.folder, rank)
            words.append(f"rank {rank} {f'waiting in {call}' if call else 'computing'}")
        return " · ".join(words)

    # ---------------------------------------------------------------- what everyone is doing

    def _states(self) -> list[RankState]:
        dead = _deaths(self.cluster.last_words())
        pids = {rank: self.cluster.facts[rank].pid for rank in self._unfinished() if rank not in dead}
        stacks = request_stacks(self.cluster.folder, pids)
        states = self._ended_states()
        for rank in self.parts:
            if rank in dead:
                states[rank] = RankState(rank, "gone", error=dead[rank])
            elif rank not in states:
                seen = observe(self.cluster.folder, rank, stacks.get(rank, []), self.magics.lines_of)
                states[rank] = _as_numbered(seen, self.cell)
        return [states[rank] for rank in sorted(states)]

    def _ended_states(self) -> dict[int, RankState]:
        states = {}
        for rank, part in self.parts.items():
            if self._failed(rank):
                states[rank] = _raised(rank, part.exception(), self.cell)
            elif part.ready():
                states[rank] = RankState(rank, "finished")
        return states

    def _show_output(self, wait: bool = True) -> None:
        if self.output:
            self.output.update(final=True)
        elif wait:
            with contextlib.suppress(error.CompositeError):
                self.result.display_outputs(self.groupby)
        else:
            for rank, text in zip(self.parts, self.result["stdout"], strict=True):
                if text:
                    print(f"[stdout:{rank}] {clip(text)}", end="" if text.endswith("\n") else "\n")


# -------------------------------------------------------------------- small words


def _raised(rank: int, problem: Any, cell: Cell) -> RankState:
    if not isinstance(problem, error.RemoteError):
        return RankState(rank, "raised", error=f"raised {problem}")
    message = (problem.evalue or "").strip().splitlines()
    text = f"raised {problem.ename}" + (f": {message[0]}" if message else "")
    frames = list(_FRAME.finditer(_ANSI.sub("", str(problem.traceback))))
    if not frames or not frames[0]["cell"]:
        return RankState(rank, "raised", error=text)
    first, last = frames[0], frames[-1]
    number, code = _numbered_line(cell, first)
    inside = ""
    if last["file"]:
        inside = f"{PurePath(last['file']).name}, line {last['line'] or last['at']}"
    elif last["cell"] == first["cell"] and last["at"] != first["at"]:
        inside = "line {}: {}".format(*_numbered_line(cell, last))
    return RankState(rank, "raised", error=text, line=number, code=code, inside=inside)


def _numbered_line(cell: Cell, frame: re.Match[str]) -> tuple[int, str]:
    number = int(frame["at"])
    lines = cell.text.splitlines()
    return number + cell.lines_above, lines[number - 1].strip() if number <= len(lines) else ""


def _as_numbered(state: RankState, cell: Cell) -> RankState:
    if state.line is None:
        return state
    return RankState(
        state.rank,
        state.kind,
        state.call,
        state.error,
        state.line + cell.lines_above,
        state.code,
        state.inside,
    )


def _errors(states: dict[int, RankState]) -> str:
    """Each different error once, with the ranks that raised it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "raised":
            groups.setdefault((state.error, state.where()), []).append(rank)
    lines = []
    for (text, where), ranks in groups.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        lines.append(f"{who} {text}" + (f"\n    {where}" if where else ""))
    return "\n".join(lines)


_DEATH = re.compile(r"rank (\d+) .*?exited on signal (\d+)")


def _deaths(log: str) -> dict[int, str]:
    """Ranks that mpiexec reports as killed, from its last words."""
    words = {"9": "was killed (signal 9: by hand, or because memory ran out)", "11": "crashed (signal 11)"}
    return {
        int(rank): words.get(number, f"was ended by signal {number}")
        for rank, number in _DEATH.findall(" ".join(log.split()))
    }


@contextlib.contextmanager
def _uninterrupted() -> Any:
    """A second interrupt while the cluster is being replaced would leave half of one."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
