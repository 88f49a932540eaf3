"""Speed-up and efficiency against worked numbers, and both laws against one job counted by seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory import cost_model
from course_lib.theory.scaling import (
    amdahl_speedup,
    gustafson_speedup,
)

fractions = st.floats(0, 1, allow_nan=False)
many_ranks = st.integers(1, 10**6)


@given(st.integers(0, 1000), st.integers(1, 1000), many_ranks)
def test_gustafson_counts_what_one_rank_would_have_needed(serial: int, shared: int, ranks: int):
    on_many, on_one = serial + shared, serial + shared * ranks
    assert gustafson_speedup(serial / on_many, ranks) == pytest.approx(on_one / on_many)


@pytest.mark.parametrize(("fraction", "ranks", "speedup"), [(0, 8, 8), (1, 8, 1), (0.05, 20, 19.05)])
def test_gustafson_gives_the_textbook_values(fraction: float, ranks: int, speedup: float):
    assert gustafson_speedup(fraction, ranks) == pytest.approx(speedup)


@given(fractions, many_ranks)
def test_a_growing_job_scales_better_than_a_fixed_one(fraction: float, ranks: int):
    assert amdahl_speedup(fraction, ranks) <= gustafson_speedup(fraction, ranks) * (1 + 1e-12)


@given(fractions, many_ranks)
def test_both_laws_agree_on_one_run_when_its_serial_share_is_converted(fraction: float, ranks: int):
    share = fraction * amdahl_speedup(fraction, ranks)  # of the time on all ranks instead of on one
    assert gustafson_speedup(share, ranks) == pytest.approx(amdahl_speedup(fraction, ranks))


def test_the_cost_model_has_them_too():
    assert cost_model.gustafson_speedup is gustafson_speedup
    assert cost_model.amdahl_speedup is amdahl_speedup


def test_impossible_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"-0\.1 of the work on 4 ranks; give a fraction from 0 to 1"):
        gustafson_speedup(-0.1, 4)
