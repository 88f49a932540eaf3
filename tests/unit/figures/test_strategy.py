"""Lesson 16's figures are legible, and their titles say what was predicted, chosen and measured."""

import pytest

from course.lessons.l16_choose_your_strategy.figures import (
    decision_tree,
    link_sweep,
    memory_bars,
    plan_cloud,
    predicted_and_measured,
)
from course.lessons.l16_choose_your_strategy.rules import LINKS, RATES, sweep
from course.lessons.l16_choose_your_strategy.validation import configurations, validation_picture
from course.lessons.shared.machine import reference_machine
from course_lib.theory.planner.measured import machine_of
from course_lib.theory.planner.memory import memory_of
from course_lib.theory.planner.models import TransformerShape
from course_lib.theory.planner.plan import Plan, plans
from course_lib.theory.planner.ranking import Estimate, estimate, in_order, questions, under
from tests.unit.figures.pictures import check_legible, title_of

SHAPE, BATCH = TransformerShape(blocks=4, width=256, length=64, vocabulary=256, heads=4), 32


@pytest.fixture(scope="module")
def estimates() -> list[Estimate]:
    machine = machine_of(reference_machine())
    return in_order(
        estimate(SHAPE, BATCH, plan, machine) for plan in plans(SHAPE, BATCH, 4, microbatches=(1, 8))
    )


def test_the_bars_count_what_fits_and_what_would_if_state_were_all() -> None:
    four = [Plan(data=4), Plan(data=4, zero=3), Plan(pipeline=4, microbatches=8), Plan(tensor=4)]
    needs = {plan.name: memory_of(SHAPE, BATCH, plan) for plan in four}
    picture = memory_bars(needs, 64e6)
    check_legible(picture)
    assert title_of(picture) == "2 of 4 plans fit into 64 MB; counting state only, 4 would"
    assert title_of(memory_bars(needs, 1e9)).startswith("4 of 4 plans fit into 1000 MB")


def test_the_cloud_names_the_fastest_that_fits(estimates: list[Estimate]) -> None:
    roomy, tight, none = (under(estimates, nbytes) for nbytes in (1e9, 32e6, 1e6))
    for some in (roomy, tight):
        picture = plan_cloud(some)
        check_legible(picture)
        fastest = min(one.seconds.value for one in some if one.fits)
        assert f"takes {1e3 * fastest:.0f} ms per step" in title_of(picture)
    assert title_of(plan_cloud(none)) == f"0 of {len(estimates)} plans fit into 1 MB"


@pytest.mark.parametrize("megabytes", [64, 32, 21, 1])
def test_the_tree_says_which_question_finds_a_plan(estimates: list[Estimate], megabytes: int) -> None:
    some = under(estimates, 1e6 * megabytes)
    picture = decision_tree(questions(some))
    check_legible(picture)
    if megabytes == 1:
        assert title_of(picture) == "Nothing fits into 1 MB per rank"
    else:
        first = next(n for n, one in enumerate(questions(some), 1) if one.answer)
        assert title_of(picture).startswith(f"{megabytes} MB per rank: question {first} finds")
        assert some[0].seconds.text in picture.alt


def test_predicted_and_measured_are_compared_in_parts_of_what_was_measured(estimates: list[Estimate]) -> None:
    three = [estimates[0], estimates[len(estimates) // 2], estimates[-1]]
    factors = ((1.0, 0.5), (0.8, 1.0), (1.0, 1.25))
    runs = [
        {"nbytes": one.memory.value * memory, "seconds": one.seconds.value * seconds}
        for one, (memory, seconds) in zip(three, factors, strict=True)
    ]
    picture = predicted_and_measured(three, runs)
    check_legible(picture)
    assert title_of(picture) == "Memory: off by 25% at most; time: off by 100% at most"


def test_the_sweep_names_the_fastest_plan_on_each_link() -> None:
    steps = sweep(RATES)
    picture = link_sweep(RATES, steps, LINKS)
    check_legible(picture)
    assert title_of(picture).startswith("With one port, “tensor on 8, pipeline across nodes” is the fastest")
    for seconds in steps.values():
        assert sorted(seconds, reverse=True) == seconds  # a faster link never costs time


def test_the_validation_is_drawn_with_its_misses() -> None:
    picture = validation_picture(configurations())
    check_legible(picture)
    assert title_of(picture).startswith("Of 132 plans, 132 are predicted within 15% in memory, 100 ")
