"""A quantity's formula is what is computed, and all it is made of leads to what was given or measured."""

import pytest

from course.lessons.l16_choose_your_strategy.planner.quantity import (
    cited,
    counted,
    derived,
    given,
    largest,
    measured,
    total,
)
from tests.formulas import leaves


def test_the_formula_that_is_kept_is_the_one_that_is_computed() -> None:
    state = derived("16 * parameters / ranks", "bytes", parameters=given(7e9, "numbers"), ranks=8)
    assert state.value == 14e9
    assert state.formula == "16 * parameters / ranks"
    assert (state["ranks"].value, state["ranks"].source) == (8, "given")


@pytest.mark.parametrize("parts", [{"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_a_formula_without_a_part_or_a_part_without_use_is_refused(parts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"the formula 'a \+ b' has the names \['a', 'b'\] and got"):
        derived("a + b", "", **parts)


def test_equal_parts_of_a_sum_are_one_term() -> None:
    block, head = counted(3, "numbers of a block"), counted(5, "numbers of the head")
    whole = total("numbers", [("block", block), ("head", head), ("block", block)])
    assert (whole.value, whole.formula) == (11, "2 * block + head")
    other = counted(4, "numbers of a block")
    assert total("", [("block", block), ("block", other)]).formula == "block + block_2"
    assert total("", []).value == 0


def test_the_largest_names_its_candidates() -> None:
    found = largest("bytes", [("stage_0", given(3)), ("stage_1", given(5))])
    assert (found.value, found.formula) == (5, "max(stage_0, stage_1)")
    assert found["stage_1"].value == 5


def test_every_leaf_says_where_it_is_from() -> None:
    rate = measured(2e9, "flop/s", "products of 512 × 512")
    bandwidth = cited(12.5e9, "bytes/s", "a port of InfiniBand EDR", "the vendor")
    seconds = derived(
        "flop / rate + nbytes / bandwidth", "s", flop=given(4e9), rate=rate, nbytes=0, bandwidth=bandwidth
    )
    assert {leaf.source for leaf in leaves(seconds)} == {"given", "measured", "cited: the vendor"}
