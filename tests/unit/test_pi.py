"""π in one process: exact counts on grids, sums that are exact fractions, and the theory of the error."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from course_lib.pi import (
    arctan_loop,
    arctan_part,
    count_inside,
    midpoint_loop,
    midpoint_part,
    rank_stream,
    share,
    strided_blocks,
)

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


def test_streams_of_different_ranks_share_no_number_and_do_not_depend_on_the_size():
    draws = [rank_stream(3, rank, 4).integers(2**63, size=1000) for rank in range(4)]
    assert len(np.unique(draws)) == 4000
    assert np.array_equal(rank_stream(3, 1, 2).integers(2**63, size=1000), draws[1])
    assert not np.array_equal(rank_stream(4, 1, 2).integers(2**63, size=1000), draws[1])


# -------------------------------------------------------------------- terms and strips

Part = Callable[[int, int, int], float]
DEALT = [(rank, size) for size in (1, 2, 3, 4, 7) for rank in range(size)]
MANY = 2**40 + 3  # terms; only one rank of very many adds up its few


def exact_arctan(terms: int, rank: int, size: int) -> float:
    """The oracle: fractions, rounded once."""
    return float(sum((Fraction((-1) ** k * 4, 2 * k + 1) for k in range(rank, terms, size)), Fraction()))


BLOCK = 2**14  # as many numbers as NumPy gets in one call


def exact_midpoint(intervals: int, rank: int, size: int) -> float:
    """The oracle: h · 4 / (1 + ((i + ½) h)²) = 16 n / (4 n² + (2i + 1)²), as fractions."""
    strips = (
        Fraction(16 * intervals, 4 * intervals**2 + (2 * i + 1) ** 2) for i in range(rank, intervals, size)
    )
    return float(sum(strips, Fraction()))


def arctan_in_32_bits(terms: int, rank: int, size: int) -> float:
    """Known to be wrong: counts in the article's `dtype="i"`."""
    blocks = (k.astype(np.int32) for k in strided_blocks(terms, rank, size))
    return float(sum(np.sum((4.0 - 8.0 * (k & 1)) / (2.0 * k + 1.0)) for k in blocks))


def midpoint_at_the_left(intervals: int, rank: int, size: int) -> float:
    """Known to be wrong: the height of a strip is taken at its left end."""
    h = 1 / intervals
    return h * sum(4 / (1 + (h * i) ** 2) for i in range(rank, intervals, size))


@pytest.mark.parametrize("total", [0, 1, 2, 3, 5, 100, 3 * BLOCK + 1])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_number_is_dealt_once_in_blocks_that_stay_small(total: int, size: int):
    hands = [list(strided_blocks(total, rank, size)) for rank in range(size)]
    dealt = [int(k) for blocks in hands for block in blocks for k in block]
    assert sorted(dealt) == list(range(total))
    assert [sum(map(len, blocks)) for blocks in hands] == [share(total, rank, size) for rank in range(size)]
    assert all(block.dtype == np.int64 and 0 < len(block) <= BLOCK for blocks in hands for block in blocks)


@pytest.mark.parametrize("terms", [0, 1, 2, 3, 6, 50])
@pytest.mark.parametrize(("rank", "size"), DEALT)
@pytest.mark.parametrize("part", [arctan_loop, arctan_part])
def test_terms_add_up_to_the_exact_fraction(part: Part, terms: int, rank: int, size: int):
    assert part(terms, rank, size) == pytest.approx(exact_arctan(terms, rank, size), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("intervals", [1, 2, 3, 6, 50])
@pytest.mark.parametrize(("rank", "size"), DEALT)
@pytest.mark.parametrize("part", [midpoint_loop, midpoint_part])
def test_strips_add_up_to_the_exact_fraction(part: Part, intervals: int, rank: int, size: int):
    exact = exact_midpoint(intervals, rank, size)
    assert part(intervals, rank, size) == pytest.approx(exact, rel=1e-14, abs=1e-15)


def test_strips_of_the_wrong_height_are_seen():
    assert midpoint_at_the_left(50, 0, 1) != pytest.approx(exact_midpoint(50, 0, 1), rel=1e-4)


def test_loop_and_numpy_agree_over_many_blocks():
    n = 5 * BLOCK + 17
    for rank, size in DEALT:
        assert arctan_part(n, rank, size) == pytest.approx(arctan_loop(n, rank, size), abs=2e-12)
        assert midpoint_part(n, rank, size) == pytest.approx(midpoint_loop(n, rank, size), abs=2e-12)


@pytest.mark.parametrize(("part", "exact"), [(arctan_part, exact_arctan), (midpoint_part, exact_midpoint)])
def test_one_rank_of_very_many_is_right_past_32_bits(part: Part, exact: Part):
    size = 2**34 + 1
    for rank in (0, 1, 2**31 + 1, size - 2):
        assert 60 < share(MANY, rank, size) < 70
        assert part(MANY, rank, size) == pytest.approx(exact(MANY, rank, size), rel=1e-14)


def test_counting_in_32_bits_is_wrong_past_32_bits():
    rank, size = 2**31 + 1, 2**34 + 1
    right = exact_arctan(MANY, rank, size)
    assert arctan_in_32_bits(50, 1, 3) == pytest.approx(exact_arctan(50, 1, 3), rel=1e-14)
    assert arctan_in_32_bits(MANY, rank, size) != pytest.approx(right, rel=1e-3)
