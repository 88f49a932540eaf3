"""A quantity's formula is what is computed, and everything in a trace leads to what was given or measured."""

import pytest

from course_lib.theory.planner.quantity import (
    cited,
    derived,
    given,
    measured,
    trace,
)
from tests.formulas import leaves


def test_the_formula_that_is_shown_is_the_one_that_is_computed() -> None:
    state = derived("16 * parameters / ranks", "bytes", parameters=given(7e9, "numbers"), ranks=8)
    assert state.value == 14e9
    assert state.text == "14 GB"
    assert trace(state) == [
        "14 GB = 16 * parameters / ranks",
        "  parameters = 7 000 000 000 (given, numbers)",
        "  ranks = 8 (given)",
    ]


@pytest.mark.parametrize("parts", [{"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_a_formula_without_a_part_or_a_part_without_use_is_refused(parts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"the formula 'a \+ b' has the names \['a', 'b'\] and got"):
        derived("a + b", "", **parts)


def test_every_leaf_says_where_it_is_from() -> None:
    rate = measured(2e9, "flop/s", "products of 512 × 512")
    bandwidth = cited(12.5e9, "bytes/s", "a port of InfiniBand EDR", "the vendor")
    seconds = derived(
        "flop / rate + nbytes / bandwidth", "s", flop=given(4e9), rate=rate, nbytes=0, bandwidth=bandwidth
    )
    assert {leaf.source for leaf in leaves(seconds)} == {"given", "measured", "cited: the vendor"}
    assert trace(seconds)[2] == "  rate = 2 000 000 000 flop/s (measured, products of 512 × 512)"
