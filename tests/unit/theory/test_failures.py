"""Expected run times and best intervals, held to a simulation without those formulas and to print."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from course_lib.theory.failures import (
    LOST,
    RESTART,
    SAVE,
    WORK,
    Period,
    Unreliable,
    best_interval,
    daly_interval,
    efficiency,
    expected_seconds,
    machine_mtbf,
    simulate_run,
    simulated_seconds,
    young_interval,
)

MINUTE, HOUR = 60.0, 3600.0
DALY = Unreliable(6 * HOUR, 5 * MINUTE, 10 * MINUTE)  # figure 4 of Daly 2006
FRAGILE = Unreliable(100.0, 10.0, 20.0)


def test_a_machine_of_n_nodes_fails_n_times_as_often() -> None:
    """The first of n exponential failures, drawn."""
    rng = random.Random(0)
    first = [min(rng.expovariate(1 / 1000) for _ in range(50)) for _ in range(4000)]
    assert machine_mtbf(1000, 50) == pytest.approx(sum(first) / len(first), rel=0.05)


@pytest.mark.parametrize("interval", [5.0, 40.0, 120.0])
def test_expected_time_is_the_mean_of_simulated_runs(interval: float) -> None:
    """Intervals that end with the work, and one that does not."""
    mean, error = simulated_seconds(1000.0, interval, FRAGILE, runs=800)
    assert expected_seconds(1000.0, interval, FRAGILE) == pytest.approx(mean, abs=4 * error)
    assert error < 0.05 * mean


@pytest.mark.parametrize(
    ("work", "interval", "saves"), [(1.0, 0.1, 10), (0.1 + 0.1 + 0.1, 0.1, 3), (1.0, 0.3, 4)]
)
def test_rounding_adds_no_save(work: float, interval: float, saves: int) -> None:
    steady = Unreliable(1e12, 1.0, 0.0)
    periods = list(simulate_run(work, interval, steady))
    assert sum(one.activity == SAVE for one in periods) == saves
    assert expected_seconds(work, interval, steady) == pytest.approx(work + saves, rel=1e-6)


def no_failure_while_restarting(work: float, interval: float, machine: Unreliable) -> float:
    """Known-wrong: a restart always succeeds."""
    return expected_seconds(work, interval, replace(machine, restart_seconds=0.0)) * (
        1 + machine.restart_seconds / machine.mtbf_seconds
    )


def first_order(work: float, interval: float, machine: Unreliable) -> float:
    """Known-wrong for a fragile machine: each failure loses half an interval, none hits twice."""
    saved = work + work / interval * machine.save_seconds
    return saved * (1 + (interval / 2 + machine.restart_seconds) / machine.mtbf_seconds)


def test_the_simulation_refutes_rougher_formulas() -> None:
    machine = Unreliable(100.0, 10.0, 100.0)
    mean, error = simulated_seconds(1000.0, 40.0, machine, runs=800)
    assert expected_seconds(1000.0, 40.0, machine) == pytest.approx(mean, abs=4 * error)
    for wrong in (no_failure_while_restarting, first_order):
        assert abs(wrong(1000.0, 40.0, machine) - mean) > 4 * error


def test_without_failures_only_saving_costs() -> None:
    reliable = Unreliable(1e12, 10.0, 20.0)
    assert expected_seconds(1000.0, 100.0, reliable) == pytest.approx(1100.0)
    assert efficiency(100.0, reliable) == pytest.approx(1 / 1.1)


@pytest.mark.parametrize("mtbf, printed", [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_interval_is_the_printed_one(mtbf: float, printed: float) -> None:
    """The captions of figures 3, 4 and 5 of Daly 2006, in minutes, to the digits that are printed."""
    digits = 1 if printed < 10 else 0
    assert round(daly_interval(replace(DALY, mtbf_seconds=mtbf)) / MINUTE, digits) == printed


@pytest.mark.parametrize("save", [0.01, 1.0, 10.0, 100.0, 150.0])
def test_no_interval_is_better_than_the_best(save: float) -> None:
    machine = replace(FRAGILE, save_seconds=save)
    best = best_interval(machine)
    top = efficiency(best, machine)
    others = (best * factor for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0))
    assert all(efficiency(other, machine) < top for other in others)
    assert efficiency(daly_interval(machine), machine) > 0.98 * top


def test_young_is_near_the_best_while_a_save_is_short_and_far_when_it_is_not() -> None:
    cheap, costly = (replace(FRAGILE, save_seconds=save) for save in (0.01, 50.0))
    assert young_interval(cheap) == pytest.approx(best_interval(cheap), rel=0.02)
    assert young_interval(costly) > 1.4 * best_interval(costly)


def test_a_save_longer_than_twice_the_mtbf_is_worth_one_mtbf_of_work() -> None:
    assert daly_interval(Unreliable(10.0, 20.0, 0.0)) == 10.0


def test_a_run_is_made_of_periods_without_gaps_and_does_all_the_work() -> None:
    periods = list(simulate_run(500.0, 40.0, FRAGILE, seed=3))
    assert periods[0].start == 0
    assert all(one.end == other.start for one, other in pairwise(periods))
    assert sum(each.end - each.start for each in periods if each.activity == WORK) == pytest.approx(500.0)
    after = {LOST: {RESTART}, RESTART: {RESTART, WORK, LOST}, WORK: {SAVE}, SAVE: {WORK, LOST}}
    found = [(one.activity, other.activity) for one, other in pairwise(periods)]
    assert all(other in after[one] for one, other in found)
    assert any(one == LOST for one, _ in found)
    assert all(each.end - each.start <= 50.0 for each in periods)


def test_the_same_seed_is_the_same_run() -> None:
    one, same, other = (list(simulate_run(500.0, 40.0, FRAGILE, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert isinstance(one[0], Period)


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 1.0), (10.0, -1.0, 1.0), (10.0, 1.0, -1.0)])
def test_impossible_machines_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="mean time between failures"):
        Unreliable(*wrong)


def test_an_interval_needs_work() -> None:
    for use in (lambda: efficiency(0.0, FRAGILE), lambda: expected_seconds(1.0, -1.0, FRAGILE)):
        with pytest.raises(ValueError, match="more than 0"):
            use()
    assert math.isfinite(expected_seconds(0.0, 1.0, FRAGILE))
