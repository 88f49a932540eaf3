"""The fits find the line that made the numbers, through noise and wild values; a wrong fit does not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.hockney import fit_hockney, fit_piecewise

SIZES = [4.0**power for power in range(14)]
alphas = st.floats(1e-7, 1e-3)
betas = st.floats(1e-12, 1e-7)


def seconds(alpha: float, beta: float) -> np.ndarray:
    return alpha + beta * np.array(SIZES)


@given(alphas, betas)
@settings(max_examples=40, deadline=None)
def test_a_fit_finds_the_line_that_the_numbers_lie_on(alpha: float, beta: float):
    line = fit_hockney(SIZES, seconds(alpha, beta))
    assert line.alpha_seconds == pytest.approx(alpha, rel=1e-4)
    assert line.exchange_seconds(SIZES[-1]) == pytest.approx(alpha + beta * SIZES[-1], rel=1e-4)


@pytest.mark.parametrize("wild", [0, 13])
def test_one_wild_measurement_does_not_move_it(wild: int):
    times = seconds(2e-6, 1e-10)
    times[wild] *= 50
    line = fit_hockney(SIZES, times)
    assert line.alpha_seconds == pytest.approx(2e-6, rel=0.05)
    assert line.beta_seconds_per_byte == pytest.approx(1e-10, rel=0.05)


def test_plain_least_squares_would_have_lost_the_latency():
    """The known-wrong fit: absolute residuals see nothing but the longest message."""
    times = seconds(2e-6, 1e-10) * np.where(np.arange(len(SIZES)) % 2, 1.03, 0.97)
    _, intercept = np.polyfit(SIZES, times, 1)
    assert abs(intercept - 2e-6) > 1e-6
    assert fit_hockney(SIZES, times).alpha_seconds == pytest.approx(2e-6, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-9, 1e3)), min_size=3, max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_fit_has_a_negative_latency_or_bandwidth(points: list[tuple[float, float]]):
    sizes, times = zip(*points, strict=True)
    if len(set(sizes)) > 1:
        line = fit_hockney(sizes, times)
        assert line.alpha_seconds >= 0 and line.beta_seconds_per_byte >= 0


def two_regimes(nbytes: float) -> float:
    return 1e-6 + 1e-9 * nbytes if nbytes <= 4096 else 2e-5 + 5e-11 * nbytes


def test_a_piecewise_fit_finds_both_regimes_and_where_they_meet():
    curve = fit_piecewise(SIZES, [two_regimes(size) for size in SIZES], regimes=2)
    assert curve.limits_nbytes == (4096, math.inf)
    for size in (0, 100, 3000, 5000, 1e6, 1e9):
        assert curve.seconds(size) == pytest.approx(two_regimes(size), rel=1e-3)


def test_one_line_cannot_be_both_regimes():
    times = [two_regimes(size) for size in SIZES]
    line = fit_hockney(SIZES, times)
    worst = max(abs(line.one_way_seconds(size) / time - 1) for size, time in zip(SIZES, times, strict=True))
    assert worst > 0.35


@pytest.mark.parametrize(
    ("nbytes", "times", "says"),
    [
        ([1, 2, 3], [1, 2], "3 sizes and 2 times"),
        ([1, 1], [1, 2], "needs two different sizes"),
        ([1, 2], [1, math.nan], "a time not above 0"),
        ([1, math.inf], [1, 2], "a size is below 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(nbytes: list[float], times: list[float], says: str):
    for fit in (fit_hockney, fit_piecewise):
        with pytest.raises(ValueError, match=says):
            fit(nbytes, times)
