"""When to intervene: the watch over one running cell of a notebook, which all ranks run, as `%%px` does.

A state machine that is handed snapshot after snapshot:

    watching ──▶ looking closer ───┬─ a rank has moved meanwhile ─▶ watching
       │            │              ├─ the cluster is down, a rank died or is inside MPI ───────▶ heal
       │            │              └─ all run Python ─▶ interrupt sent ┬─ in vain, out of step ▶ heal
       │            │                                                  └─ all ended ───────────▶ end
       └────────────┴─ all ranks ended the cell ─▶ end, or heal when they are out of step

It intervenes when a rank raised and the others wait inside MPI for it, when all ranks wait and none moves,
when the deadline is over, when a rank died or the cluster is down, and when the learner interrupts. To heal
is to replace the cluster. The watch has no clock of its own and knows no process and no file: `observer.py`
makes the snapshots, and the driver, `running_cell.py`, does what each `Decision` says. `cause.report` makes
the table of the ranks and names the likely cause; `steps.out_of_step` says whether some ranks made more
collective calls in this cell than others.

In a `Snapshot`, `ranks` run the cell; `busy` are those that have not ended it, and those that run an earlier
cell in the background. `down` says why the cluster no longer runs; `died`, that a rank is known to be dead,
sometimes later than `down`. A rank is in `call` since the second `since`. One that came to it just before the
close look still moves: what it waits for at that moment is no cause.

A rank counts as waiting only while it is in a *recorded* call. Our wrappers of mpi4py's blocking calls
(`recording/`) note it on entry and erase the note on return; a library whose waits are not MPI calls can
report them by MPI_Pcontrol, as torch_mpi4py does. Only the main thread is seen. Any other wait, such as
`intercomm.Disconnect()`, `future.result()` or an all-reduce over Gloo, ends at the deadline and not sooner:
no snapshot can tell it safely from work. Open MPI polls while it waits, so a rank inside MPI uses as much CPU
time as one that computes, and a rank that uses none may be in a sleep or a download, which end by themselves.
The source line is no proof: `f(x).Free()` may be computing `f(x)`. The remedy is to record the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mpi_classroom import steps
from mpi_classroom.cause import likely_cause, report
from mpi_classroom.recording.calls import Counts
from mpi_classroom.snapshot import RankState, Snapshot

GRACE_SECONDS = 1.0  # after a rank raised, for the others to end by themselves
MOVING_SECONDS = GRACE_SECONDS / 2  # a rank that has been in its call for less still moves
STANDSTILL_SECONDS = 10.0  # all ranks inside MPI and none moves
INTERRUPT_SECONDS = 1.0  # for the ranks to end after an interrupt
BUSY_INTERRUPT_SECONDS = 4.0  # the same, while one of them still runs
STARVED_INTERRUPT_SECONDS = 30.0  # the same, while one that wants to run has had less CPU time than the next:
INTERRUPT_CPU_SECONDS = 0.5  # enough CPU time for a rank to end after an interrupt
STATUS_SECONDS = 3.0  # from then on, once a second: who waits for what
CPU_SLICE_SECONDS = 0.03  # the clock of processes ticks every 0.01 s
STILL_MOVES = "none that is known: a rank was still moving, as in a long or endless loop of calls."
REMOVED = "a part of the cluster was ended or removed, by the cell or by somebody else."
MOVED_BYTES = 64 * 2**10  # more than a waiting rank moves for the notebook's own connections


@dataclass(frozen=True, slots=True)
class Decision:
    """What `running_cell.py` does next.

    "go on": nothing. "show": show `words` as the status line. "look closer": hand in a snapshot with source
    lines. "interrupt": interrupt the ranks that have not ended. "heal": replace the cluster and report
    `words`. "end": the cell has ended; `words` is the report if it was interrupted or its ranks reduced with
    different operators, otherwise it is empty.
    """

    do: Literal["go on", "show", "look closer", "interrupt", "heal", "end"]
    words: str = ""


GO_ON = Decision("go on")


class Watch:
    """Watches one cell that may take `timeout` seconds; `decide` says what to do, snapshot after snapshot.

    `before` counts the collectives of every rank that runs the cell, before the cell; if it is empty, they
    are not compared. `everyone`: all ranks of the world run it.
    """

    def __init__(self, timeout: float, before: Mapping[int, Counts], everyone: bool = True) -> None:
        self.timeout, self.before, self.everyone = timeout, before, everyone
        self.state: Literal["watching", "looking closer", "interrupt sent"] = "watching"
        self.reason = self.report = ""
        self.cause = ""  # the cause, if the states of the ranks do not show it
        # The calls of the busy ranks, when the reason is that none moves: a move takes that reason back.
        self.calls_at_standstill: dict[int, int | None] = {}
        self.raised_at: float | None = None
        self.interrupted_at = 0.0
        self.next_status = STATUS_SECONDS
        self.cpu_shares = CpuShares()
        self.traffic = Traffic()

    def decide(self, now: Snapshot) -> Decision:
        """What to do at this snapshot."""
        if self.state == "interrupt sent":
            return self._after_interrupt(now)
        # When all have ended, the next cell reports that the cluster is down, except during a close look.
        if now.ended and (self.state == "watching" or not now.down):
            return self._all_ended(now)
        if self.state == "looking closer":
            return self._intervene(now)
        if reason := self._reason_to_stop(now):
            return self._look_closer(reason)
        if now.seconds >= self.next_status:
            self.next_status += 1.0
            return Decision("show", f"{now.seconds:.0f} s · {status_line(now)}")
        return GO_ON

    def learner_interrupts(self, seconds: float) -> Decision:
        """What to do when the learner interrupts. From the close look on, the driver allows no interrupt."""
        self.calls_at_standstill = {}  # a move does not take an interrupt back
        return self._look_closer(f"Interrupted after {seconds:.0f} s." if seconds > 0.5 else "Interrupted.")

    # ---------------------------------------------------------------- watching

    def _reason_to_stop(self, now: Snapshot) -> str:
        if now.died:
            return "A rank died."
        if now.down:
            self.cause = REMOVED
            return now.down
        if now.seconds > self.timeout:
            return f"Not done after {self.timeout:g} s (to allow more: %%px --timeout {5 * self.timeout:g})."
        if self.raised_at is None and any(state.kind == "raised" for state in now.ranks):
            self.raised_at = now.seconds
        still = min(standstill(now.busy, now.seconds), self.traffic.quiet(now.busy, now.seconds))
        # CPU time counts from half a grace period after the last move: so it leaves out the work before the
        # call, and is known when the grace period is over.
        if still < MOVING_SECONDS:
            self.cpu_shares.restart()
        elif self.cpu_shares.starved(now.busy):
            return ""  # a rank that got no CPU time since then has had no chance to move: wait on
        since_raise = 0.0 if self.raised_at is None else now.seconds - self.raised_at
        if still <= STANDSTILL_SECONDS and min(still, since_raise) <= GRACE_SECONDS:
            return ""
        self.calls_at_standstill = calls_of(now)
        if self.raised_at is not None:
            return "A rank raised an error while others wait for it."
        return f"Nobody has moved for {STANDSTILL_SECONDS:.0f} s: no rank can go on."

    # ---------------------------------------------------------------- intervening

    def _look_closer(self, reason: str) -> Decision:
        self.state, self.reason = "looking closer", reason
        return Decision("look closer")

    def _intervene(self, now: Snapshot) -> Decision:
        """What to do after the close look `now`, which took up to 3 s."""
        moved = self.calls_at_standstill and calls_of(now) != self.calls_at_standstill
        if moved and not (now.down or now.died):
            self.state, self.reason, self.calls_at_standstill = "watching", "", {}
            self.cpu_shares.restart()
            return GO_ON
        if now.died:  # perhaps known only since this look
            self.cause = ""
        elif all(state.kind == "finished" for state in now.ranks):  # so the cluster is down, see `decide`
            self.cause = REMOVED
        elif not now.down:
            bytes_move = self.traffic.quiet(now.busy, now.seconds) < MOVING_SECONDS
            moving = now.busy if bytes_move else still_moving(now.busy, now.seconds)
            self.cause = cause_while_moving(now.ranks, moving)
        self.report = f"{self.reason}\n\n{report(now.ranks, self.cause)}\n"
        # An interrupt reaches neither a rank inside MPI nor a thread that it waits for.
        if now.down or any(
            state.kind == "gone"
            or (state.call is not None and not state.call.interruptible)
            or state.waits_for_thread
            for state in now.ranks
        ):
            return Decision("heal", self.report)
        self.state, self.interrupted_at = "interrupt sent", now.seconds
        self.cpu_shares.restart()
        return Decision("interrupt")

    def _after_interrupt(self, now: Snapshot) -> Decision:
        if now.ended or now.down:
            return Decision("heal" if now.down or self._out_of_step(now) else "end", self.report)
        starved = self.cpu_shares.starved(now.busy, INTERRUPT_CPU_SECONDS)
        allowed = STARVED_INTERRUPT_SECONDS if starved else BUSY_INTERRUPT_SECONDS
        if not any(state.runnable for state in now.ranks):
            allowed = INTERRUPT_SECONDS
        return Decision("heal", self.report) if now.seconds - self.interrupted_at > allowed else GO_ON

    # ---------------------------------------------------------------- ended

    def _all_ended(self, now: Snapshot) -> Decision:
        after = {state.rank: state.counts for state in now.ranks}
        out_of_step = self._out_of_step(now)
        if out_of_step or (self._compared(now) and steps.operators_differ(self.before, after, self.everyone)):
            words = f"{steps.report(now.ranks, self.before, after, self.everyone)}\n"
            return Decision("heal" if out_of_step else "end", words)
        return Decision("end")

    def _out_of_step(self, now: Snapshot) -> bool:
        """Whether the ranks did not all make the same collective calls in this cell, as far as is known."""
        after = {state.rank: state.counts for state in now.ranks}
        return self._compared(now) and steps.out_of_step(self.before, after, self.everyone)

    def _compared(self, now: Snapshot) -> bool:
        """Whether the counts show this cell's calls alone, and all of them."""
        return not now.background and bool(self.before) and now.counted


def calls_of(now: Snapshot) -> dict[int, int | None]:
    """The calls that the busy ranks are in, by their numbers."""
    return {state.rank: state.call_number for state in now.busy}


def standstill(busy: Sequence[RankState], seconds: float) -> float:
    """For how many seconds all ranks in `busy` have been in the calls they are in; 0 if one is in none.

    `since` begins anew with every call, so making the same call again is a move.
    """
    if not busy or any(state.call is None for state in busy):
        return 0.0
    return seconds - max(state.since for state in busy)


def still_moving(busy: Sequence[RankState], seconds: float) -> list[RankState]:
    """Those in `busy` that have just come to the recorded call that they wait in.

    Nobody knows since when a rank is in a call that only its stack shows; such a call has no number.
    """
    return [
        state
        for state in busy
        if state.kind == "waiting" and state.call_number and seconds - state.since < MOVING_SECONDS
    ]


def cause_while_moving(states: Sequence[RankState], moving: Sequence[RankState]) -> str:
    """The cause if the ranks `moving` still move, "" if there are none or others explain the waiting.

    A rank that computes is the cause; but then, too, the call that another is in for a moment accuses nobody.
    """
    kinds = {state.kind for state in states}
    if not moving or not kinds.isdisjoint(("raised", "gone", "stopped")):
        return ""
    if "computing" not in kinds:
        return STILL_MOVES
    return likely_cause([replace(state, call=None) if state in moving else state for state in states])


def status_line(now: Snapshot) -> str:
    """Who waits for what, on one line: `rank 0 computing · rank 1 waiting in Barrier`."""
    return " · ".join(f"rank {state.rank}{_status(state)}" for state in now.ranks if not state.ended)


def _status(state: RankState) -> str:
    """What a rank does, and of one that is stopped, what lets it go on."""
    if state.silent:
        return f": {state.error}"
    if state.pid is not None:
        there = f" on {state.host}" if state.host else ""
        return f" {state.error}: kill -CONT {state.pid}{there}"
    return f" {state.what() if state.kind == 'waiting' else state.kind}"


class CpuShares:
    """Whether ranks got CPU time since `restart` was called last; thirty ranks may share two cores."""

    def __init__(self) -> None:
        self._at_first_look: dict[int, float] = {}

    def restart(self) -> None:
        """Count from here on."""
        self._at_first_look = {}

    def starved(self, states: Sequence[RankState], enough: float = CPU_SLICE_SECONDS) -> bool:
        """Whether a rank is stopped, or wants a CPU and got less than `enough` s since its first look."""
        found = any(state.kind == "stopped" for state in states)
        for state in states:  # all of them, because each needs its first look
            if state.cpu_seconds is not None:
                used = state.cpu_seconds - self._at_first_look.setdefault(state.rank, state.cpu_seconds)
                found = found or (state.runnable and used < enough)
        return found


class Traffic:
    """Whether waiting ranks move bytes, asked at every snapshot: between hosts, one call may take minutes."""

    def __init__(self) -> None:
        self._at_last_move: dict[int, int] = {}
        self._seconds = 0.0

    def quiet(self, states: Sequence[RankState], seconds: float) -> float:
        """For how many seconds no rank has moved more than MOVED_BYTES since its last such move.

        All seconds of the cell if bytes are not counted, as on one host.
        """
        for state in states:
            if state.moved is None:
                continue
            if state.moved - self._at_last_move.setdefault(state.rank, state.moved) > MOVED_BYTES:
                self._at_last_move[state.rank], self._seconds = state.moved, seconds
        return seconds - self._seconds
