"""One running cell, watched until it ends: well, with errors, or with a report of who waited for what.

The watch steps in when a rank raised and the others wait inside MPI for it, when all ranks wait and none
moves, when the deadline is over, when a process died, and when the learner interrupts. Then it writes down
what every rank was doing and frees the ranks: by an interrupt where Python can hear it, otherwise by
replacing the cluster.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ipyparallel import error
from IPython.display import display

from mpi_classroom import steps, undelivered
from mpi_classroom.awake import Awake, Turns, at_work, condition
from mpi_classroom.cause import report
from mpi_classroom.cells import Cell, hint
from mpi_classroom.engine import unreceived
from mpi_classroom.errors import ClusterError, HangError
from mpi_classroom.hang import ENDED, RankState, observe, request_stacks
from mpi_classroom.output import LiveOutput, clip
from mpi_classroom.raised import RanksRaised, all_raised, raised
from mpi_classroom.recording.calls import Counts, read_call, read_done
from mpi_classroom.steps import out_of_step

TICK_SECONDS = 0.02
GRACE_SECONDS = 1.0  # after a rank raised, for the others to end by themselves
STANDSTILL_SECONDS = 10.0  # all ranks inside MPI and none moves
INTERRUPT_SECONDS = 1.0
PATIENCE = 4  # a rank that still runs Python after an interrupt gets so many times INTERRUPT_SECONDS


class Magics(Protocol):
    """What a watch asks of the magics that run it."""

    cluster: Any
    history: list[Cell]
    earlier_unreceived: bool

    def heal(self) -> str:
        """Replace the cluster; return a sentence on what that lost."""
        ...

    def cell_of(self, file: str) -> Cell | None:
        """The cell that the engines call `file`."""
        ...

    def busy(self) -> set[int]:
        """The ranks that still run a cell in the background."""
        ...


class Watch:
    """One running cell: shows its output, and ends it when it does not end by itself.

    `before` counts the collective calls and messages of every rank before the cell; without it they are not
    compared.
    """

    def __init__(
        self,
        magics: Magics,
        result: Any,
        cell: Cell,
        timeout: float,
        live: bool,
        groupby: str,
        before: Mapping[int, Counts],
    ) -> None:
        self.magics, self.cluster, self.result, self.cell = magics, magics.cluster, result, cell
        self.parts = dict(zip(result._targets, result.split(), strict=True))  # rank → its own result
        self.timeout, self.groupby = timeout, groupby
        self.output = LiveOutput(result, list(self.parts)) if live else None
        self.clock, self.turns = Awake(), Turns()
        self.raised_at: float | None = None
        self.cause = ""
        self.still_since = 0.0
        self.last_calls: tuple[Any, ...] = ()
        self.before = before if len(self.parts) == self.cluster.n and not magics.busy() else {}

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return self.clock.seconds

    def run(self) -> None:
        """Return when all ranks ended the cell well; raise RanksRaised or HangError otherwise."""
        try:
            reason = self._wait()
        except KeyboardInterrupt:
            reason = f"Interrupted after {self.elapsed:.0f} s." if self.elapsed > 0.5 else "Interrupted."
        if reason:
            with _uninterrupted():
                self._give_up(reason)
        self.result.wait_for_output(1)
        self._show_output()
        if problem := self._out_of_step():
            with _uninterrupted():
                raise HangError(f"{problem}\n\n{self._heal()}")
        left = self._left_over(throw_away=any(map(self._failed, self.parts)))
        try:
            replies = self.result.get()
        except error.CompositeError as problem:
            text = all_raised(self._ended_states())
            advice = hint(text, self.cell, self.magics.history)
            raise RanksRaised(problem, "\n".join(filter(None, (text, advice, left)))) from None
        if left:
            print(left)
        if self.output:
            for reply in replies:
                if reply.execute_result:
                    display(reply)

    def _wait(self) -> str:
        """Wait for the ranks; return why the cell must be ended, or "" when it has ended."""
        while not self.result.wait(TICK_SECONDS):
            self.clock.tick()
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
            if self.cluster.deaths():
                return "A rank died."
            self.cause = "a part of the cluster was ended or removed, by the cell or by somebody else."
            return str(death)
        if self.elapsed > self.timeout:
            return f"Not done after {self.timeout:g} s (to allow more: %%px --timeout {5 * self.timeout:g})."
        busy = sorted({*self._unfinished(), *self.magics.busy()})
        calls = tuple(read_call(self.cluster.folder, rank) for rank in busy)
        # A Call carries its count, so making the same call again is a move. A rank whose wait is known only
        # by its source line has no Call: then only the deadline ends the cell.
        if not all(calls) or calls != self.last_calls:
            self.still_since, self.last_calls = self.elapsed, calls
        standing = self.elapsed - self.still_since
        if self.raised_at is None and any(self._failed(rank) for rank in self.parts):
            self.raised_at = self.elapsed
        if standing < GRACE_SECONDS / 2:
            self.turns.restart()
        elif self.turns.starved(self.cluster.facts[rank].pid for rank in busy):
            return ""  # a rank that got no CPU time while standing has had no chance to move: wait on
        if self.raised_at is not None and min(standing, self.elapsed - self.raised_at) > GRACE_SECONDS:
            return "A rank raised an error while others wait for it."
        if standing > STANDSTILL_SECONDS:
            return f"Nobody has moved for {STANDSTILL_SECONDS:.0f} s: no rank can go on."
        return ""

    def _give_up(self, reason: str) -> None:
        states = self._states()
        if not self._unfinished() and self.cluster.alive:
            return  # the last one ended just now
        text = f"{reason}\n\n{report(states, self.cause)}\n"
        self._free(states)
        healed = "The ranks are free again; their variables are as the cell left them."
        if self._unfinished() or not self.cluster.alive or self._out_of_step():
            healed = self._heal()
        elif left := self._left_over(throw_away=True):
            healed = f"{left}\n{healed}"
        self._show_output(wait=False)
        raise HangError(f"{text}\n{healed}")

    def _heal(self) -> str:
        try:
            return self.magics.heal()
        except ClusterError as problem:
            return str(problem)

    def _out_of_step(self) -> str:
        """A report when the ranks did not all make the same collective calls in this cell, else ""."""
        after = undelivered.counts(self.cluster.folder, list(self.before))
        if self.magics.busy() or not out_of_step(self.before, after):
            return ""
        states = self._ended_states()
        return steps.report([states[rank] for rank in sorted(states)], self.before, after)

    def _left_over(self, throw_away: bool) -> str:
        """What to say of messages that nobody received; `throw_away` removes them if they are this cell's."""
        after = undelivered.counts(self.cluster.folder, list(self.before))
        if self.magics.busy() or not undelivered.moved(self.before, after):
            return ""
        if not undelivered.outstanding(after):
            self.magics.earlier_unreceived = False
            return ""
        throw_away = throw_away and not self.magics.earlier_unreceived
        try:
            answers = self.cluster.ask(unreceived, throw_away)
        except ClusterError:  # the next cell will say why
            return ""
        messages = sorted(message for messages in answers for message in messages)
        self.magics.earlier_unreceived = bool(messages) and not throw_away
        words = undelivered.thrown_away if throw_away else undelivered.note
        return words(messages) if messages else ""

    def _free(self, states: Sequence[RankState]) -> None:
        """Interrupt the ranks; this frees those that run Python, not those inside MPI."""
        if any(state.kind == "gone" or state.call is not None for state in states):
            return  # the cluster must be replaced anyway
        for rank in self._unfinished():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.cluster.facts[rank].pid, signal.SIGINT)
        clock = Awake()
        while not self.result.wait(TICK_SECONDS) and clock.tick() < INTERRUPT_SECONDS * PATIENCE:
            pids = [self.cluster.facts[rank].pid for rank in self._unfinished()]
            if clock.seconds > INTERRUPT_SECONDS and not any(map(at_work, pids)):
                break

    def _unfinished(self) -> list[int]:
        return [rank for rank, part in self.parts.items() if not part.ready()]

    def _failed(self, rank: int) -> bool:
        return self.parts[rank].ready() and not self.parts[rank].successful()

    def _status(self) -> str:
        words = []
        for rank in self._unfinished():
            call = read_call(self.cluster.folder, rank)
            doing = f"waiting in {call}" if call else condition(self.cluster.facts[rank].pid) or "computing"
            words.append(f"rank {rank} {doing}")
        return " · ".join(words)

    # ---------------------------------------------------------------- what everyone is doing

    def _states(self) -> list[RankState]:
        dead = self.cluster.deaths()
        pids = {rank: self.cluster.facts[rank].pid for rank in self._unfinished() if rank not in dead}
        stacks = request_stacks(self.cluster.folder, pids)
        states = self._ended_states()
        for rank in self.parts:
            if rank in dead:
                states[rank] = RankState(rank, "gone", error=dead[rank])
            elif rank not in states:
                states[rank] = self._look_at(rank, stacks.get(rank, []))
        return [states[rank] for rank in sorted(states)]

    def _look_at(self, rank: int, stack: Sequence[tuple[str, int, str]]) -> RankState:
        """What an unfinished rank is doing, its line numbered as in the notebook."""
        pid = self.cluster.facts[rank].pid
        if (state := condition(pid)) == "gone":
            return RankState(rank, "gone", error=ENDED)
        if state == "stopped":
            return RankState(rank, "stopped", error=f"is stopped (process {pid})")
        seen = observe(self.cluster.folder, rank, stack, self._lines_of)
        if seen.line is None:
            return seen
        top = next(
            file for file, _, function in reversed(stack) if function == "<module>" and self._lines_of(file)
        )
        cell = self.magics.cell_of(top) or self.cell
        earlier = "" if cell.text == self.cell.text else f"  (of cell {cell.number}, still running)"
        return replace(seen, line=seen.line + cell.lines_above, code=seen.code + earlier)

    def _lines_of(self, file: str) -> Sequence[str] | None:
        cell = self.magics.cell_of(file)
        return cell.text.splitlines() if cell else None

    def _ended_states(self) -> dict[int, RankState]:
        states = {}
        for rank, part in self.parts.items():
            if self._failed(rank):
                states[rank] = raised(rank, part.exception(), self.cell)
            elif part.ready():
                states[rank] = RankState(rank, "finished", done=read_done(self.cluster.folder, rank))
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


@contextlib.contextmanager
def _uninterrupted() -> Any:
    """A second interrupt while the cluster is being replaced would leave half of one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted, and may set handlers
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which new ranks would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
