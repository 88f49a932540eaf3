"""How often a machine fails, and how often to save: the expected run time with checkpoints.

    │ work │save│ work │save│ lost ✗ restart │ work │save│ …
    ├─ interval ┤

Nodes fail independently and at a constant rate, so the times between failures are exponential. A failure
loses the work since the last save; then the machine restarts, which may fail as well. Saving often costs
time; saving rarely loses more work with every failure.

All times are in seconds. `interval` is the work between two saves, without the save itself.

Sources: Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM
17(9), 1974, 530-531. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
Future Generation Computer Systems 22(3), 2006, 303-312.
"""

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

WORK, SAVE, LOST, RESTART = "work", "save", "lost", "restart"
ROUNDING = 1e-9  # of an interval: a shorter rest is a rounding error, not work
HALVINGS = 60  # of an interval: as many as a float has digits


@dataclass(frozen=True, slots=True)
class Unreliable:
    """A machine: the mean time between its failures, and what a save and a restart take; all in seconds."""

    mtbf_seconds: float
    save_seconds: float
    restart_seconds: float

    def __post_init__(self) -> None:
        if self.mtbf_seconds <= 0 or self.save_seconds < 0 or self.restart_seconds < 0:
            raise ValueError(
                f"{self}: give a mean time between failures above 0 and no negative time of a save or restart"
            )


def machine_mtbf(node_mtbf_seconds: float, nodes: int) -> float:
    """The mean time between failures of a machine that fails when any one of its nodes does."""
    return node_mtbf_seconds / nodes


def segment_seconds(work_seconds: float, machine: Unreliable) -> float:
    """The expected time of `work_seconds` and a save, repeated after failures until both succeed (Daly)."""
    mean = machine.mtbf_seconds
    tries = math.expm1((work_seconds + machine.save_seconds) / mean)
    return mean * math.exp(machine.restart_seconds / mean) * tries


def expected_seconds(work_seconds: float, interval_seconds: float, machine: Unreliable) -> float:
    """The expected time of a run that needs `work_seconds` without failures, and saves after every interval.

    The last interval may be shorter; it ends with a save, too.
    """
    check_interval(interval_seconds)
    full, rest = divmod(work_seconds, interval_seconds)
    last = segment_seconds(rest, machine) if rest > ROUNDING * interval_seconds else 0.0
    return full * segment_seconds(interval_seconds, machine) + last


def efficiency(interval_seconds: float, machine: Unreliable) -> float:
    """The fraction of the time of a long run that is work which no failure undoes."""
    check_interval(interval_seconds)
    return interval_seconds / segment_seconds(interval_seconds, machine)


def check_interval(interval_seconds: float) -> None:
    """ValueError unless there is work between two saves."""
    if interval_seconds <= 0:
        raise ValueError(f"an interval of {interval_seconds:g} s has no work in it; give more than 0")


# ------------------------------------------------------------------ the best interval


def young_interval(machine: Unreliable) -> float:
    """Young's interval, √(2 · save · mtbf): good while a save is much shorter than the mtbf."""
    return math.sqrt(2 * machine.save_seconds * machine.mtbf_seconds)


def daly_interval(machine: Unreliable) -> float:
    """Daly's higher-order interval, good up to a save of twice the mean time between failures."""
    ratio = machine.save_seconds / (2 * machine.mtbf_seconds)
    if ratio >= 1:
        return machine.mtbf_seconds
    return young_interval(machine) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - machine.save_seconds


def best_interval(machine: Unreliable) -> float:
    """The interval of the highest efficiency, to the last digits.

    There the derivative of the efficiency is 0: (1 - interval/mtbf) · exp((interval + save)/mtbf) = 1. The
    left side falls from above 1 to 0 between an interval of 0 and one of the mtbf: halve that range.
    """
    mean = machine.mtbf_seconds
    low, high = 0.0, mean
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        left = (1 - middle / mean) * math.exp((middle + machine.save_seconds) / mean)
        low, high = (middle, high) if left > 1 else (low, middle)
    return (low + high) / 2


# ------------------------------------------------------------------ a simulation without those formulas


@dataclass(frozen=True, slots=True)
class Period:
    """What a run did from `start` to `end`: work, save, lost (undone by a failure at its end), or restart."""

    activity: str
    start: float
    end: float


def simulate_run(
    work_seconds: float, interval_seconds: float, machine: Unreliable, *, seed: int = 0
) -> Iterator[Period]:
    """The periods of one run with failures at random times, in order; it lasts to the end of the last."""
    check_interval(interval_seconds)
    rng = random.Random(seed)
    now = done = 0.0
    failure = rng.expovariate(1 / machine.mtbf_seconds)
    while work_seconds - done > ROUNDING * interval_seconds:
        work = min(interval_seconds, work_seconds - done)
        saving, saved = now + work, now + work + machine.save_seconds
        if failure >= saved:
            yield Period(WORK, now, saving)
            yield Period(SAVE, saving, saved)
            now, done = saved, done + work
            continue
        yield Period(LOST, now, failure)
        while True:  # a restart may fail, too
            now, failure = failure, failure + rng.expovariate(1 / machine.mtbf_seconds)
            restarted = now + machine.restart_seconds
            yield Period(RESTART, now, min(restarted, failure))
            if failure >= restarted:
                now = restarted
                break


def simulated_seconds(
    work_seconds: float, interval_seconds: float, machine: Unreliable, *, runs: int = 200, seed: int = 0
) -> tuple[float, float]:
    """The mean time of simulated runs, and its standard error."""
    seconds = []
    for run in range(runs):
        *_, last = simulate_run(work_seconds, interval_seconds, machine, seed=seed * runs + run)
        seconds.append(last.end)
    return statistics.fmean(seconds), statistics.stdev(seconds) / math.sqrt(runs)
