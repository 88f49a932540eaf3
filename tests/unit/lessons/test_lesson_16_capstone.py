"""The capstone of lesson 16: the fastest plans, what is said of the others, and twins that decide alike."""

from dataclasses import replace

import pytest

from course.lessons.l16_choose_your_strategy.capstone import (
    CHATBOT,
    LAPTOP,
    NEAR,
    PATHOLOGY,
    TEAMS,
    TWIN_RANKS,
    WEATHER,
    Team,
    complaint,
    twin_of,
)
from course_lib.theory.planner.memory import memory_of
from course_lib.theory.planner.plan import Plan, why_not
from course_lib.theory.planner.quantity import leaves

SAMPLES = (1, 2, 4)  # per micro-batch


def name(team: Team) -> str:
    return team.name


def candidates(team: Team) -> list[Plan]:
    """Plans of every kind on the team's ranks, with few samples per micro-batch."""
    found = []
    ways = [2**n for n in range(13) if 2**n <= team.ranks]
    for tensor in ways:
        for pipeline in ways:
            for tiles in ((1, 1), (1, 2), (2, 2), (1, 4)):
                data, rest = divmod(team.ranks, tensor * pipeline * tiles[0] * tiles[1])
                if rest or not data or team.batch % data:
                    continue
                axes = Plan(data, pipeline=pipeline, tensor=tensor, tiles=tiles)
                found += [
                    option for samples in SAMPLES for option in options(axes, team.batch // data, samples)
                ]
    return [plan for plan in dict.fromkeys(found) if why_not(team.shape, team.batch, plan) is None]


def options(axes: Plan, mine: int, samples: int) -> list[Plan]:
    """With every stage of ZeRO, recomputed or not, …"""
    microbatches = max(1, mine // samples)
    return [
        replace(axes, zero=zero, microbatches=microbatches, recompute=again, sequence=cut, offload=offload)
        for zero in range(4)
        for again in (False, True)
        for cut in (False, True)
        for offload in ((False, True) if axes.ranks == 1 else (False,))
    ]


@pytest.mark.parametrize(
    "team",
    [PATHOLOGY, LAPTOP, *(pytest.param(t, marks=pytest.mark.slow) for t in (CHATBOT, WEATHER))],
    ids=name,
)
def test_no_plan_that_fits_is_faster_and_the_twin_of_every_good_one_fits(team: Team) -> None:
    best = team.estimate(team.fastest)
    assert best.fits and complaint(team, team.fastest) == ""
    for plan in candidates(team):
        found = team.estimate(plan)
        if found.fits:
            assert found.seconds.value > 0.995 * best.seconds.value, plan.name
        if found.fits and found.seconds.value <= (1 + NEAR) * best.seconds.value:
            twin, problem = twin_of(team, plan), team.twin
            assert memory_of(problem.shape, problem.batch, twin).value <= 0.93 * problem.limit_nbytes, (
                plan.name
            )


@pytest.mark.parametrize(
    ("team", "plan"),
    [
        (CHATBOT, Plan(data=8, microbatches=8)),
        (CHATBOT, Plan(data=8, zero=1, microbatches=8)),
        (PATHOLOGY, Plan(data=4, microbatches=2)),
        (PATHOLOGY, Plan(data=4, zero=3, microbatches=2)),
        (PATHOLOGY, Plan(pipeline=4, microbatches=8)),
        (LAPTOP, Plan(microbatches=32)),
        (LAPTOP, Plan(microbatches=8, offload=True)),
    ],
    ids=lambda item: getattr(item, "name", ""),
)
def test_what_is_too_large_has_a_twin_that_is_too_large(team: Team, plan: Plan) -> None:
    assert not team.estimate(plan).fits and "per GPU, and there are" in complaint(team, plan)
    twin, problem = twin_of(team, plan), team.twin
    assert memory_of(problem.shape, problem.batch, twin).value > problem.limit_nbytes


@pytest.mark.parametrize("team", TEAMS, ids=name)
def test_a_twin_runs_on_four_ranks_at_most(team: Team) -> None:
    some = [plan for plan in candidates(team) if plan.microbatches <= 64][::7]
    for plan in some:
        twin = twin_of(team, plan)
        assert twin.ranks == min(plan.ranks, TWIN_RANKS)
        assert why_not(team.twin.shape, team.twin.batch, twin) is None, (plan.name, twin.name)


def test_a_twin_keeps_the_axes_of_its_plan() -> None:
    twin = twin_of(CHATBOT, Plan(data=4, tensor=2, zero=1, microbatches=8))
    assert (twin.data, twin.tensor, twin.zero, twin.microbatches) == (2, 2, 1, 8)
    assert twin_of(WEATHER, Plan(data=512, tensor=8)).name == "data parallel on 2 × tensor parallel on 2"
    assert twin_of(LAPTOP, LAPTOP.fastest).offload


@pytest.mark.parametrize(
    ("team", "plan", "words"),
    [
        (CHATBOT, Plan(data=4), "takes 4 GPUs, and the team has 8"),
        (WEATHER, Plan(data=4096), "cannot run: a batch of 512"),
        (CHATBOT, Plan(data=8, microbatches=0), "cannot run: microbatches is 0"),
        (CHATBOT, Plan(data=8, zero=1, microbatches=8, offload=True), "another plan that fits takes"),
        (CHATBOT, Plan(data=8, zero=1, microbatches=8), "Most of it: the weights"),
        (
            LAPTOP,
            Plan(microbatches=32, recompute=True),
            "takes 7.92 s per step; another plan that fits takes 7.05 s",
        ),
    ],
    ids=lambda item: getattr(item, "name", ""),
)
def test_a_complaint_has_both_numbers(team: Team, plan: Plan, words: str) -> None:
    assert words in complaint(team, plan)


@pytest.mark.parametrize("team", TEAMS, ids=name)
def test_every_number_of_an_estimate_has_a_source(team: Team) -> None:
    found = team.estimate(team.fastest)
    kinds = {leaf.source.split(":")[0] for leaf in (*leaves(found.memory), *leaves(found.seconds))}
    assert kinds <= {"given", "counted", "cited"}
