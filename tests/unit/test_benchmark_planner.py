"""The planner's validation: what was drawn, what counts as a right choice, and what is published."""

import json
from dataclasses import replace

import pytest

from benchmarks import planner_validation
from benchmarks.planner_validation import (
    COUNT,
    as_json,
    committed,
    draw,
    explain,
    verdicts,
)
from course.lessons.l16_choose_your_strategy.estimators import SHAPES, compare, table
from course.lessons.l16_choose_your_strategy.published import claims
from course.lessons.l16_choose_your_strategy.validation import Outcome, choose
from course_lib.theory.hockney import Hockney
from course_lib.theory.planner.machine import machine_on_paper
from course_lib.theory.planner.plan import why_not


def test_the_committed_configurations_are_those_that_the_seed_draws() -> None:
    assert committed() == draw() != draw(seed=17)
    assert json.loads(as_json(draw())) == json.loads(planner_validation.DRAWN.read_text())


def test_every_configuration_can_run() -> None:
    drawn = committed()
    assert len(drawn) == COUNT
    assert [sum(one.ranks == ranks for one in drawn) for ranks in (1, 2, 4)] == [9, 9, 6]
    for one in drawn:
        assert 1 <= one.fitting <= len(one.plans) == len(set(one.plans))
        assert all(plan.ranks == one.ranks for plan in one.plans)
        assert [why_not(one.shape, one.batch, plan) for plan in one.plans] == [None] * len(one.plans)


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
    assert (said["right_choices"], said["configurations"]) == (1, 1)


def test_a_configuration_is_explained_with_its_formulas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = Hockney(1e-6, 1e-9)
    paper = machine_on_paper(
        "paper",
        "nobody",
        memory_nbytes=1e9,
        flop_per_second=1e11,
        memory_bytes_per_second=1e10,
        inside=line,
        between=line,
        ranks_per_node=4,
    )
    monkeypatch.setattr(planner_validation, "this_machine", lambda: paper)
    explain(1)
    printed = capsys.readouterr().out
    assert "plans fit into 1 GB per rank." in printed
    assert "weights + gradients + optimizer + inputs + max(backward, update)" in printed
    assert "Does a plan fit when every rank keeps all weights, gradients and optimizer state? yes" in printed
    assert "Every number of it is cited: nobody, counted, given." in printed


def test_the_planner_beside_published_figures() -> None:
    errors = {claim.what: claim.error for claim in claims()}
    zero = [error for what, error in errors.items() if what.startswith("ZeRO")]
    assert len(zero) == 4 and max(map(abs, zero)) < 0.02
    assert -0.5 < errors["GPT-3 on 1,024 A100"] < 0  # at the peak rate, so faster than it was
    assert 0 < errors["ResNet-50 on Summit, 1,536 GPUs"] < 0.3


def test_the_estimators_count_state_alone() -> None:
    shape, batch = SHAPES["the course's, 3 million"]
    said = compare(shape, batch, 3, mixed=True)
    assert said.deepspeed is not None and said.deepspeed > said.state  # 18 bytes per parameter, not 16
    assert compare(shape, batch, 0, mixed=False).accelerate == 4 * said.state  # one rank's 16 bytes each
    assert said.accelerate == 4.5 * said.state  # 18: it adds 16-bit gradients to those in 32
    assert said.peak > said.state
    lines = table().splitlines()
    assert len(lines) == 1 + 5 * len(SHAPES) and lines[0].endswith("accelerate")
