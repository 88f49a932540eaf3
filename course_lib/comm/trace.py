"""Who computed, sent and waited, when.

    recorder = Recorder(comm)
    with recorder.span("forward"): ...                       # on every rank
    with recorder.span("sum", kind="collective"):
        comm.Allreduce(...)
    spans = recorder.gather()                                # on rank 0; then plots.timeline(spans)

Every rank notes when its spans begin and end, and sends nothing while it is measured. Only `gather` brings
the spans together: on one clock, and with each collective split into *waiting*, until its last rank has
arrived, and *transfer*. So no barrier has to be put before a collective to distinguish the two.

Clocks of different machines differ, and drift apart; Open MPI's starts anew with every process. So every rank
compares its clock with that of rank 0, before and after: it asks for the time several times, and believes
the answer that came back soonest. Half of that round trip is how wrong it may be (Cristian 1989,
"Probabilistic clock synchronization").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import numpy as np
from mpi4py import MPI

from course_lib.comm.spans import COLLECTIVE, KINDS, Span, split_collectives

ROUND_TRIPS = 20
CLOCK_TAG = 30_001

SpanKind = Literal["compute", "wait", "transfer", "collective"]
Note = tuple[str, str, float, float]  # name, kind, start and end on the clock of the rank that noted it


class Recorder:
    """The spans of one rank of `comm`; made by all its ranks together.

    `uncertainty`: by how many seconds the clocks of two ranks may still differ after they were aligned.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._notes: list[Note] = []
        self._before = compare_clocks(comm)
        self.uncertainty = comm.allreduce(2 * self._before.uncertainty, op=MPI.MAX)

    def span(self, name: str, *, kind: SpanKind = "compute") -> Running:
        """`with recorder.span(name):` notes when its body began and ended; it may hold further spans.

        `kind="collective"` is for a collective call, which all ranks of the recorder's communicator make.
        """
        return Running(self._notes, name, kind)

    def gather(self) -> list[Span] | None:
        """All ranks' spans since the last `gather`, on rank 0, in time order; None elsewhere.

        Seconds count from the start of the first span. Collectives are split into waiting and transfer.
        All ranks call it, and all get a ValueError if they have not recorded the same collectives.
        """
        notes = self._notes[:]
        self._notes.clear()
        check_notes(self.comm, notes)
        before, after = self._before, compare_clocks(self.comm)
        self._before = after
        mine = 2 * max(before.uncertainty, after.uncertainty)
        self.uncertainty = self.comm.allreduce(mine, op=MPI.MAX)
        moments = on_rank_0([moment for *_, start, end in notes for moment in (start, end)], before, after)
        aligned = [
            (*note[:2], *pair) for note, pair in zip(notes, moments.reshape(-1, 2).tolist(), strict=True)
        ]
        gathered = self.comm.gather(aligned, root=0)
        return None if gathered is None else as_spans(gathered, self.uncertainty)


class Running:
    """One span while it lasts. It costs a microsecond: no text is formatted, nothing is looked up."""

    __slots__ = ("kind", "name", "notes", "start")

    def __init__(self, notes: list[Note], name: str, kind: str) -> None:
        self.notes, self.name, self.kind = notes, name, kind

    def __enter__(self) -> None:
        self.start = MPI.Wtime()

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notes.append((self.name, self.kind, self.start, MPI.Wtime()))


def as_spans(gathered: list[list[Note]], uncertainty: float) -> list[Span]:
    """The notes of all ranks as spans; time counts from the first."""
    first = min((start for notes in gathered for *_, start, _ in notes), default=0.0)
    spans = [
        Span(rank, name, kind, start - first, end - first)
        for rank, notes in enumerate(gathered)
        for name, kind, start, end in notes
    ]
    return split_collectives(spans, uncertainty=uncertainty)


def check_notes(comm: MPI.Intracomm, notes: list[Note]) -> None:
    """ValueError on all ranks unless each kind is one of ours, and all recorded the same collectives."""
    unknown = {kind for _, kind, *_ in notes} - {*KINDS, COLLECTIVE}
    counts = Counter(name for name, kind, *_ in notes if kind == COLLECTIVE)
    everyone = comm.allgather((unknown, counts))
    for rank, (kinds, theirs) in enumerate(everyone):
        if kinds:
            known = ", ".join((*KINDS, COLLECTIVE))
            raise ValueError(f"rank {rank} has a span of the kind {min(kinds)!r}; use one of {known}")
        if theirs != everyone[0][1]:
            name = min((theirs - everyone[0][1]) + (everyone[0][1] - theirs))
            raise ValueError(
                f"rank {rank} was {theirs[name]} times in the collective {name!r}, rank 0 "
                f"{everyone[0][1][name]} times; all ranks of the recorder's communicator take part in each"
            )


# ---------------------------------------------------------------- clocks


@dataclass(frozen=True, slots=True)
class Comparison:
    """At `at` on its own clock, a rank was `ahead` of rank 0, give or take `uncertainty`; in seconds."""

    at: float
    ahead: float
    uncertainty: float


def compare_clocks(comm: MPI.Intracomm) -> Comparison:
    """This rank's clock compared with that of rank 0, one rank after the other; all ranks call it."""
    if comm.rank == 0:
        for other in range(1, comm.size):
            for _ in range(ROUND_TRIPS):
                comm.Recv(np.empty(0), other, CLOCK_TAG)
                comm.Send(np.array([MPI.Wtime()]), other, CLOCK_TAG)
        return Comparison(MPI.Wtime(), 0.0, 0.0)
    return min((ask_the_time(comm) for _ in range(ROUND_TRIPS)), key=lambda one: one.uncertainty)


def ask_the_time(comm: MPI.Intracomm) -> Comparison:
    """One round trip to rank 0: its clock was read somewhere between question and answer."""
    theirs = np.empty(1)
    asked = MPI.Wtime()
    comm.Send(np.empty(0), 0, CLOCK_TAG)
    comm.Recv(theirs, 0, CLOCK_TAG)
    answered = MPI.Wtime()
    middle = (asked + answered) / 2
    return Comparison(middle, middle - theirs.item(), (answered - asked) / 2)


def on_rank_0(moments: list[float], before: Comparison, after: Comparison) -> np.ndarray:
    """Moments of this rank's clock as rank 0's clock shows them; between comparisons it drifts evenly."""
    here = [before.at, after.at]
    there = [before.at - before.ahead, after.at - after.ahead]
    return np.interp(moments, here, there)
