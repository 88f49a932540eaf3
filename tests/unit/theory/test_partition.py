"""NumPy's array_split is the oracle of every even deal, trying every cut that of a balanced one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.theory.partition import balanced_ranges, even_range, even_ranges, fused_ranges


@given(st.integers(0, 300), st.integers(1, 40))
def test_even_ranges_deal_as_array_split_does(total: int, parts: int) -> None:
    expected = [part.tolist() for part in np.array_split(np.arange(total), parts)]
    assert [list(part) for part in even_ranges(total, parts)] == expected


@pytest.mark.parametrize(("total", "parts"), [(10, 0), (-1, 2)])
def test_impossible_cuts_are_refused_with_their_numbers(total: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"cut {total} items into {parts} parts"):
        even_ranges(total, parts)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_part_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="count from 0 to 2"):
        even_range(10, 3, index)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_balanced_ranges_are_as_good_as_trying_every_cut(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    found = balanced_ranges(costs, parts)
    assert [index for part in found for index in part] == list(range(len(costs)))
    assert all(len(part) for part in found)
    every = itertools.combinations(range(1, len(costs)), parts - 1)
    highest = [max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)])) for cuts in every]
    assert max(sum(costs[part.start : part.stop]) for part in found) == min(highest)


@pytest.mark.parametrize(("costs", "parts"), [([], 1), ([1, 2], 3), ([1, -1], 1)])
def test_costs_that_cannot_be_cut_are_refused(costs: list[int], parts: int) -> None:
    with pytest.raises(ValueError, match=f"{len(costs)} costs, the least .* cannot make {parts} parts"):
        balanced_ranges(costs, parts)


# ---------------------------------------------------------------- fused


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 60))
def test_fused_ranges_are_full_and_in_order(sizes: list[int], limit: int) -> None:
    ranges = fused_ranges(sizes, limit)
    assert [index for part in ranges for index in part] == list(range(len(sizes)))
    sums = [sum(sizes[index] for index in part) for part in ranges]
    assert all(total <= limit or len(part) == 1 for total, part in zip(sums, ranges, strict=True))
    follows = [sizes[part.stop] for part in ranges[:-1]]
    assert all(total + size > limit for total, size in zip(sums, follows, strict=False))  # none is too short
