"""What lesson 08 says of its runs follows from what they measured."""

import re

import pytest

from course.lessons.l08_pipeline_parallelism.figures import (
    bubble,
    compare_orders,
    explain_difference,
    explain_idle,
    explain_one_batch,
    explain_saved,
)
from course.lessons.l08_pipeline_parallelism.reference import table
from course.lessons.shared.reference import rows
from course_lib.comm.spans import Span
from course_lib.theory.schedules import gpipe, simulate
from tests.formulas import bubble_fraction


def spans(stretched: float = 1.0) -> list[Span]:
    """A run of GPipe on two equal stages; rank 1 takes `stretched` times as long for each action."""
    timed = simulate(gpipe(2, 8), [1, stretched], [2, 2 * stretched])
    return [Span(one.rank, repr(one.action), "compute", one.start, one.end) for one in timed]


def test_the_formula_is_that_of_the_schedules() -> None:
    assert bubble(4, 8) == pytest.approx(bubble_fraction(4, 8)) == pytest.approx(3 / 11)


def test_equal_stages_agree_with_the_formula_and_unequal_ones_do_not() -> None:
    assert "All are within 5 points" in compare_orders({"GPipe": spans()}, 8, cores=2)
    found = compare_orders({"GPipe": spans(), "1F1B": spans(3.0)}, 8, cores=2)
    assert "1F1B: 5 points or more from the formula" in found
    assert "All are" not in found
    assert "may be noise" in found.splitlines()[-1]


def test_explanations_are_chosen_from_the_measurement() -> None:
    assert "rounding" in explain_difference(0.0) and "more than rounding" in explain_difference(0.1)
    assert "Probably" not in explain_idle(0.28, stages=4, microbatches=8)
    assert "3/11, or 27%" in explain_idle(0.28, stages=4, microbatches=8)
    assert "Probably" in explain_idle(0.4, stages=4, microbatches=8)
    assert "probably" in explain_one_batch(0.3) and "probably" not in explain_one_batch(0.97)
    assert "same bubble" in explain_saved(-1.0) and "Probably" in explain_saved(20.0)


def test_the_reference_table_has_both_schedules_and_says_how_far_steps_varied() -> None:
    assert {"GPipe", "1F1B"} <= {line.split()[0] for line in table().splitlines()}
    assert "% of a step apart" in table()


def test_no_program_of_the_reference_table_varied_more_than_it_says() -> None:
    found = [row for row in rows("pipeline") if "Transformer" in row["case"] and row["unit"] == "ms"]
    said = int(re.findall(r"up to (\d+)% of a step", table())[0])
    shares = [100 * row[f"{who}_spread"] / row[who] for row in found for who in ("ours", "peer")]
    assert max(shares) == pytest.approx(said, abs=0.5)
