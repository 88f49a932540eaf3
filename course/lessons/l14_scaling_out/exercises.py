"""Exercises of lesson 14, scaling out: an all-reduce in three steps, and a forecast with a mistake."""

from collections.abc import Sequence
from math import log2
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l14_scaling_out.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l14_scaling_out.quiz import QUESTIONS
from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
)

# -------------------------------------------------------------------- 14.1 the hierarchical all-reduce


def _check_hierarchical(answer: SimpleNamespace, comm: Any, node_of: Sequence[int]) -> None:
    from mpi4py import MPI

    node_of, rank = node_of[: comm.size], comm.rank
    inside = comm.Split(node_of[rank], rank)
    between = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, rank)
    leaders = sorted({node: r for r, node in reversed(list(enumerate(node_of)))}.values())
    array = np.full(3, 10.0**rank)
    answer.hierarchical_allreduce(inside, between, array)
    everyone = np.full(3, sum(10.0**r for r in range(comm.size)))
    of_node = sum(10.0**r for r, node in enumerate(node_of) if node == node_of[rank])
    how = (
        "How does a leader get the other nodes' numbers?"
        if inside.rank == 0
        else "Who sends it the sum of all?"
    )
    lookalikes = {
        "still holds its own numbers. Was the sum written into `array`?": 10.0**rank,
        f"holds {of_node:g}, the sum of its own node. {how}": of_node,
    }
    if np.allclose(array, everyone):
        return
    expect_array(
        array,
        everyone,
        {words: np.full(3, value) for words, value in lookalikes.items() if value != everyone[0]}
        | {
            f"holds {array[0]:g}: {missing_ranks(float(array[0]), comm.size)}. "
            f"The leaders are {', '.join(f'rank {leader}' for leader in leaders)}.": array.copy()
        },
    )


_HIERARCHICAL = '''\
def hierarchical_allreduce(inside, between, array):
    """Sum `array` over all ranks, in place: in the nodes, then between leaders, who pass the sum on."""
    inside.Allreduce(MPI.IN_PLACE, array)
    if between != MPI.COMM_NULL:
        between.Allreduce(MPI.IN_PLACE, array)
    inside.Bcast(array, root=0)
'''
_INSIDE, _BETWEEN = (
    "    inside.Allreduce(MPI.IN_PLACE, array)\n",
    "    if between != MPI.COMM_NULL:\n        between.Allreduce(MPI.IN_PLACE, array)\n",
)
_BCAST = "    inside.Bcast(array, root=0)\n"

HIERARCHICAL = Exercise(
    id="14.1",
    objectives=(3,),
    title="Sum inside each node first",
    task="`inside` is a communicator of the ranks on this node; its rank 0 is the leader. `between` is a "
    "communicator of all leaders; on the other ranks it is `MPI.COMM_NULL`. Sum `array` over all ranks with "
    "three collectives, one of them only on leaders. `team.Allreduce(MPI.IN_PLACE, array)` sums in place "
    "over a communicator `team`, and `team.Bcast(array)` copies from its rank 0.",
    stub='''\
def hierarchical_allreduce(inside, between, array):
    """Sum `array` over all ranks, in place: in the nodes, then between leaders, who pass the sum on."""
    ...
''',
    hints=(
        "After the first step every leader should hold the sum of its node. Which ranks talk in the second "
        "step? Which rank has the result then, and who still lacks it?",
        "          start       1 inside     2 between    3 inside\n"
        "node 0    1    10     11   11      1111  11     1111  1111\n"
        "node 1    100  1000   1100 1100    1111  1100   1111  1111",
        "inside.Allreduce(MPI.IN_PLACE, …)   if between != …: …   inside.Bcast(array, root=…)",
    ),
    solution=_HIERARCHICAL,
    check=_check_hierarchical,
    cases=((0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0, 1)),
    describe=lambda node_of: f"ranks 0 to 3 on nodes {', '.join(map(str, node_of))}",
    sizes=(3, 4, 2, 1),
    wrong=(
        WrongAnswer(changed(_HIERARCHICAL, (_BCAST, "")), "the sum of its own node"),
        WrongAnswer(changed(_HIERARCHICAL, (_BETWEEN, "")), "the sum of its own node"),
        WrongAnswer(changed(_HIERARCHICAL, (_INSIDE, "")), "contribution is missing"),
        WrongAnswer(changed(_HIERARCHICAL, (_BCAST, _INSIDE)), "is counted"),
        WrongAnswer(
            changed(_HIERARCHICAL, (_BETWEEN, "    between.Allreduce(MPI.IN_PLACE, array)\n")), "raised"
        ),
    ),
    why="64 nodes have eight ranks each, and the leaders use a ring. How many steps wait for a message "
    "between nodes, and how many would wait in one ring of all ranks?",
)

# -------------------------------------------------------------------- 14.2 a forecast

SIZES = (4, 1024, 16_384, 262_144)  # bytes of the messages that were timed
Case = tuple[int, float, float, float]  # ranks, bytes, α, β


def _check_forecast(answer: SimpleNamespace, comm: Any, case: Case) -> None:
    ranks, nbytes, alpha, beta = case
    seconds = [alpha + beta * size for size in SIZES]
    got = answer.forecast_seconds(ranks, nbytes, list(SIZES), seconds)
    expect(isinstance(got, int | float | np.number), f"returned {type(got).__name__}, expected seconds.")
    steps, chunk = 2 * (ranks - 1), nbytes / ranks
    right = steps * (alpha + beta * chunk)
    if _near(got, right):
        return
    lookalikes = {
        f"the forecast is {got:.3g} s, {right / got if got else 0:.2g} times too short. In each of the "
        f"{steps:,} steps a rank sends {chunk:,.0f} bytes. How long does that take, by the measurement?": (
            steps * chunk * (beta + alpha / SIZES[-1])
        ),
        f"the latency is in it once. How often does each of the {steps:,} steps pay it?": (
            alpha + steps * chunk * beta
        ),
        f"that is half of it: the ring takes {steps:,} steps.": right / 2,
        "those are the steps of recursive doubling, not of the ring.": log2(ranks) * (alpha + beta * nbytes),
        f"each step sends a chunk, {chunk:,.0f} bytes, not the whole array.": steps * (alpha + beta * nbytes),
    }
    for words, value in lookalikes.items():
        if _near(got, value, 0.0005):
            raise Wrong(words)
    raise Wrong(f"the forecast is {got:.4g} s, expected {right:.4g} s.")


def _near(one: float, other: float, within: float = 0.01) -> bool:
    return abs(one - other) < within * abs(other)


_FORECAST = '''\
def forecast_seconds(ranks, nbytes, sizes, seconds):
    """Forecast a ring all-reduce of `nbytes`; a message of sizes[i] bytes took seconds[i], one way."""
    link = fit_hockney(sizes, seconds)
    return 2 * (ranks - 1) * link.one_way_seconds(nbytes / ranks)
'''
_RETURN = "    return 2 * (ranks - 1) * link.one_way_seconds(nbytes / ranks)\n"
_STUB = '''\
def forecast_seconds(ranks, nbytes, sizes, seconds):
    """Forecast a ring all-reduce of `nbytes`; a message of sizes[i] bytes took seconds[i], one way."""
    bytes_per_second = sizes[-1] / seconds[-1]
    sent = 2 * (ranks - 1) / ranks * nbytes
    return sent / bytes_per_second
'''

FORECAST = Exercise(
    id="14.2",
    objectives=(5,),
    targets=("bandwidth-explains-small-messages",),
    title="Spot the bug: a forecast for 2,048 ranks",
    task="A colleague forecasts all-reduces from a measurement on two ranks. The forecast is right for 2 "
    "ranks, and each line looks sensible. For 2,048 ranks it is too short. Correct it. "
    "`fit_hockney(sizes, seconds)` fits α + βk (Hockney's model, our alpha-beta model) and returns a link "
    "like those of section 2: `link.one_way_seconds(k)` is the time of a message of k bytes.",
    stub=_STUB,
    hints=(
        "How many bytes does one message have on 2 ranks, and how many on 2,048? Which entry of `sizes` is "
        "nearest to each?",
        "1.6 MB      steps   bytes per message\n"
        "2 ranks         2             800,000\n"
        "2,048       4,094                 781   ← what does a message of this size take?",
        "link = fit_hockney(…), then … * link.one_way_seconds(nbytes / …)",
    ),
    solution=_FORECAST,
    check=_check_forecast,
    cases=((2, 1.6e6, 5e-5, 8e-8), (2048, 1.6e6, 5e-5, 8e-8), (64, 1e5, 1e-3, 1e-9)),
    describe=lambda case: f"{case[0]:,} ranks, {case[1] / 1e6:g} MB",
    sizes=(3,),
    imports="from course_lib.theory.cost_model import fit_hockney",
    wrong=(
        WrongAnswer(changed(_STUB, ("nbytes\n", "nbytes * 1.0\n")), "times too short"),
        WrongAnswer(
            changed(
                _FORECAST,
                (
                    _RETURN,
                    "    sent = 2 * (ranks - 1) / ranks * nbytes\n    return link.one_way_seconds(sent)\n",
                ),
            ),
            "the latency is in it once",
        ),
        WrongAnswer(changed(_FORECAST, ("2 * (ranks - 1)", "(ranks - 1)")), "that is half of it"),
        WrongAnswer(
            changed(
                _FORECAST,
                (_RETURN, "    return np.log2(ranks) * link.one_way_seconds(nbytes)\n"),
            ),
            "recursive doubling",
        ),
        WrongAnswer(changed(_FORECAST, ("nbytes / ranks", "nbytes")), "not the whole array"),
    ),
    why="for which arrays would the colleague's forecast be good on 2,048 ranks, too?",
)

EXERCISES = (HIERARCHICAL, QUESTIONS[0], FORECAST, QUESTIONS[1])
