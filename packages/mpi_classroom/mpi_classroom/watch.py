"""When to step in: the watch over one running cell, a state machine that is handed snapshot after snapshot.

                                   ┌─ a rank died or is inside MPI ───────────────────────▶ heal
    watching ──▶ look closer ──────┤
       │                           └─ all run Python ─▶ interrupt ─▶ waiting ┬─ in vain ──▶ heal
       │                                                                     └─ all ended ▶ end
       └─ all ranks ended the cell ─▶ end, or heal when they are out of step

It steps in when a rank raised and the others wait inside MPI for it, when all ranks wait and none moves, when
the deadline is over, when a rank died, and when the learner interrupts. It has no clock of its own and knows
no process and no file: `observer.py` makes the snapshots, `running_cell.py` does what each `Step` says.

Why a rank must be in a *recorded* call to count as waiting. A wait that is known only by its source line,
such as `intercomm.Disconnect()` or `future.result()`, ends at the deadline and not sooner, because no
snapshot can tell it safely from work. Open MPI polls while it waits, so a rank that waits inside MPI uses CPU
time like one that computes. A rank that uses none sleeps: in `time.sleep`, in a download, in
`subprocess.run`, on a lock that another thread holds, and each of these may end by itself. Nor is the line
proof: `f(x).Free()` may be computing `f(x)`. So the remedy for such a wait is to record the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mpi_classroom import steps
from mpi_classroom.cause import report
from mpi_classroom.recording.calls import Counts
from mpi_classroom.snapshot import RankState, Snapshot

GRACE_SECONDS = 1.0  # after a rank raised, for the others to end by themselves
STANDSTILL_SECONDS = 10.0  # all ranks inside MPI and none moves
INTERRUPT_SECONDS = 1.0  # for the ranks to end after an interrupt
BUSY_INTERRUPT_SECONDS = 4.0  # the same, while one of them still runs
STATUS_SECONDS = 3.0  # from then on, once a second: who waits for what
CPU_SLICE_SECONDS = 0.03  # the clock of processes ticks every 0.01 s


@dataclass(frozen=True, slots=True)
class Step:
    """What the driver does next.

    "go on": nothing. "show": show `words` as the status line. "look closer": hand in a snapshot with source
    lines. "interrupt": interrupt the ranks that have not ended. "heal": replace the cluster and report
    `words`. "end": the cell has ended; with `words`, after an interrupt, and they are the report.
    """

    do: Literal["go on", "show", "look closer", "interrupt", "heal", "end"]
    words: str = ""


GO_ON = Step("go on")


class Watch:
    """Watches one cell that may take `timeout` seconds; `step` says what to do, snapshot after snapshot.

    `before` counts the collectives and messages of every rank before the cell; without it they are not
    compared.
    """

    def __init__(self, timeout: float, before: Mapping[int, Counts]) -> None:
        self.timeout, self.before = timeout, before
        self.state: Literal["watching", "looking closer", "interrupted"] = "watching"
        self.reason = self.report = ""
        self.cause = ""  # where it is known from elsewhere than the states of the ranks
        self.raised_at: float | None = None
        self.interrupted_at = 0.0
        self.next_status = STATUS_SECONDS
        self.cpu_shares = CpuShares()

    def step(self, now: Snapshot) -> Step:
        """What to do at this snapshot."""
        if self.state == "interrupted":
            return self._after_interrupt(now)
        if now.ended and (self.state == "watching" or not now.down):
            return self._all_ended(now)
        if self.state == "looking closer":
            return self._step_in(now)
        if reason := self._reason_to_stop(now):
            return self._look_closer(reason)
        if now.seconds >= self.next_status:
            self.next_status += 1.0
            return Step("show", f"{now.seconds:.0f} s · {status_line(now)}")
        return GO_ON

    def interrupted(self, seconds: float) -> Step:
        """The same when the learner interrupts, `seconds` after the cell began."""
        return self._look_closer(f"Interrupted after {seconds:.0f} s." if seconds > 0.5 else "Interrupted.")

    # ---------------------------------------------------------------- watching

    def _reason_to_stop(self, now: Snapshot) -> str:
        if now.down:
            if now.died:
                return "A rank died."
            self.cause = "a part of the cluster was ended or removed, by the cell or by somebody else."
            return now.down
        if now.seconds > self.timeout:
            return f"Not done after {self.timeout:g} s (to allow more: %%px --timeout {5 * self.timeout:g})."
        if self.raised_at is None and any(state.kind == "raised" for state in now.ranks):
            self.raised_at = now.seconds
        still = standstill(now.busy, now.seconds)
        if still < GRACE_SECONDS / 2:
            self.cpu_shares.restart()
        elif self.cpu_shares.starved(now.busy):
            return ""  # a rank that got no CPU time since then has had no chance to move: wait on
        if self.raised_at is not None and min(still, now.seconds - self.raised_at) > GRACE_SECONDS:
            return "A rank raised an error while others wait for it."
        if still > STANDSTILL_SECONDS:
            return f"Nobody has moved for {STANDSTILL_SECONDS:.0f} s: no rank can go on."
        return ""

    # ---------------------------------------------------------------- stepping in

    def _look_closer(self, reason: str) -> Step:
        self.state, self.reason = "looking closer", reason
        return Step("look closer")

    def _step_in(self, now: Snapshot) -> Step:
        self.report = f"{self.reason}\n\n{report(now.ranks, self.cause)}\n"
        if now.down or any(state.kind == "gone" or state.call is not None for state in now.ranks):
            return Step("heal", self.report)  # an interrupt does not reach a rank inside MPI
        self.state, self.interrupted_at = "interrupted", now.seconds
        return Step("interrupt")

    def _after_interrupt(self, now: Snapshot) -> Step:
        waited = now.seconds - self.interrupted_at
        if now.ended and not now.down and not self._out_of_step(now):
            return Step("end", self.report)
        if now.ended or now.down or waited > BUSY_INTERRUPT_SECONDS:
            return Step("heal", self.report)
        if waited > INTERRUPT_SECONDS and not any(state.runnable for state in now.ranks):
            return Step("heal", self.report)
        return GO_ON

    # ---------------------------------------------------------------- ended

    def _all_ended(self, now: Snapshot) -> Step:
        if not self._out_of_step(now):
            return Step("end")
        after = {state.rank: state.counts for state in now.ranks}
        return Step("heal", f"{steps.report(now.ranks, self.before, after)}\n")

    def _out_of_step(self, now: Snapshot) -> bool:
        """Whether the ranks did not all make the same collective calls in this cell, as far as is known."""
        after = {state.rank: state.counts for state in now.ranks}
        return not now.background and bool(self.before) and steps.out_of_step(self.before, after)


def standstill(busy: Sequence[RankState], seconds: float) -> float:
    """For how many seconds all ranks in `busy` have been in the calls they are in; 0 if one is in none.

    A Call carries its number, so making the same call again is a move.
    """
    if not busy or any(state.call is None for state in busy):
        return 0.0
    return seconds - max(state.since for state in busy)


def status_line(now: Snapshot) -> str:
    """Who waits for what, on one line: `rank 0 computing · rank 1 waiting in Barrier`."""
    words = {"gone": "gone", "stopped": "stopped"}
    return " · ".join(
        f"rank {state.rank} "
        + (f"waiting in {state.call}" if state.call else words.get(state.kind, "computing"))
        for state in now.ranks
        if not state.ended
    )


class CpuShares:
    """Whether ranks got CPU time since `restart` was called last; thirty ranks may share two cores."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}

    def restart(self) -> None:
        """Count from here on."""
        self._used = {}

    def starved(self, states: Sequence[RankState]) -> bool:
        """Whether one of the ranks is stopped, or wants a CPU and hardly got one since its first look."""
        found = False
        for state in states:
            if state.cpu_seconds is None:
                continue
            used = state.cpu_seconds - self._used.setdefault(state.rank, state.cpu_seconds)
            found = found or state.kind == "stopped"
            found = found or (state.runnable and used < CPU_SLICE_SECONDS)
        return found
