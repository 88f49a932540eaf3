"""Exercises of lesson 04, collectives: an all-reduce from its two halves, and a program with two mistakes.

Those on the ring and on the tree are in `lesson_04_by_hand.py`.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l04_collectives.exercises_by_hand import RING_HALF, TRACE, TREE
from course.lessons.l04_collectives.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l04_collectives.quiz import QUESTIONS
from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
)

# -------------------------------------------------------------------- 04.1 an all-reduce in two steps


def _check_sum_in_two_steps(answer: SimpleNamespace, comm: Any, length: int) -> None:
    positions = np.arange(1.0, length + 1)
    everyone = [positions * 10.0**rank for rank in range(comm.size)]
    mine = everyone[comm.rank].copy()
    got = answer.sum_in_two_steps(_without_allreduce(comm), mine)
    expect(np.array_equal(mine, everyone[comm.rank]), "changed `mine`, which belongs to the caller.")
    expected = np.sum(everyone, axis=0)
    expect_array(got, expected, _lookalikes_of_the_sum(everyone, comm.rank) if comm.size > 1 else None)


def _without_allreduce(comm: Any) -> Any:
    """The same communicator, on which Allreduce is no answer."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise Wrong("called Allreduce, which does both steps. Make it of Reduce_scatter and Allgatherv.")

    return type("TwoSteps", (type(comm),), {"Allreduce": refuse, "allreduce": refuse})(comm)


def _lookalikes_of_the_sum(everyone: Sequence[np.ndarray], rank: int) -> dict[str, Any]:
    """What certain mistakes give: an explanation and the value."""
    total, size = np.sum(everyone, axis=0), len(everyone)
    parts = np.array_split(np.arange(len(total)), size)
    own_part, not_added = np.zeros_like(total), np.zeros_like(total)
    own_part[parts[rank]] = total[parts[rank]]
    for other, part in enumerate(parts):
        not_added[part] = everyone[other][part]
    found = {
        "got its own numbers: nothing was added.": everyone[rank],
        "gathered the parts, but nobody had added them up: which call adds?": not_added,
        "got zeros: the parts were collected on another rank. Who is to have them all?": np.zeros_like(total),
        "has its own part of the sum, and zeros: where are the parts of the others?": own_part,
        f"got the mean; the sum is {size} times larger.": total / size,
    }
    for other in range(size):
        words = f"got sums in which {missing_ranks(_ones(size) - 10**other, size)}."
        found[words] = total - everyone[other]
    return found


def _ones(size: int) -> int:
    return int("1" * size)


_SUM = '''\
def sum_in_two_steps(comm, mine):
    """Return, on every rank, the sum of all ranks' arrays `mine`, of any length."""
    counts = [len(part) for part in np.array_split(mine, comm.size)]  # 7 numbers on 3 ranks: 3, 2, 2
    part, total = np.zeros(counts[comm.rank]), np.zeros_like(mine)
    comm.Reduce_scatter(mine, part, counts)
    comm.Allgatherv(part, [total, counts])
    return total
'''

SUM_IN_TWO_STEPS = Exercise(
    id="04.1",
    objectives=(2,),
    title="An all-reduce in two steps",
    task="Arrays need not divide evenly. Then both calls want to know how many numbers each rank "
    "gets, its `counts`: `Reduce_scatter(array, part, counts)`, without `_block`, and\n"
    "`Allgatherv(part, [array, counts])`.",
    stub='''\
def sum_in_two_steps(comm, mine):
    """Return, on every rank, the sum of all ranks' arrays `mine`, of any length."""
    counts = [len(part) for part in np.array_split(mine, comm.size)]  # 7 numbers on 3 ranks: 3, 2, 2
    part, total = np.zeros(counts[comm.rank]), np.zeros_like(mine)
    return total
''',
    hints=(
        "Two lines are missing, the two halves of the section above, for parts that are not equal. Which of "
        "them comes first, and what does it fill?",
        "mine ── Reduce_scatter, with counts ──→ part   (my part of the sum)\n"
        "part ── Allgatherv, with counts ─────→ total  (all parts, on every rank)",
        "comm.Reduce_scatter(mine, …, counts)   and   comm.Allgatherv(…, [total, …])",
    ),
    solution=_SUM,
    check=_check_sum_in_two_steps,
    cases=(12, 7, 2),
    describe=lambda length: f"arrays of {length} numbers",
    sizes=(2, 3, 4, 1),  # alone, nothing has to be added
    wrong=(
        WrongAnswer(
            changed(
                _SUM,
                (
                    "    comm.Allgatherv(part, [total, counts])\n",
                    "    start = sum(counts[: comm.rank])\n    total[start : start + len(part)] = part\n",
                ),
            ),
            "where are the parts of the others?",
        ),
        WrongAnswer(
            changed(
                _SUM,
                (
                    "comm.Reduce_scatter(mine, part, counts)",
                    "part = np.array_split(mine, comm.size)[comm.rank]",
                ),
            ),
            "nobody had added them up",
        ),
        WrongAnswer(
            changed(
                _SUM,
                ("    comm.Reduce_scatter(mine, part, counts)\n", ""),
                ("comm.Allgatherv(part, [total, counts])", "comm.Allreduce(mine, total)"),
            ),
            "which does both steps",
        ),
        WrongAnswer(changed(_SUM, ("Allgatherv", "Gatherv")), "the parts were collected on another rank"),
        WrongAnswer(
            changed(_SUM, ("    comm.Allgatherv", "    if comm.rank == 0:\n        comm.Allgatherv")),
            "waiting in Allgatherv",
        ),
        WrongAnswer(changed(_SUM, ("return total", "return total / comm.size")), "got the mean"),
    ),
    why="each rank adds up only its own part. What would it add up if all sent their whole arrays to all?",
)

# -------------------------------------------------------------------- 04.5 two mistakes


def _check_centred(answer: SimpleNamespace, comm: Any, length: int) -> None:
    ranks = range(comm.size)
    everyone = [np.arange(length) + 10.0**rank for rank in ranks]
    scales = [np.array([2.0 + 3 * rank]) for rank in ranks]
    mine, scale, mean = everyone[comm.rank], scales[comm.rank].copy(), np.mean(everyone, axis=0)
    got = answer.centred(comm, mine.copy(), scale)
    lookalikes: dict[str, Any] = {}
    if comm.size > 1:
        rooted = "took a sum that is not here: after Reduce, only the root has it."
        lookalikes |= {
            rooted: mine * scales[0],
            f"{rooted} And the scale is its own, not rank 0's.": mine * scales[comm.rank],
            "has the right mean, but not the scale of rank 0: did this rank call Bcast, too?": (
                (mine - mean) * scales[comm.rank]
            ),
            "took away the sum; the mean is wanted.": (mine - mean * comm.size) * scales[0],
            "took the scale of the last rank.": (mine - mean) * scales[-1],
            "took away its own numbers: that is no mean of all ranks.": np.zeros(length),
        }
    right = (mine - mean) * scales[0]
    expect_array(got, right, {words: v for words, v in lookalikes.items() if not np.allclose(v, right)})


_CENTRED = '''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Allreduce(mine, total)
    return (mine - total / comm.size) * scale
'''

CENTRED = Exercise(
    id="04.5",
    objectives=(1,),
    targets=("only-root-calls", "reduce-fills-every-rank"),
    title="Spot the bugs: two collectives, two mistakes",
    task="This program is right on rank 0, and raises no error anywhere.",
    stub='''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    if comm.rank == 0:
        comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return (mine - total / comm.size) * scale
''',
    hints=(
        "On rank 0 the result is right. What do the other ranks know of the scale, and what of the sum?",
        "          scale                total\n"
        "rank 0    its own: right       the sum\n"
        "rank 1    who gave it one?     zeros: the sum is on the root",
        "one call has to be made by all ranks; the other has to fill all ranks: comm.…reduce(mine, total)",
    ),
    solution=_CENTRED,
    check=_check_centred,
    cases=(1, 3),
    describe=lambda length: f"{length} number{'s' * (length > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_CENTRED, ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)")),
            "only the root has it",
        ),
        WrongAnswer(
            changed(_CENTRED, ("    comm.Bcast(scale, root=0)\n", "")),
            "did this rank call Bcast, too?",
        ),
        WrongAnswer(
            changed(
                _CENTRED,
                ("    comm.Bcast(scale, root=0)\n", ""),
                ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)"),
            ),
            "And the scale is its own",
        ),
        WrongAnswer(
            changed(_CENTRED, ("comm.Bcast(scale, root=0)", "comm.Bcast(scale, root=comm.size - 1)")),
            "the scale of the last rank",
        ),
        WrongAnswer(changed(_CENTRED, (" / comm.size", "")), "took away the sum"),
    ),
    why="the program with both mistakes did not hang. Why is that worse than if it had?",
)

EXERCISES = (SUM_IN_TWO_STEPS, *QUESTIONS, TRACE, RING_HALF, TREE, CENTRED)
