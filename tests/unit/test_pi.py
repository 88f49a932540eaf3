"""π in one process: exact counts on grids that can be counted, and the theory of the error."""

import math
import random
import tracemalloc

import numpy as np
import pytest

from course_lib.pi import Estimate, count_inside, rank_stream, sample, share, standard_error

RADIUS = 2**15


class Replay(np.random.Generator):
    """A generator whose `integers` hands out the coordinates it was given, chunk after chunk."""

    def __init__(self, xy: np.ndarray) -> None:
        super().__init__(np.random.SFC64(0))
        self.xy, self.start = xy, 0

    def integers(self, low, high, *, size, dtype):  # type: ignore[override]
        assert (low, high, dtype) == (-RADIUS, RADIUS, np.int16)
        chunk = self.xy[:, self.start : self.start + size[1]]
        self.start += size[1]
        return chunk.astype(dtype)


def in_circle(x: int, y: int) -> bool:
    """The oracle: Python's integers never overflow."""
    return int(x) ** 2 + int(y) ** 2 <= RADIUS**2


def test_the_circle_is_exact_at_its_rim_and_in_the_corners():
    extremes = [-RADIUS, -RADIUS + 1, -23170, -1, 0, 1, 23170, 23171, RADIUS - 1]
    points = np.array([(x, y) for x in extremes for y in extremes]).T
    assert count_inside(Replay(points), points.shape[1]) == sum(in_circle(x, y) for x, y in points.T)


@pytest.mark.parametrize("samples", [0, 1, 2, 2**14 - 1, 2**14, 2**14 + 1, 100_003])
def test_every_point_is_counted_once_whatever_the_chunks(samples: int):
    points = np.random.default_rng(5).integers(-RADIUS, RADIUS, size=(2, samples))
    replay = Replay(points)
    assert count_inside(replay, samples) == sum(in_circle(x, y) for x, y in points.T)
    assert replay.start == samples


def test_the_grid_itself_is_wrong_by_less_than_the_error_of_a_million_million_darts():
    inside = sum(2 * math.isqrt(RADIUS**2 - i**2) + 1 for i in range(-RADIUS, RADIUS + 1))
    on_the_grid = 4 * (inside - 2) / (2 * RADIUS) ** 2  # (R, 0) and (0, R) are not drawn
    assert on_the_grid - math.pi == pytest.approx(-9e-7, rel=0.01)
    assert abs(on_the_grid - math.pi) < standard_error(3 * 10**12)


def errors_of(estimates: list[float], samples: int) -> float:
    """The root mean square error, in standard errors."""
    return math.sqrt(np.mean((np.array(estimates) - math.pi) ** 2)) / standard_error(samples)


def test_numpys_darts_are_as_far_off_as_theory_says():
    samples = 10_000
    counts = [count_inside(rank_stream(seed, 0, 1), samples) for seed in range(400)]
    assert errors_of([4 * c / samples for c in counts], samples) == pytest.approx(1, abs=0.11)  # 3 sigma


def test_the_loops_darts_are_as_far_off_as_theory_says():
    samples = 500
    random.seed(11)
    estimates = [4 * sample(samples) / samples for _ in range(400)]
    assert errors_of(estimates, samples) == pytest.approx(1, abs=0.11)


def test_the_standard_error_is_that_of_a_counted_coin():
    p = math.pi / 4
    assert standard_error(1) == pytest.approx(4 * math.sqrt(p * (1 - p)))
    assert standard_error(10**8) == pytest.approx(1.642e-4, rel=1e-3)


def test_streams_of_different_ranks_share_no_number_and_do_not_depend_on_the_size():
    draws = [rank_stream(3, rank, 4).integers(2**63, size=1000) for rank in range(4)]
    assert len(np.unique(draws)) == 4000
    assert np.array_equal(rank_stream(3, 1, 2).integers(2**63, size=1000), draws[1])
    assert not np.array_equal(rank_stream(4, 1, 2).integers(2**63, size=1000), draws[1])


@pytest.mark.parametrize("total", [0, 1, 5, 100_003, 2**31 + 1, 2**40 + 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_shares_add_up_and_differ_by_one_at_most(total: int, size: int):
    shares = [share(total, rank, size) for rank in range(size)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
    assert all(type(s) is int for s in shares)


def test_memory_does_not_grow_with_the_darts():
    def peak(samples: int) -> int:
        tracemalloc.start()
        count_inside(rank_stream(0, 0, 1), samples)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(2**20) < 1.1 * peak(2**15) < 2**20


def test_an_estimate_is_four_times_the_share_inside():
    result = Estimate.from_count(inside=3 * 2**31, samples=2**33, ranks=2)
    assert (result.estimate, result.samples, result.ranks) == (3.0, 2**33, 2)
    assert result.standard_error == pytest.approx(1.642 / math.sqrt(2**33), rel=1e-3)
