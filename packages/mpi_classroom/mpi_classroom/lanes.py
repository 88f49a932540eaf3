"""What the ranks did in the last ten seconds of running cells, one lane per rank: snapshots in, lanes out.

    rank 0  ███░░░░░░░  waiting in Send to rank 1, tag 0 · 4 s      sent 0 B
    rank 1  ███░░░░░░░  waiting in Send to rank 0, tag 0 · 4 s      sent 0 B
    Circle of waiting: rank 0 → rank 1 → rank 0.

A lane has one letter per tick of 0.1 s. Each is a sample: what the rank did when it was looked at. So a call
that takes a millisecond is seen only by chance. But of a rank that spends a third of its time in such calls,
a third of the samples are in one. No clock, no process and no widget is known here; `dashboard.py` shows the
lanes.

A rank that is in a call *waits* until every other rank that the call needs has made the matching call: the
other end of the message, or each member of the communicator in a collective. From then on, until it leaves
the call, it *transfers*. Between hosts, a rank whose bytes move while it stays in one call transfers, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mpi_classroom.cause import find_cycle, has_not_completed, is_in
from mpi_classroom.recording.calls import Call, Counts
from mpi_classroom.sentences import listed_ranks
from mpi_classroom.snapshot import NOTHING_COUNTED, RankState, Snapshot
from mpi_classroom.watch import MOVED_BYTES

TICK_SECONDS = 0.1
KEPT = 100  # ticks of a lane: ten seconds
STANDING_SECONDS = 1.0  # who has waited so long is named; ranks that only pass a message on have not
GAP = 3  # blank ticks between two cells; the time between them is left out
IDLE = " "
ANYONE = -1  # as the peer of a receive: MPI.ANY_SOURCE

Doing = Literal["computing", "waiting", "transferring", "finished", "raised", "stopped", "dead", "idle"]
RUNNING: tuple[Doing, ...] = ("computing", "waiting", "transferring", "stopped")
LETTERS: dict[Doing, str] = {doing: doing[0] for doing in get_args(Doing)} | {"idle": IDLE}


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank: `words` say what it is doing, `seconds` how long it has been in the call it is in.

    The rank has sent `sent_bytes` in `messages` point-to-point messages and begun `collectives` since the
    cell began. `ticks` has the letters of the last ten seconds in which cells ran, the oldest first; at first
    there are fewer.
    """

    rank: int
    doing: Doing = "idle"
    words: str = "idle"
    seconds: float = 0.0
    in_circle: bool = False
    sent_bytes: int = 0
    messages: int = 0
    collectives: int = 0
    ticks: str = ""
    host: str = ""

    @property
    def shares(self) -> dict[Doing, float]:
        """The fraction of each activity in the ticks in which the rank ran a cell; empty if none."""
        ticks = {doing: self.ticks.count(LETTERS[doing]) for doing in RUNNING}
        return {doing: count / sum(ticks.values()) for doing, count in ticks.items() if count}


@dataclass(frozen=True, slots=True)
class Frame:
    """All lanes at one moment, `seconds` after the cell began.

    `note` names a circle of waiting, or else a rank that waits for one that has ended the cell; "" if there
    is neither.
    """

    lanes: tuple[Lane, ...]
    seconds: float = 0.0
    note: str = ""


class Lanes:
    """The lanes of `size` ranks: `begin` with every cell, `see` each snapshot; `frame` has the result."""

    def __init__(self, size: int) -> None:
        self.frame = Frame(tuple(Lane(rank) for rank in range(size)))
        self._base: Mapping[int, Counts] = {}
        self._ticks_seen = 0
        self._moved: dict[int, tuple[int | None, int | None]] = {}  # in which call, how many bytes

    def begin(self, counts: Mapping[int, Counts]) -> None:
        """A cell begins on ranks that have done `counts`."""
        self._base, self._ticks_seen, self._moved = counts, 0, {}
        lanes = tuple(
            Lane(lane.rank, ticks=(lane.ticks + IDLE * GAP)[-KEPT:] if lane.ticks else "", host=lane.host)
            for lane in self.frame.lanes
        )
        self.frame = Frame(lanes)

    def see(self, now: Snapshot) -> bool:
        """Take in a snapshot; return whether there is a new frame.

        There is one ten times per second, and when all ranks have ended the cell or one has died.
        """
        passed = int(now.seconds / TICK_SECONDS + 1e-6) + 1 - self._ticks_seen
        if passed < 1 and not now.ended and not now.died:
            return False
        self._ticks_seen += max(0, passed)
        states = (*now.ranks, *now.background)
        by_rank = {state.rank: state for state in states}
        waits = {state.rank: waits_for(state, states) for state in states if state.call is not None}
        moving = {state.rank for state in states if self._moves(state)}
        standing = {
            rank: ranks
            for rank, ranks in waits.items()
            if ranks and rank not in moving and now.seconds - by_rank[rank].since >= STANDING_SECONDS
        }
        circle = find_cycle(standing)
        lanes = []
        for before in self.frame.lanes:
            rank, state, missing = before.rank, by_rank.get(before.rank), waits.get(before.rank)
            doing: Doing = "idle" if state is None else doing_of(state, missing, rank in moving)
            ticks = _ticked(before.ticks, LETTERS[doing], passed)
            if state is None:
                lanes.append(Lane(rank, ticks=ticks, host=before.host))
            else:
                lanes.append(self._lane(state, doing, missing or (), ticks, now.seconds, rank in circle))
        self.frame = Frame(tuple(lanes), now.seconds, _note(circle, standing, by_rank))
        return True

    def _lane(
        self,
        state: RankState,
        doing: Doing,
        missing: tuple[int, ...],
        ticks: str,
        seconds: float,
        in_circle: bool,
    ) -> Lane:
        base, counts = self._base.get(state.rank, NOTHING_COUNTED), state.counts
        return Lane(
            state.rank,
            doing,
            words_of(state, doing, missing),
            max(0.0, seconds - state.since) if state.call is not None else 0.0,
            in_circle,
            max(0, counts.sent_bytes - base.sent_bytes),
            max(0, counts.sent - base.sent - _is_sending(state.call)),
            max(0, _collectives(counts) - _collectives(base)),
            ticks,
            state.host,
        )

    def _moves(self, state: RankState) -> bool:
        """Whether the rank has moved bytes between hosts in the call in which it was seen a tick ago."""
        call, moved = self._moved.get(state.rank, (None, None))
        self._moved[state.rank] = state.call_number, state.moved
        if state.call is None or call != state.call_number or moved is None or state.moved is None:
            return False
        return state.moved - moved > MOVED_BYTES


def _ticked(ticks: str, letter: str, passed: int) -> str:
    """The lane after `passed` more ticks, the last with `letter`.

    In the others nobody looked: they repeat the letter before them.
    """
    if passed < 1:
        return ticks  # within the same tick
    unseen = (ticks[-1:] or letter) * min(KEPT, passed - 1)
    return (ticks + unseen + letter)[-KEPT:]


def _collectives(counts: Counts) -> int:
    return sum(each.calls for each in counts.collectives.values())


# -------------------------------------------------------------------- what a rank is doing, and for whom


def doing_of(state: RankState, missing: tuple[int, ...] | None, moves: bool) -> Doing:
    """What the lane of a rank shows; `missing`: see `waits_for`, None if nothing is known of its call."""
    if state.kind == "gone":
        return "dead"
    if state.kind != "waiting":
        return state.kind
    return "transferring" if moves or (missing == () and _known(state.call)) else "waiting"


def words_of(state: RankState, doing: Doing, missing: Sequence[int]) -> str:
    """What a rank is doing, in which call, and for whom it waits if the call itself does not say so."""
    if doing == "transferring":
        return f"transferring in {state.call}"
    if doing == "dead":
        return f"dead: {state.error}"
    named = state.call is not None and not state.call.collective and state.call.other is None
    if not missing or named:
        return state.what()
    return f"{state.what()} for {listed_ranks(missing)}"


def waits_for(state: RankState, states: Sequence[RankState]) -> tuple[int, ...]:
    """The ranks that have not come to the call in which `state` is; () also if the call does not name them.

    A collective waits for the members that have not begun it; a message waits for its other end.
    """
    call = state.call
    if call is None:
        return ()
    by_rank = {each.rank: each for each in states}
    if call.collective:
        members = [by_rank[rank] for rank in call.on.members or by_rank if rank in by_rank]
        return tuple(each.rank for each in members if has_not_completed(each, call) and not is_in(each, call))
    ends = [rank for rank in dict.fromkeys((call.peer, call.other)) if rank is not None and rank >= 0]
    met = {rank for rank in ends if rank in by_rank and _meets(state.rank, call, rank, by_rank[rank].call)}
    return tuple(rank for rank in ends if rank not in met)


def _is_sending(call: Call | None) -> bool:
    """Whether it is in a call whose message has been counted, and whose bytes have not."""
    if call is None or call.of or call.collective:
        return False
    return call.sends or (call.other is not None and call.other >= 0)


def _known(call: Call | None) -> bool:
    """Whether the call says who its other ends are: all of them have come to it once none is missing."""
    if call is None or call.in_library or call.on_window:
        return False
    if call.collective:
        return True
    ends = [rank for rank in (call.peer, call.other) if rank is not None]
    return any(rank >= 0 for rank in ends) and ANYONE not in ends


def _meets(rank: int, call: Call, other: int, theirs: Call | None) -> bool:
    """Whether `other`, which is in the call `theirs`, is at the other end of `rank`'s message."""
    if theirs is None or theirs.collective or theirs.on_window:
        return False
    plain = call.other is None and theirs.other is None  # of a Sendrecv only the receive's tag is known
    if plain and call.tag != theirs.tag and min(call.tag or 0, theirs.tag or 0) >= 0:
        return False
    sends_to_me = rank in ((theirs.peer,) if theirs.sends else (theirs.other,))
    receives_from_me = not theirs.sends and theirs.peer in (rank, ANYONE)
    to_other = other == (call.peer if call.sends else call.other)
    from_other = not call.sends and call.peer == other
    return (not to_other or receives_from_me) and (not from_other or sends_to_me)


def _note(
    circle: Sequence[int], standing: Mapping[int, Sequence[int]], states: Mapping[int, RankState]
) -> str:
    """The `note` of a frame; `standing` has those for whom each rank has waited for STANDING_SECONDS."""
    if circle:
        return f"Circle of waiting: {' → '.join(f'rank {rank}' for rank in (*circle, circle[0]))}."
    for rank, missing in sorted(standing.items()):
        if gone := [other for other in missing if other in states and states[other].ended]:
            has = "has" if len(gone) == 1 else "have"
            return f"Rank {rank} waits for {listed_ranks(gone)}, which {has} ended the cell."
    return ""
