"""How long a training step takes in different ways, and why: numbers and sentences, no MPI.

The kernel reads what `runs.time_ways` measured on the ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

from course.lessons.l07_ddp_on_mnist.study_tables import reference_times
from mpi_classroom.figures import say_seconds

BY_HAND, DDP_GLOO, DDP_MPI = "by hand", "DDP over Gloo", "DDP over MPI"
QUIET = 0.8  # with less of a core, times say more of the other programs than of the ways
GAIN = 1.2  # the least that two free cores gain on one
CLOSE = 0.1  # two times that differ by less keep up with each other


@dataclass(frozen=True, slots=True)
class Spread:
    """The lower quartile, the median and the upper quartile of some measured seconds."""

    low: float
    middle: float
    high: float

    def clearly_below(self, other: "Spread") -> bool:
        """Whether three quarters of these are shorter than three quarters of the others."""
        return self.high < other.low


def spread_of(seconds: Sequence[float]) -> Spread:
    """Of at least two values."""
    return Spread(*quantiles(seconds, n=4, method="inclusive"))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one training step, in one way, on `ranks` ranks.

    `step`: as it is, on the slowest rank. `compute`, `wait` and `transfer`: means of all ranks, of a step
    whose backward waits for every sum, so that nothing hides. `core_share`: the fraction of the time in which
    the rank that had least had a core; waiting for MPI counts, for it does not sleep.
    """

    name: str
    ranks: int
    step: Spread
    compute: Spread
    wait: Spread
    transfer: Spread
    core_share: float = 1.0


def times_as_long(ways: Sequence[StepTime], name: str, other: str) -> float:
    """A step in the way `name`, in steps of the way `other`."""
    named = {way.name: way.step.middle for way in ways}
    return named[name] / named[other]


def explain_ways(ways: Sequence[StepTime], *, cores: int) -> str:
    """Which way is fastest, and where the others lose their time: sentences chosen from the measurement."""
    if ways[0].ranks == 1:
        return "One core, so one rank: nothing is sent, and there is nothing to compare."
    named = {way.name: way for way in ways}
    gloo, mpi, hand = named[DDP_GLOO], named[DDP_MPI], named[BY_HAND]
    if hand.core_share < QUIET:
        return (
            "Which is faster? This run cannot say. Other programs used the cores: a rank had one for only "
            f"{hand.core_share:.0%} of the time. Run the cell again on a quiet machine.\n"
            + reference_times([f"{name}, 2 ranks" for name in (BY_HAND, DDP_GLOO, DDP_MPI)])
        )
    return "\n".join(
        [
            verdict(ways),
            *biggest_part(ways),
            gloo_and_mpi(gloo, mpi),
            ddp_and_hand(mpi, hand),
            overlap_saves({"Gloo": gloo, "MPI": mpi}, hand, cores),
        ]
    )


def verdict(ways: Sequence[StepTime]) -> str:
    """Who is fastest, and whether that is clear."""
    best, *_, worst = sorted(ways, key=lambda way: way.step.middle)
    range_of = f"{say_seconds(best.step.middle)} and {say_seconds(worst.step.middle)}"
    if not best.step.clearly_below(worst.step):
        return (
            "Which is faster? No clear answer in this run: the medians lie between "
            f"{range_of} per step, and the ranges of the ways overlap."
        )
    ratio = worst.step.middle / best.step.middle
    return (
        f"Which is faster? {best.name}: {say_seconds(best.step.middle)} per step. The slowest, {worst.name}, "
        f"takes {say_seconds(worst.step.middle)}, {ratio:.2f} times as long."
    )


def biggest_part(ways: Sequence[StepTime]) -> list[str]:
    """Which part of the slowest way's bar is longer than the fastest's by most, if its step clearly is."""
    best, *_, worst = sorted(ways, key=lambda way: way.step.middle)
    if not best.step.clearly_below(worst.step):
        return []
    parts = {part: (getattr(best, part), getattr(worst, part)) for part in ("compute", "wait", "transfer")}
    most = max(parts, key=lambda part: parts[part][1].middle - parts[part][0].middle)
    short, long = parts[most]
    if long.middle <= short.middle:
        return []
    both = f"{say_seconds(short.middle)} ({best.name}) against {say_seconds(long.middle)} ({worst.name})"
    words = {"compute": "Computing", "wait": "Waiting", "transfer": "Transfer"}
    return [f"Which part differs most with overlap off? {words[most]}: {both}."]


def gloo_and_mpi(gloo: StepTime, mpi: StepTime) -> str:
    """The same DDP over two backends: what differs is who moves the bytes."""
    both = f"{say_seconds(gloo.transfer.middle)} over Gloo, {say_seconds(mpi.transfer.middle)} over MPI"
    if mpi.transfer.clearly_below(gloo.transfer):
        return (
            f"Gloo against MPI? The same DDP, the same bytes, and a transfer of {both}. Gloo sends them "
            "through the operating system's network code; MPI copies them from memory to memory."
        )
    if gloo.transfer.clearly_below(mpi.transfer):
        return f"Gloo against MPI? The same DDP, the same bytes: a transfer of {both}; Gloo is faster here."
    return f"Gloo against MPI? The same DDP, the same bytes: {both}, too close to tell apart in this run."


def ddp_and_hand(ddp: StepTime, hand: StepTime) -> str:
    """Both over MPI: what DDP itself costs or gains."""
    both = f"{say_seconds(ddp.step.middle)} with DDP, {say_seconds(hand.step.middle)} by hand"
    if hand.step.clearly_below(ddp.step):
        return (
            f"DDP or by hand, both over MPI? {both}. One reason: DDP copies each gradient into a bucket and "
            "back; by hand, the gradients live in one bucket from the start."
        )
    if ddp.step.clearly_below(hand.step):
        return f"DDP or by hand, both over MPI? {both}. DDP sends while backward still computes."
    return f"DDP or by hand, both over MPI? {both}, too close to tell apart in this run."


def overlap_saves(backends: Mapping[str, StepTime], hand: StepTime, cores: int) -> str:
    """What DDP saves or loses over each backend by sending during backward, if that is more than noise.

    By hand nothing overlaps: how far its step is from its parts, or from other steps, is noise.
    """
    noise = max(abs(saved(hand)), (hand.step.high - hand.step.low) / 2)
    gains = {name: saved(way) for name, way in backends.items()}
    told = "; ".join(saved_over(name, gain, noise) for name, gain in gains.items())
    small = f"Less than {say_seconds(noise)} would be noise."
    why = " Each rank uses its core to compute, so no core is idle to move bytes."
    if max(gains.values()) > noise or hand.ranks < cores:
        why = ""
    return f"What does overlap save? {told[0].upper()}{told[1:]}. {small}{why}"


def saved_over(name: str, gain: float, noise: float) -> str:
    """What overlap saves or costs over one backend: `gain` seconds per step, if more than `noise`."""
    if abs(gain) <= noise:
        return f"nothing that can be seen over {name}"
    return f"{say_seconds(gain)} over {name}" if gain > 0 else f"over {name} it costs {say_seconds(-gain)}"


def saved(way: StepTime) -> float:
    """How many seconds shorter a step is as it is than the sum of its parts, with nothing hidden."""
    return way.compute.middle + way.wait.middle + way.transfer.middle - way.step.middle


def replicas_and_ranks(seconds: Sequence[tuple[str, float]]) -> str:
    """Whether replicas in threads keep up with DDP, for the ways that `runs.time_threads_and_ranks` timed."""
    if len(seconds) < 4:
        return "One core: there is nothing to compare."
    (_, alone), (_, operators), (_, threads), (_, ranks) = seconds
    if alone < GAIN * max(operators, ranks):
        ways = ["one process", "one process, 2 threads", f"{DDP_MPI}, 2 ranks"]
        return (
            "The cores were busy: this run says nothing about threads and ranks. Run it again on a quiet "
            f"machine.\n{reference_times(ways)}"
        )
    both = f"{say_seconds(threads)} against {say_seconds(ranks)}"
    if abs(threads - ranks) < CLOSE * ranks:
        return f"Here, replicas in threads keep up with DDP: {both}."
    return f"Here, replicas in threads are {'faster' if threads < ranks else 'slower'} than DDP: {both}."
