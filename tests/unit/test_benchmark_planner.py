"""The planner's validation: what was drawn, what counts as a right choice, and what is published."""

import json
from dataclasses import fields, replace

import pytest

from benchmarks import planner_validation
from benchmarks.planner_published import COMPARISONS, same_order
from benchmarks.planner_validation import (
    Outcome,
    as_json,
    by_ranks,
    choose,
    committed,
    draw,
    verdicts,
)
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of
from course.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"
FIELDS = [field.name for field in fields(Outcome)]


def test_the_committed_configurations_are_those_that_the_seed_draws() -> None:
    assert committed() == draw() != draw(seed=17)
    assert json.loads(as_json(draw())) == json.loads(planner_validation.DRAWN.read_text())


def outcome(name: str, nbytes: float, seconds: float, *, said: tuple[float, float] = (1.0, 1.0)) -> Outcome:
    """A plan that was measured so, and predicted `said` times as much of each."""
    return Outcome(name, said[0] * nbytes, nbytes, said[1] * seconds, seconds)


def test_a_choice_is_right_if_it_fits_and_is_nearly_the_fastest_that_does() -> None:
    small, middle, large = outcome("small", 10, 3), outcome("middle", 20, 2), outcome("large", 40, 1)
    assert choose([small, middle, large], 2) == (
        middle,
        middle,
        True,
    )  # the limit is 30: large does not fit
    near = outcome("near", 10, 2.1, said=(1, 0.9))
    assert choose([near, middle, large], 2) == (near, middle, True)
    slow = outcome("slow", 10, 3, said=(1, 0.5))
    assert choose([slow, middle, large], 2) == (slow, middle, False)
    hoped = outcome("hoped", 40, 1, said=(0.7, 1))
    assert choose([small, middle, hoped], 2) == (hoped, middle, False)
    feared = [outcome("feared", nbytes, 1, said=(9, 1)) for nbytes in (10, 20, 40)]
    assert choose(feared, 2) == (None, feared[0], False)


def test_the_verdicts_count_what_missed() -> None:
    one = replace(committed()[0], fitting=2)
    found = [outcome("a", 10, 3, said=(1.2, 1.3)), outcome("b", 20, 2), outcome("c", 40, 1, said=(1, 0.8))]
    said = verdicts([(one, found)])
    assert said["memory_worst"] == pytest.approx(0.2)
    assert (said["memory_within_15_percent"], said["plans"]) == (2, 3)
    assert said["seconds_median_error"] == pytest.approx(0.2)
    assert (said["right_choices"], said["configurations"], said["took_longer"]) == (1, 1, 1)
    assert by_ranks([(one, found)]) == {"all": said, f"{one.ranks} ranks": said}


def test_the_planner_beside_published_comparisons() -> None:
    assert [same_order(one) for one in COMPARISONS] == [False, True, True]
    assert [same_order(one, overlap=0.0) for one in COMPARISONS] == [False, False, True]


def test_the_committed_claims_are_those_of_the_committed_plans() -> None:
    result = json.loads((RESULTS / "planner_validation.json").read_text())
    drawn = committed()
    outcomes = [Outcome(**{name: each[name] for name in FIELDS}) for each in result["plans"]]
    pairs = [(one, outcomes[6 * n : 6 * n + 6]) for n, one in enumerate(drawn)]
    assert by_ranks(pairs) == result["claims"]
    assert [each["plan"] for each in result["plans"]] == [plan.name for one in drawn for plan in one.plans]


def test_the_memory_formula_of_today_is_near_every_measured_memory() -> None:
    measured = [
        each["measured_nbytes"]
        for each in json.loads((RESULTS / "planner_validation.json").read_text())["plans"]
    ]
    today = [memory_of(one.shape, one.batch, plan).value for one in committed() for plan in one.plans]
    assert max(abs(said / found - 1) for said, found in zip(today, measured, strict=True)) < 0.08
