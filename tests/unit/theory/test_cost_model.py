"""Amdahl's bound against worked numbers, its limits, and a job counted second by second."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory.cost_model import amdahl_speedup, karp_flatt_fraction, parallel_efficiency

fractions = st.floats(0, 1, allow_nan=False)
many_ranks = st.integers(1, 10**6)


def seconds_of_a_job(serial_seconds: int, shared_seconds: int, ranks: int) -> float:
    """The oracle: first one rank works alone, then all take an equal part of the rest."""
    return serial_seconds + shared_seconds / ranks


@given(st.integers(0, 1000), st.integers(1, 1000), many_ranks)
def test_amdahl_is_the_ratio_of_two_counted_times(serial: int, shared: int, ranks: int):
    one, many = (seconds_of_a_job(serial, shared, n) for n in (1, ranks))
    assert amdahl_speedup(serial / (serial + shared), ranks) == pytest.approx(one / many)


@pytest.mark.parametrize(
    ("fraction", "ranks", "speedup"), [(0, 8, 8), (1, 8, 1), (0.05, 20, 10.256), (0.5, 10**9, 2)]
)
def test_amdahl_gives_the_textbook_values(fraction: float, ranks: int, speedup: float):
    assert amdahl_speedup(fraction, ranks) == pytest.approx(speedup, rel=1e-4)


@given(fractions, many_ranks)
def test_no_number_of_ranks_beats_one_over_the_serial_fraction(fraction: float, ranks: int):
    limit = math.inf if fraction == 0 else 1 / fraction
    assert 1 - 1e-12 <= amdahl_speedup(fraction, ranks) <= min(ranks, limit) * (1 + 1e-12)


@given(fractions, st.integers(2, 10**4))
def test_karp_flatt_undoes_amdahl(fraction: float, ranks: int):
    assert karp_flatt_fraction(amdahl_speedup(fraction, ranks), ranks) == pytest.approx(fraction, abs=1e-9)


def test_a_speedup_above_the_ranks_has_a_negative_serial_fraction():
    assert karp_flatt_fraction(2.2, 2) < 0


def test_efficiency_is_one_when_n_ranks_are_n_times_faster():
    assert [parallel_efficiency(s, n) for s, n in ((1, 1), (4, 4), (2, 4))] == [1, 1, 0.5]


def test_impossible_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"1\.2 of the work on 4 ranks; give a share from 0 to 1"):
        amdahl_speedup(1.2, 4)
    with pytest.raises(ValueError, match="0 ranks do no work"):
        parallel_efficiency(1, 0)
    with pytest.raises(ValueError, match="1 ranks share nothing; give the speed-up of 2 or more"):
        karp_flatt_fraction(1, 1)
