"""Who makes the others wait, from the spans of a recorded run. No MPI: the kernel reads them too.

    rank 0  |forward|wait────────|sum|          A collective begins when its last rank arrives: here rank 1.
    rank 1  |forward  · · · · · ·|sum|          The others waited for it, rank 0 longest.
    rank 2  |forward · ·|wait────|sum|

The straggler waits the least, so the longest wait points to a victim. For each collective we ask which rank
arrived last, and add up how long the others waited for it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from course_lib.comm.spans import COMPUTE, TRANSFER, WAIT, Span, by_rank, innermost


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective: the rank that arrived last, and how many seconds each of the others waited for it."""

    name: str
    last: int
    waited: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others waited for longest: `waited_for[rank]` seconds, summed over all that waited.

    In the spans of the name `slow_in` it computed `excess_seconds` longer than the median of the other ranks.
    """

    rank: int
    waited_for: Mapping[int, float]
    slow_in: str
    excess_seconds: float

    def sentence(self, steps: int) -> str:
        """Who made the others wait for how long, and where it was slow, in all and per step of so many."""
        waited = f"{1e3 * self.waited_for[self.rank]:.0f} ms"
        words = f"The others waited {waited} for rank {self.rank} in total"
        if self.excess_seconds <= 0:
            return f"{words}; it came late, but computed no longer than they did."
        excess, per_step = (f"{1e3 * self.excess_seconds / count:.0f} ms" for count in (1, steps))
        return (
            f"{words}. In {self.slow_in!r}, rank {self.rank} took {excess} longer than the median of the "
            f"others: {per_step} per step."
        )


def meetings(spans: Iterable[Span]) -> list[Meeting]:
    """The collectives in which ranks waited, in order; `spans` are those of `Recorder.gather` on rank 0.

    There a collective is a wait, where the rank waited, and a transfer of the same name. The k-th transfer of
    a name is the k-th meeting of all ranks. So collectives of disjoint groups need different names.
    """
    arrivals: dict[tuple[str, int], dict[int, float]] = {}  # of each meeting: when each rank arrived
    waits: dict[tuple[str, int], dict[int, float]] = {}
    for rank, lane in by_rank(spans).items():
        turns: Counter[str] = Counter()
        waiting: dict[str, Span] = {}
        for span in lane:
            if span.kind == WAIT:
                waiting[span.name] = span
            elif span.kind == TRANSFER:
                meeting = (span.name, turns[span.name])
                turns[span.name] += 1
                wait = waiting.pop(span.name, None)
                arrivals.setdefault(meeting, {})[rank] = wait.start if wait else span.start
                waits.setdefault(meeting, {})[rank] = wait.seconds if wait else 0.0
    found = []
    for meeting in sorted(arrivals, key=lambda each: max(arrivals[each].values())):
        last = max(arrivals[meeting], key=arrivals[meeting].__getitem__)
        waited = {rank: seconds for rank, seconds in waits[meeting].items() if seconds > 0 and rank != last}
        if waited:
            found.append(Meeting(meeting[0], last, waited))
    return found


def find_straggler(spans: Iterable[Span]) -> Straggler | None:
    """The rank for which the others waited longest, and in what it was slow; None if nobody waited."""
    spans = list(spans)
    waited_for: Counter[int] = Counter()
    for meeting in meetings(spans):
        waited_for[meeting.last] += sum(meeting.waited.values())  # type: ignore[assignment]
    if not waited_for:
        return None
    rank = max(waited_for, key=waited_for.__getitem__)
    excess = excess_seconds(spans, rank)
    slow_in = max(excess, key=excess.__getitem__, default="")
    return Straggler(rank, dict(waited_for), slow_in, excess.get(slow_in, 0.0))


def excess_seconds(spans: Iterable[Span], rank: int) -> dict[str, float]:
    """By name of a compute span: how much longer `rank` was in it than the median of the other ranks."""
    seconds: dict[str, Counter[int]] = {}
    pieces = innermost(spans)
    for piece in pieces:
        if piece.kind == COMPUTE:
            seconds.setdefault(piece.name, Counter())[piece.rank] += piece.seconds  # type: ignore[assignment]
    others = {piece.rank for piece in pieces} - {rank}
    return {
        name: of[rank] - statistics.median(of[other] for other in others)
        for name, of in seconds.items()
        if others and rank in of
    }
