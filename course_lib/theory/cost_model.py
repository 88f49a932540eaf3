"""What a collective costs: how many messages, how many bytes, and so how many seconds.

With Hockney's α (seconds per message), β (seconds per byte) and γ (seconds to add a byte), for n ranks and
an array of m bytes, the textbooks' forms are

    all-reduce, ring                  2(n-1)α + 2(n-1)/n βm + (n-1)/n γm
    all-reduce, recursive doubling    log2(n) (α + βm + γm)           (n a power of two)
    all-reduce, halving and doubling  2 log2(n) α + 2(n-1)/n βm + (n-1)/n γm   (likewise)
    reduce-scatter, ring              (n-1)α + (n-1)/n (β+γ)m
    all-gather, ring                  (n-1)α + (n-1)/n βm
    broadcast, tree                   ⌈log2 n⌉ (α + βm)

Here each is a `Cost`: the steps that follow one another, and what is sent, which can be counted. How long
it takes, a machine says: one line (`Hockney`) or a measured one (`MeasuredMachine`), see `hockney.py`.
Collectives that add can cut a long message in pieces (`piece_nbytes`): more messages, the same bytes.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005); Rabenseifner, "Optimization of collective reduction operations" (2004); Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

import math
from dataclasses import dataclass
from typing import Protocol

WHOLE = math.inf  # no message is cut


class Machine(Protocol):
    """Seconds of each thing that a collective does, by its bytes."""

    def one_way_seconds(self, nbytes: float) -> float: ...
    def exchange_seconds(self, nbytes: float) -> float: ...
    def sum_seconds(self, nbytes: float) -> float: ...
    def copy_seconds(self, nbytes: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages that were sent, and their bytes."""

    messages: int = 0
    nbytes: float = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.messages + other.messages, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens `times` times, one after the other: `nbytes` go to another rank in `pieces`."""

    times: int
    nbytes: float
    pieces: int = 1
    both_ways: bool = True  # as many bytes come in meanwhile
    summed: bool = False  # what came is added to what was there


@dataclass(frozen=True, slots=True)
class Cost:
    """The steps that nobody can shorten, what the busiest rank sends, what all send; bytes of local copies.

    `busiest.nbytes` is exact when the ranks divide the length; otherwise a part is an item longer or shorter.
    """

    steps: tuple[Step, ...]
    busiest: Traffic
    total: Traffic
    copied_nbytes: float = 0.0


def predict_seconds(cost: Cost, machine: Machine, call_seconds: float = 0.0) -> float:
    """How long a collective takes on `machine`; `call_seconds` is what calling it costs without messages."""
    copying = machine.copy_seconds(cost.copied_nbytes) if cost.copied_nbytes else 0.0
    return call_seconds + copying + sum(step.times * _step_seconds(step, machine) for step in cost.steps)


def _step_seconds(step: Step, machine: Machine) -> float:
    message = machine.exchange_seconds if step.both_ways else machine.one_way_seconds
    added = machine.sum_seconds(step.nbytes) if step.summed else 0.0
    return message(step.nbytes) + (step.pieces - 1) * message(0) + added


# ------------------------------------------------------------------ the collectives


def ring_allreduce_cost(ranks: int, nbytes: float, *, piece_nbytes: float = WHOLE) -> Cost:
    """Every rank sends 2(n-1)/n of its bytes, the least possible (Patarasuk & Yuan 2009)."""
    others, part = _others(ranks, nbytes), nbytes / ranks
    pieces = _pieces(part, piece_nbytes)
    steps = Step(others, part, pieces, summed=True), Step(others, part)
    messages = others * (pieces + 1)
    return Cost(steps, Traffic(messages, 2 * others * part), Traffic(ranks * messages, 2 * others * nbytes))


def recursive_doubling_allreduce_cost(ranks: int, nbytes: float, *, piece_nbytes: float = WHOLE) -> Cost:
    """log2(n) exchanges of everything; when n is no power of two, one message before and one after."""
    _others(ranks, nbytes)
    rounds, pieces = ranks.bit_length() - 1, _pieces(nbytes, piece_nbytes)
    extra = ranks - 2**rounds
    steps = [Step(rounds, nbytes, pieces, summed=True)]
    if extra:
        before = Step(1, nbytes, pieces, both_ways=False, summed=True)
        steps = [before, *steps, Step(1, nbytes, pieces, both_ways=False)]
    busiest, everyone = rounds + (extra > 0), rounds * 2**rounds + 2 * extra
    sent = Traffic(busiest * pieces, busiest * nbytes)
    return Cost(tuple(steps), sent, Traffic(everyone * pieces, everyone * nbytes))


def halving_allreduce_cost(ranks: int, nbytes: float) -> Cost:
    """log2(n) exchanges of a half, a quarter …, and as many back; ValueError unless n is 1, 2, 4, 8 …"""
    others = _others(ranks, nbytes)
    if ranks & others:
        raise ValueError(f"{ranks} ranks; halving pairs the ranks of 1, 2, 4, 8 … only")
    parts = [nbytes / 2**step for step in range(1, ranks.bit_length())]
    there = tuple(Step(1, part, summed=True) for part in parts)
    back = tuple(Step(1, part) for part in reversed(parts))
    messages = 2 * len(parts)
    sent = Traffic(messages, 2 * others * nbytes / ranks)
    return Cost((*there, *back), sent, Traffic(ranks * messages, 2 * others * nbytes))


def ring_reduce_scatter_cost(ranks: int, nbytes: float, *, piece_nbytes: float = WHOLE) -> Cost:
    """The first half of the ring all-reduce; the part that is complete is copied out."""
    others, part = _others(ranks, nbytes), nbytes / ranks
    pieces = _pieces(part, piece_nbytes)
    sent = Traffic(others * pieces, others * part)
    step = Step(others, part, pieces, summed=True)
    return Cost((step,), sent, Traffic(ranks * others * pieces, others * nbytes), copied_nbytes=part)


def ring_allgather_cost(ranks: int, nbytes: float) -> Cost:
    """The second half; `nbytes` are those of the whole. The own part is copied in."""
    others, part = _others(ranks, nbytes), nbytes / ranks
    total = Traffic(ranks * others, others * nbytes)
    return Cost((Step(others, part),), Traffic(others, others * part), total, copied_nbytes=part)


def tree_broadcast_cost(ranks: int, nbytes: float) -> Cost:
    """The root sends everything ⌈log2 n⌉ times."""
    others, rounds = _others(ranks, nbytes), _doublings(ranks)
    step = Step(rounds, nbytes, both_ways=False)
    return Cost((step,), Traffic(rounds, rounds * nbytes), Traffic(others, others * nbytes))


def _others(ranks: int, nbytes: float) -> int:
    """How many ranks there are besides one. Raises ValueError for less than 1 rank or 0 bytes."""
    if ranks < 1 or not nbytes >= 0:
        raise ValueError(f"{nbytes} bytes on {ranks} ranks; give 0 bytes or more, and 1 rank or more")
    return ranks - 1


def _pieces(nbytes: float, piece_nbytes: float) -> int:
    """How many messages carry `nbytes`; nothing at all still takes one."""
    return max(1, math.ceil(nbytes / piece_nbytes))


def _doublings(ranks: int) -> int:
    """⌈log2 n⌉: how often a group of one doubles until it holds all ranks."""
    return (ranks - 1).bit_length()
