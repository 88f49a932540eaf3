"""What the ranks did, when: spans of time, and what to compute from them. No MPI: the kernel reads them too.

    rank 0  |compute|wait        |transfer|        a collective begins when its last rank arrives:
    rank 1  |compute             |transfer|        until then the others wait

Spans of one rank may lie inside each other; a moment belongs to the innermost. Totals therefore count no
moment twice.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

COMPUTE, WAIT, TRANSFER = "compute", "wait", "transfer"
COLLECTIVE = "collective"  # not split yet into waiting and transfer
KINDS = (COMPUTE, WAIT, TRANSFER)
WEIGHTS = "weights of"  # what a pipeline computes of a backward after it has sent the gradient of its inputs


@dataclass(frozen=True, slots=True)
class Span:
    """What a rank did from `start` to `end`, in seconds since the first span of all ranks began."""

    rank: int
    name: str
    kind: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


# ---------------------------------------------------------------- waiting and transfer


def split_collectives(spans: Iterable[Span], *, uncertainty: float = 0.0) -> list[Span]:
    """Every collective span as waiting for others and, from the last arrival on, transfer; in time order.

    The k-th collective span of a name is one meeting of all ranks. A collective span around others becomes
    transfer as a whole: those inside show more. Clocks may differ by `uncertainty` seconds.
    """
    ordered = _outer_as_transfer(in_order(spans))
    turns: Counter[tuple[int, str]] = Counter()
    meetings: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in ordered:
        if span.kind == COLLECTIVE:
            turns[span.rank, span.name] += 1
            meetings[span.name, turns[span.rank, span.name]].append(span)
    pieces = [span for span in ordered if span.kind != COLLECTIVE]
    for meeting in meetings.values():
        arrivals = [span.start for span in meeting]
        pieces += chain.from_iterable(_split(span, arrivals, uncertainty) for span in meeting)
    return in_order(pieces)


def _split(span: Span, arrivals: Iterable[float], uncertainty: float) -> list[Span]:
    """A rank waits for the last of those who arrive before it leaves: a broadcast's root may leave first."""
    last = min(span.end, max(arrival for arrival in arrivals if arrival <= span.end + uncertainty))
    waiting, transfer = replace(span, kind=WAIT, end=last), replace(span, kind=TRANSFER, start=last)
    return [waiting, transfer] if last > span.start else [transfer]


def _outer_as_transfer(ordered: Iterable[Span]) -> list[Span]:
    """The same spans, those collectives that have another one inside as transfer."""
    done: list[Span] = []
    around: list[int] = []  # where in `done` the open collectives are, the innermost last
    for span in ordered:
        if span.kind == COLLECTIVE:
            while around and not _inside(span, done[around[-1]]):
                around.pop()
            if around:
                done[around[-1]] = replace(done[around[-1]], kind=TRANSFER)
            around.append(len(done))
        done.append(span)
    return done


def _inside(span: Span, other: Span) -> bool:
    return span.rank == other.rank and span.end <= other.end


def in_order(spans: Iterable[Span]) -> list[Span]:
    """By rank and time; a span before those inside it."""
    return sorted(spans, key=lambda span: (span.rank, span.start, -span.end))


# ---------------------------------------------------------------- whose moment, and how many


def by_rank(spans: Iterable[Span]) -> dict[int, list[Span]]:
    """The spans of each rank in time order, ranks in theirs."""
    lanes: dict[int, list[Span]] = {}
    for span in in_order(spans):
        lanes.setdefault(span.rank, []).append(span)
    return lanes


def cut(lane: Sequence[Span]) -> Iterator[Span]:
    """The pieces of one rank's spans, in time order, none over another: a moment is the innermost one's."""
    around: list[Span] = []
    now = lane[0].start
    for span, moment in chain(((span, span.start) for span in lane), [(lane[0], math.inf)]):
        while around and now < moment:
            inner = around[-1]
            until = min(inner.end, moment)
            if until > now:
                yield replace(inner, start=now, end=until)
                now = until
            if inner.end <= now:
                around.pop()
        now = moment
        around.append(span)


def totals(spans: Iterable[Span]) -> dict[int, dict[str, float]]:
    """Seconds of each rank in each kind of span, no moment counted twice; collectives have to be split."""
    seconds: dict[int, dict[str, float]] = {}
    for rank, lane in by_rank(spans).items():
        mine = seconds[rank] = dict.fromkeys(KINDS, 0.0)
        for piece in cut(lane):
            mine[piece.kind] += piece.seconds
    return seconds
