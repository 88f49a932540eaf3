"""What lesson 16 says follows from what was predicted and measured; numbers open down to their sources."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from course.lessons.l16_choose_your_strategy import words
from course.lessons.l16_choose_your_strategy.traced import clickable, ranking
from course.lessons.l16_choose_your_strategy.validation import (
    COMMITTED,
    Configuration,
    Outcome,
    configurations,
    share_of_right,
    verdict,
    wrong_choices,
)
from course.lessons.l16_choose_your_strategy.words import (
    ESTIMATORS,
    choices,
    estimators_table,
    explain_combined,
    explain_fitting,
    explain_half,
    explain_runs,
    explain_star,
    recomputing_and_communicating,
    short,
    worst_errors,
)
from course.lessons.shared import machine as measuring
from course_lib.theory.hockney import Hockney, Piecewise
from course_lib.theory.planner.machine import Link, limited
from course_lib.theory.planner.measured import machine_of
from course_lib.theory.planner.memory import memory_of
from course_lib.theory.planner.models import TransformerShape
from course_lib.theory.planner.plan import Plan, plans
from course_lib.theory.planner.quantity import given, leaves
from course_lib.theory.planner.ranking import Decision, Estimate, estimate, in_order, questions, under

SHAPE, BATCH = TransformerShape(blocks=4, width=64, length=32, vocabulary=64, heads=4), 32
MACHINE = limited(machine_of(measuring.reference_machine()), 3e6)


@pytest.fixture(scope="module")
def estimates() -> list[Estimate]:
    return in_order(
        estimate(SHAPE, BATCH, plan, MACHINE) for plan in plans(SHAPE, BATCH, 4, microbatches=(1, 8))
    )


# ------------------------------------------------------------------ numbers that open


class Tags(HTMLParser):
    """Raises AssertionError when a tag is closed that is not the innermost one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_number_opens_down_to_everything_that_it_is_made_of(estimates: list[Estimate]) -> None:
    for quantity in (estimates[0].memory, estimates[0].seconds):
        shown = clickable(quantity, "number").html
        tags = Tags()
        tags.feed(shown)
        assert not tags.open
        assert shown.count("<details>") > 10
        for leaf in leaves(quantity):
            assert leaf.text.replace("&", "&amp;") in shown


def test_a_formula_is_opened_once(estimates: list[Estimate]) -> None:
    shown = clickable(memory_of(SHAPE, BATCH, Plan(data=4)), "memory").html
    again = len(re.findall(r"\(see above\)", shown))
    assert again > 0
    opened = re.findall(r"</summary>= (<code>.*?</code>)", shown)
    assert len(opened) == shown.count("<details>")


def test_the_ranking_shows_three_numbers_per_plan_and_the_reasons(estimates: list[Estimate]) -> None:
    shown = ranking(estimates, most=2)
    assert shown.html.count("<tr>") == 3
    assert f"… and {len(estimates) - 2} more plans." in shown.html
    assert "plans fit into 3 MB per rank." in shown.html and "plans fit into 3 MB per rank." in shown.text
    assert set(shown._repr_mimebundle_()) == {"text/html", "text/plain"}


# ------------------------------------------------------------------ sentences


def test_each_choice_needs_more_and_takes_less_than_the_one_before(estimates: list[Estimate]) -> None:
    found = choices(estimates)
    memory, seconds = [one.memory.value for one in found], [one.seconds.value for one in found]
    assert memory == sorted(memory) and seconds == sorted(seconds, reverse=True)
    for one in found:
        best = under(estimates, one.memory.value)[0]
        assert best.seconds.value == one.seconds.value


def test_plans_whose_activations_alone_are_too_many_are_named() -> None:
    needs = {plan.name: memory_of(SHAPE, BATCH, plan) for plan in (Plan(data=4), Plan(tensor=4))}
    said = explain_fitting(needs, 3.5e6)
    assert said.startswith("The state of data parallel on 4 (")
    data, tensor = (need.value / 1e6 for need in needs.values())
    assert said.endswith(f"they need {data:.3g} MB and {tensor:.3g} MB.")
    assert explain_fitting(needs, 1e9) == "Each plan whose state fits does fit."


def decided(limit: Estimate, *kinds: tuple[float, float]) -> list[Decision]:
    """Decisions whose fastest plans take these seconds and this part of the limit of memory."""
    found = []
    for seconds, part in kinds:
        memory = given(part * limit.limit.value, "memory", "bytes")
        one = replace(limit, seconds=given(seconds, "a step", "s"), memory=memory)
        found.append(Decision("", one, one))
    return found


def test_the_star_is_weighed_against_the_error_of_the_times(estimates: list[Estimate]) -> None:
    three = decided(estimates[0], (1.0, 0.5), (0.9, 0.5), (0.8, 0.5))
    assert "0.8 s" in (said := explain_star(three, (0.0, 0.2))) or "800 ms" in said
    assert (
        "which is 20% less. That is not more than the error of the predicted times above (up to 20%)" in said
    )
    assert said.endswith("so take the first plan, which is plainer, or measure both.")
    beyond = explain_star(three, (0.0, 0.15))
    assert "That is more than the error of the predicted times above (up to 15%)" in beyond
    assert beyond.endswith(
        f"The plainest plan within this error of the fastest is {estimates[0].plan.name}: 900 ms."
    )
    assert explain_star(three, (0.0, 0.05)).endswith(
        "No plainer plan comes within this error of the fastest."
    )
    assert explain_star(three[2:], (0.0, 0.05)).endswith("is also the fastest.")
    assert explain_star(questions(under(estimates, 1.0)), (0.0, 0.1)) == "No plan fits."


def test_a_plan_that_may_not_fit_is_advised_with_a_warning(estimates: list[Estimate]) -> None:
    two = decided(estimates[0], (1.0, 0.98), (0.9, 0.5))
    warned = explain_star(two, (0.04, 0.2))
    assert warned.endswith("Above, memory was off by up to 4%, so check that it fits.")
    assert f"It needs {two[0].smallest.memory.text} of {estimates[0].limit.text}." in warned
    for safe in (explain_star(two, (0.01, 0.2)), explain_star(two, (0.04, 0.05))):
        assert "check" not in safe
    assert "check that it fits" in explain_star(two[:1], (0.04, 0.2))


def runs_of(three: list[Estimate], *seconds: float) -> list[dict[str, float]]:
    return [{"nbytes": one.memory.value, "seconds": each} for one, each in zip(three, seconds, strict=True)]


def test_a_wrong_choice_is_called_wrong(estimates: list[Estimate]) -> None:
    three = estimates[:3]
    assert explain_runs(three, runs_of(three, 1, 2, 3)).startswith("The planner's choice was the fastest")
    assert "took 5% longer" in explain_runs(three, runs_of(three, 1.05, 1, 3))
    assert "no real difference" in explain_runs(three, runs_of(three, 1.05, 1, 3))
    assert explain_runs(three, runs_of(three, 1.5, 1, 3)).startswith(
        f"Wrong: {three[1].plan.name} was faster"
    )
    errors = worst_errors(
        three,
        runs_of(
            three, *(one.seconds.value / factor for one, factor in zip(three, (1, 0.8, 1.1), strict=True))
        ),
    )
    assert errors == (0, pytest.approx(0.2))
    large = [{"nbytes": 1e9, "seconds": 1.0}, *runs_of(three, 1, 2, 3)[1:]]
    assert explain_runs(three, large).startswith(f"Wrong about what fits: {three[0].plan.name}.")


def test_what_combining_many_strategies_needs_and_takes(estimates: list[Estimate]) -> None:
    many = Plan(data=2, zero=2, tensor=2, sequence=True, microbatches=4, recompute=True)
    keeps = replace(many, recompute=False)
    last, kept = (estimate(SHAPE, BATCH, plan, MACHINE) for plan in (many, keeps))
    again, exchanged = recomputing_and_communicating(last)
    once_more = last.seconds.value - exchanged - (kept.seconds.value - recomputing_and_communicating(kept)[1])
    assert again == pytest.approx(once_more) and again > 0
    links = free_of(MACHINE.inside), free_of(MACHINE.between)
    free = replace(MACHINE, inside=links[0], between=links[1], calls={}, crowded_calls={})
    assert exchanged == pytest.approx(last.seconds.value - estimate(SHAPE, BATCH, many, free).seconds.value)
    runs = [{"nbytes": 100.0, "seconds": 1.0}, {"nbytes": 40.0, "seconds": 2.0}]
    first = estimates[0]
    said = explain_combined([first, last], runs)
    factor = last.seconds.value / first.seconds.value
    assert said.startswith(
        f"The predicted factor is {factor:.3g}: {last.seconds.text} against {first.seconds.text}."
    )
    assert f"Of the {last.seconds.text}, recomputing takes {given(again, unit='s').text} and " in said
    assert "Measured were 2 s against 1 s." in said
    assert said.endswith("The five-strategy plan needs 40% of the memory of the planner's choice.")
    staged = estimate(SHAPE, BATCH, Plan(data=2, pipeline=2), MACHINE)
    assert "recomputing" not in explain_combined([first, staged], runs)


def free_of(link: Link) -> Link:
    """The same link, over which messages and sums take no time."""
    nothing = Piecewise((float("inf"),), (Hockney(0.0, 0.0),))
    return replace(link, exchange=nothing, sum=nothing)


def test_the_choice_under_another_limit(estimates: list[Estimate]) -> None:
    assert explain_half(estimates, estimates, 0.1) == f"The choice is still {estimates[0].plan.name}."
    assert explain_half(estimates, under(estimates, 1.0), 0.1) == "Nothing fits into 1 bytes per rank."
    tight = under(estimates, choices(estimates)[0].memory.value)
    shorter = 1 - estimates[0].seconds.value / tight[0].seconds.value
    said = explain_half(estimates, tight, shorter - 0.01)
    assert said == f"The choice was {estimates[0].plan.name}; now it is {tight[0].plan.name}."
    assert "differ by no more than the error" in explain_half(estimates, tight, shorter + 0.01)


def test_long_names_are_broken_between_words() -> None:
    assert short("ZeRO-1 on 2 × 1F1B pipeline of 2", 16) == "ZeRO-1 on 2 ×\n1F1B pipeline of\n2"


# ------------------------------------------------------------------ the validation


def test_the_committed_results_are_those_that_were_claimed() -> None:
    found, claimed = configurations(), json.loads(COMMITTED.read_text())["claims"]
    said = verdict(found)
    assert len(found) == claimed["configurations"] == 24
    assert f"{claimed['memory_within_15_percent']} of {claimed['plans']} plans within 15%" in said
    assert f"median error {claimed['seconds_median_error']:.0%}" in said
    assert f"right in {claimed['right_choices']} of 24" in said
    assert len(wrong_choices(found)) == 24 - claimed["right_choices"]


def test_a_configuration_for_which_nothing_is_said_to_fit_is_a_wrong_choice() -> None:
    feared = tuple(Outcome(str(n), 90.0 * n, 10.0 * n, 1.0, 1.0) for n in (1, 2))
    (line,) = wrong_choices([Configuration("mlp", 2, 1, feared)])
    assert "the planner said that nothing fits" in line


def test_a_random_plan_is_right_as_often_as_fitting_plans_are_near_the_fastest() -> None:
    plans = [Outcome(str(n), n, n, 1.0, seconds) for n, seconds in ((1, 1.09), (2, 1.0), (3, 1.2), (4, 0.1))]
    assert share_of_right(plans, 3) == pytest.approx(2 / 3)  # the fourth does not fit
    assert share_of_right(plans, 1) == 1


# ------------------------------------------------------------------ jobs


def test_a_machine_that_cannot_be_measured_is_replaced_by_the_reference_and_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("mpiexec", 1.0)

    monkeypatch.setattr(measuring, "run_ranks", late)
    monkeypatch.setattr(measuring, "BUILD", tmp_path)
    found = measuring.machine_or_reference()
    assert found == measuring.reference_machine()
    assert "could not be measured" in measuring.whose(found)
    assert not list(tmp_path.iterdir())
    assert measuring.whose(found | {"cores": 64}) == "Measured on this machine."
    with pytest.raises(measuring.MachineError, match="not done in 180 s"):
        measuring.measure_machine(tmp_path / "machine.json")


def test_the_estimators_are_asked_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int, stdout: str) -> Callable[..., subprocess.CompletedProcess[str]]:
        return lambda *_, **__: subprocess.CompletedProcess([], code, stdout, "")

    marked = ESTIMATORS + json.dumps("a table")
    monkeypatch.setattr(words, "run_ranks", ends(0, f"noise\n{marked}\n"))
    assert estimators_table() == "a table"
    monkeypatch.setattr(words, "run_ranks", ends(3, ""))
    assert estimators_table().startswith("The estimators did not answer (code 3)")
