"""Exercises of lesson 02, Monte Carlo π: one sum over all ranks, how many darts it takes, and a count."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l02_monte_carlo_pi.quiz import FOUR_TIMES, SAME_SEED
from course.lessons.l02_monte_carlo_pi.quiz import PREDICTIONS as PREDICTIONS
from course_lib.pi import share, standard_error
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array, missing_ranks

# -------------------------------------------------------------------- 02.1 π from all ranks


def _check_estimate(answer: SimpleNamespace, comm: Any, darts: int) -> None:
    thrown: list[int] = []

    def throw(number: int) -> int:
        """Rank r counts 10**r darts inside: the digits of the sum say whose counts are in it."""
        thrown.append(int(number))
        return int(10**comm.rank)

    got = answer.estimate(comm, throw, darts)
    mine = share(darts, comm.rank, comm.size)
    expect(sum(thrown) == mine, f"threw {sum(thrown)} darts; its share of {darts} is {mine}.")
    if comm.rank > 0:
        expect(got is None, f"returned {got}; only rank 0 has π, the others return None.")
        return
    expect(got is not None, "returned None; rank 0 returns π.")
    expect(np.size(got) == 1, f"returned {np.size(got)} numbers, expected one.")
    counts = [10**rank for rank in range(comm.size)]
    expect_array(np.ravel(got)[0], 4 * sum(counts) / darts, _lookalikes_of_pi(counts, darts))


def _lookalikes_of_pi(counts: Sequence[int], darts: int) -> dict[str, Any]:
    """What certain mistakes give: an explanation and the value."""
    size, total = len(counts), sum(counts)
    shares = [share(darts, rank, size) for rank in range(size)]
    found: dict[str, Any] = {
        "got 0: the sum of the counts has not arrived in `total`.": 0.0,
        "got the sum of the counts. π is four times the fraction of the darts that land inside.": total,
        "got the fraction of the darts that land inside. π is four times that.": total / darts,
        "divided the counts of all ranks by the darts of rank 0.": 4 * total / shares[0],
        "got rank 0's own estimate. Where do the counts of the other ranks come in?": 4
        * counts[0]
        / shares[0],
        "got the mean of the ranks' estimates. Their shares of the darts are not all equal.": np.mean(
            [4 * count / mine for count, mine in zip(counts, shares, strict=True)]
        ),
    }
    for rank, count in enumerate(counts):
        found[f"got a π in which rank {rank}'s count is missing."] = 4 * (total - count) / darts
    return {words: value for words, value in found.items() if not np.isclose(value, 4 * total / darts)}


_ESTIMATE = '''\
def estimate(comm, throw, darts):
    """Return π on rank 0, None elsewhere. `throw(n)` throws n darts and returns how many land inside."""
    mine = share(darts, comm.rank, comm.size)  # 10 darts on 4 ranks: 3, 3, 2 and 2
    inside = np.array(throw(mine))
    total = np.zeros_like(inside)
    comm.Reduce(inside, total, root=0)
    return 4 * total / darts if comm.rank == 0 else None
'''
_SUM = "    comm.Reduce(inside, total, root=0)\n"

ESTIMATE = Exercise(
    id="02.1",
    title="π from all ranks",
    task="The ranks of `comm` throw `darts` darts together. Each throws its share; rank 0 gets the sum of "
    "the counts and returns π. Fill the two gaps. The next section times your function.",
    objectives=(1,),
    stub=changed(
        _ESTIMATE,
        (_SUM, "    # gap 1: add up the counts of all ranks\n"),
        ("return 4 * total / darts if comm.rank == 0 else None", "return None  # gap 2: π, on rank 0 only"),
    ),
    hints=(
        "Section 5 has all that you need. Which array holds the rank's count, and in which array do you want "
        "the sum?",
        "rank 0  count ─┐\nrank 1  count ─┼─ Reduce ─→  rank 0  total  →  4 · total / darts\n"
        "rank 2  count ─┘",
        "comm.Reduce(inside, …, root=0)   and then   return 4 * … / … if comm.rank == 0 else None",
    ),
    solution=_ESTIMATE,
    check=_check_estimate,
    cases=(12, 10),
    describe=lambda darts: f"{darts} darts",
    sizes=(2, 3, 4, 1),  # alone, many mistakes give the right π
    imports="from course_lib.pi import share",
    wrong=(
        WrongAnswer(changed(_ESTIMATE, (_SUM, "")), "the sum of the counts has not arrived"),
        WrongAnswer(changed(_ESTIMATE, ("4 * total / darts", "total")), "got the sum of the counts"),
        WrongAnswer(changed(_ESTIMATE, ("4 * total", "total")), "got the fraction"),
        WrongAnswer(changed(_ESTIMATE, ("total / darts", "total / mine")), "by the darts of rank 0"),
        WrongAnswer(
            changed(_ESTIMATE, (_SUM, ""), ("total / darts", "inside / mine")), "got rank 0's own estimate"
        ),
        WrongAnswer(
            changed(
                _ESTIMATE,
                ("np.array(throw(mine))", "np.array(4 * throw(mine) / mine)"),
                ("4 * total / darts", "total / comm.size"),
            ),
            "the mean of the ranks' estimates",
        ),
        WrongAnswer(
            changed(_ESTIMATE, (_SUM, ""), ("total / darts", "inside / darts")), "rank 1's count is missing"
        ),
        WrongAnswer(changed(_ESTIMATE, ("throw(mine)", "throw(darts)")), "threw 12 darts; its share"),
        WrongAnswer(
            changed(
                _ESTIMATE,
                ("comm.Reduce(inside, total, root=0)", "comm.Allreduce(inside, total)"),
                (" if comm.rank == 0 else None", ""),
            ),
            "only rank 0 has π",
        ),
        WrongAnswer(
            changed(_ESTIMATE, ("    comm.Reduce", "    if comm.rank == 0:\n        comm.Reduce")),
            "waiting in Reduce",
        ),
    ),
    why="every rank contributed 8 bytes. How many would it contribute for a hundred times the darts?",
)

# -------------------------------------------------------------------- 02.2 how many darts


def _check_darts_each(answer: SimpleNamespace, comm: Any, error: float) -> None:
    got = answer.darts_each(comm, error)
    expect(isinstance(got, int | float | np.number), f"returned {got!r}, expected a number of darts.")
    expect(got > 0, f"returned {got}: no dart at all.")
    together = standard_error(1) / np.sqrt(got * comm.size)  # what these darts are off by
    factor = (together / error) ** 2  # 1 when the number of darts is right, 2 when it is half of that
    if abs(factor - 1) < 0.01:
        return
    found = {
        "is what all ranks need together. How many of them does each rank throw?": 1 / comm.size,
        f"is right for one rank. {comm.size} ranks divide it by {comm.size}, not by its square root.": (
            1 / np.sqrt(comm.size)
        ),
        "is 1.64 / error per rank. In 1.64 / √N, N is under a square root.": standard_error(1)
        / error
        / comm.size,
        "is 1.64 / error. In 1.64 / √N, N is under a square root.": standard_error(1) / error,
    }
    for words, lookalike in found.items():
        expect(abs(factor / lookalike - 1) > 0.01, f"{got:,.0f} {words}")
    expect(False, f"{got:,.6g} darts each are typically off by {together:.2g}, not by {error:g}.")


_DARTS = '''\
def darts_each(comm, error):
    """Return how many darts each rank throws so that all together are typically off by `error`."""
    return (1.64 / error) ** 2 / comm.size
'''

DARTS_EACH = Exercise(
    id="02.2",
    title="Predict a number: how many darts?",
    task="How many darts does each rank have to throw so that the estimate of all ranks together is "
    "typically off by `error`?",
    objectives=(4,),
    stub='''\
def darts_each(comm, error):
    """Return how many darts each rank throws so that all together are typically off by `error`."""
    return ...  # the gap: from `error` and the number of ranks
''',
    hints=(
        "N darts are typically off by 1.64 / √N. You know the error and look for N.",
        "error = 1.64 / √N   →   √N = 1.64 / error   →   N = ?   This N is for all ranks together",
        "return (1.64 / error) ** … / comm.…",
    ),
    solution=_DARTS,
    check=_check_darts_each,
    cases=(0.01, 0.001),
    describe=lambda error: f"an error of {error:g}",
    wrong=(
        WrongAnswer(changed(_DARTS, (" / comm.size", "")), "is what all ranks need together"),
        WrongAnswer(changed(_DARTS, (" ** 2", "")), "N is under a square root"),
        WrongAnswer(changed(_DARTS, ("comm.size", "comm.size**0.5")), "not by its square root"),
        WrongAnswer(changed(_DARTS, ("1.64 / error", "1.64 * error")), "are typically off by"),
    ),
    why="one more digit takes a hundred times the darts. How many times as many ranks would have it in the "
    "same time?",
)

# -------------------------------------------------------------------- 02.3 counts that grow

_TURN = 2**32


def _check_total_darts(answer: SimpleNamespace, comm: Any, base: int) -> None:
    got = answer.total_darts(comm, base + 10**comm.rank)
    if comm.rank > 0:
        expect(got is None, f"returned {got!r}; only rank 0 has the total, the others return None.")
        return
    expect(isinstance(got, int | np.integer), f"returned {got!r}, expected a whole number.")
    expected = base * comm.size + int("1" * comm.size)
    off = expected - int(got)
    if off == 0:
        return
    expect(base > 0, f"got {got:,}: {missing_ranks(int(got), comm.size)}.")
    turns, rest = divmod(off, _TURN)
    expect(rest != 0, f"got {got:,}: too small by {turns} · 2³². How many bits does the count have?")
    expect(abs(off) > 512, f"got {got:,}, wrong in the last digits: 32 bits of a float keep about seven.")
    expect(False, f"got {got:,}, expected {expected:,}.")


_TOTAL = '''\
def total_darts(comm, darts):
    """Return on rank 0 how many darts all ranks have thrown together; None elsewhere."""
    mine = np.array(darts, dtype="int64")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
'''

TOTAL_DARTS = Exercise(
    id="02.3",
    title="Spot the bug: many darts",
    task="This function adds up the darts of all ranks. It is right for a few darts. Find out when it "
    "goes wrong, and repair it.",
    objectives=(1,),
    targets=("counts-fit-32-bits",),
    stub='''\
def total_darts(comm, darts):
    """Return on rank 0 how many darts all ranks have thrown together; None elsewhere."""
    mine = np.array(darts, dtype="i")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
''',
    hints=(
        'The program is right for a few darts. What does "i" say about the numbers in an array?',
        "32 bits count up to 2³¹ − 1 = 2,147,483,647, and the next number is −2,147,483,648. Two ranks with "
        "1.5 billion darts each are past that.",
        'mine = np.array(darts, dtype="…")',
    ),
    solution=_TOTAL,
    check=_check_total_darts,
    cases=(0, 1_500_000_000, 5_000_000_000),
    describe=lambda base: f"{base:,} darts and a few on every rank" if base else "a few darts",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_TOTAL, ('darts, dtype="int64")', 'darts).astype("int32")')), "too small by 1 · 2³²"
        ),
        WrongAnswer(changed(_TOTAL, ("int64", "uint32")), "raised OverflowError"),
        WrongAnswer(changed(_TOTAL, ("int64", "float32")), "wrong in the last digits"),
        WrongAnswer(
            changed(_TOTAL, ("np.array(darts,", "np.array(darts if comm.rank else 0,")),
            "rank 0's contribution is missing",
        ),
        WrongAnswer(changed(_TOTAL, (" if comm.rank == 0 else None", "")), "only rank 0 has the total"),
    ),
    why="no error was raised when the count overflowed. How would you have noticed?",
)

EXERCISES = (ESTIMATE, FOUR_TIMES, SAME_SEED, DARTS_EACH, TOTAL_DARTS)
