"Exercises of lesson 02, Monte Carlo π: one sum over all ranks, counted right, and how much work it takes."

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l02_monte_carlo_pi.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l02_monte_carlo_pi.quiz import QUESTIONS
from course_lib.pi import standard_error
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array, missing_ranks

# -------------------------------------------------------------------- 02.1 the mean of all


def _check_mean_of_all(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    everyone = [_numbers(rank, lengths[rank]) for rank in range(comm.size)]
    mine = everyone[comm.rank].copy()
    got = answer.mean_of_all(comm, mine)
    expect(np.array_equal(mine, everyone[comm.rank]), "changed `numbers`, which belongs to the caller.")
    if comm.rank > 0:
        expect(got is None, f"returned {got}; only rank 0 has the mean, the others return None.")
        return
    expect(got is None or not np.any(np.isnan(got)), "got nan: somewhere 0 was divided by 0.")
    expect_array(got, np.concatenate(everyone).mean(), _lookalikes_of_the_mean(everyone))


def _numbers(rank: int, length: int) -> np.ndarray:
    """`length` numbers whose sum is 10**rank (0 when there are none)."""
    return np.full(length, 10.0**rank / max(length, 1))


def _lookalikes_of_the_mean(everyone: Sequence[np.ndarray]) -> dict[str, Any]:
    """What certain mistakes give: an explanation and the value."""
    sums = np.array([numbers.sum() for numbers in everyone])
    counts = np.array([numbers.size for numbers in everyone])
    total, means = counts.sum(), sums / np.maximum(counts, 1)
    found = {
        f"got the sum; the mean is {total} times smaller.": sums.sum(),
        "got the sum divided by the number of ranks; divide by the number of numbers.": sums.sum()
        / len(sums),
        "got the mean of the ranks' means: a rank with few numbers counts as much as one with many.": (
            means.mean()
        ),
        "got the mean of its own numbers; where do the others come in?": means[0],
        "got the sum of all, divided by its own number of numbers.": sums.sum() / max(counts[0], 1),
    }
    for rank in range(1, len(everyone)):
        without = f"got a mean in which rank {rank}'s contribution is missing."
        found[without] = (sums.sum() - sums[rank]) / max(total - counts[rank], 1)
    return {words: value for words, value in found.items() if not np.isclose(value, sums.sum() / total)}


def _listed(lengths: Sequence[int]) -> str:
    return f"{lengths[0]}, {lengths[1]}, … numbers"


_MEAN = '''\
def mean_of_all(comm, numbers):
    """Every rank has an array of `numbers`: return the mean of them all on rank 0, None elsewhere."""
    mine = np.array([numbers.sum(), numbers.size])
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return total[0] / total[1] if comm.rank == 0 else None
'''

MEAN_OF_ALL = Exercise(
    id="02.1",
    title="The mean of all numbers",
    task="Every rank has some numbers, not equally many, maybe none. Rank 0 wants to know the mean"
    " of them all. One `Reduce` is enough.",
    objectives=(1,),
    stub='''\
def mean_of_all(comm, numbers):
    """Every rank has an array of `numbers`: return the mean of them all on rank 0, None elsewhere."""
    mine = np.array([numbers.sum(), numbers.size])
    total = np.zeros_like(mine)
    return None
''',
    hints=(
        "`mine` holds all that the others need to know of this rank: a sum and a count. Which call adds up "
        "such arrays, and on which rank is the result?",
        "rank 0  [sum, count] ─┐\nrank 1  [sum, count] ─┼─ Reduce ─→  rank 0  [sum, count]  → divide once\n"
        "rank 2  [sum, count] ─┘",
        "comm.Reduce(mine, …, root=0), then on rank 0: return total[0] / …",
    ),
    solution=_MEAN,
    check=_check_mean_of_all,
    cases=((3, 3, 3, 3), (3, 1, 2, 5), (2, 0, 1, 4)),
    describe=lambda lengths: "an empty array on rank 1" if 0 in lengths else f"arrays of {_listed(lengths)}",
    sizes=(2, 3, 4, 1),  # alone, many mistakes give the right mean
    wrong=(
        WrongAnswer(
            changed(_MEAN, ("[numbers.sum(), numbers.size]", "[numbers.mean()]"), ("total[1]", "comm.size")),
            "the mean of the ranks' means",
        ),
        WrongAnswer(changed(_MEAN, ("total[1]", "comm.size")), "divided by the number of ranks"),
        WrongAnswer(
            changed(
                _MEAN,
                ("    comm.Reduce(mine, total, root=0)\n", ""),
                ("return total[0] / total[1]", "return mine[0] / mine[1]"),
            ),
            "the mean of its own numbers",
        ),
        WrongAnswer(changed(_MEAN, ("total[1]", "numbers.size")), "divided by its own number of numbers"),
        WrongAnswer(
            changed(
                _MEAN,
                ("comm.Reduce(mine, total, root=0)", "comm.Allreduce(mine, total)"),
                (" if comm.rank == 0 else None", ""),
            ),
            "only rank 0 has the mean",
        ),
        WrongAnswer(
            changed(_MEAN, ("    comm.Reduce", "    if comm.rank == 0:\n        comm.Reduce")),
            "waiting in Reduce",
        ),
    ),
    why="the sum and the count travel in one array. What would a second Reduce cost, and what would it gain?",
)

# -------------------------------------------------------------------- 02.2 how much work


def _check_darts_each(answer: SimpleNamespace, comm: Any, error: float) -> None:
    got = answer.darts_each(comm, error)
    expect(isinstance(got, int | float | np.number), f"returned {got!r}, expected a number of darts.")
    expect(got > 0, f"returned {got}: no dart at all.")
    together = standard_error(1) / np.sqrt(got * comm.size)  # what these darts are off by
    factor = (together / error) ** 2  # 1 when the number of darts is right, 2 when it is half of that
    if abs(factor - 1) < 0.01:
        return
    found = {
        "is what all ranks need together; how much of it is left for each?": 1 / comm.size,
        f"is right for one rank; {comm.size} ranks share the darts, not the square root of them.": (
            1 / np.sqrt(comm.size)
        ),
        "is 1.64 / error. In 1.64 / √N, N is under a root.": standard_error(1) / error / comm.size,
        "is 1.64 / error, shared out. In 1.64 / √N, N is under a root.": standard_error(1) / error,
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
    title="Predict a figure: how many darts?",
    task="How many darts does each rank have to throw, so that all ranks together are typically "
    "off by a given error?",
    objectives=(3,),
    stub='''\
def darts_each(comm, error):
    """Return how many darts each rank throws so that all together are typically off by `error`."""
    return 1_000_000
''',
    hints=(
        "1.64 / √N is how far off N darts are. Here the error is given, and N is wanted.",
        "error = 1.64 / √N   →   √N = 1.64 / error   →   N = ?   and N is for all ranks together",
        "return (1.64 / error) ** … / comm.…",
    ),
    solution=_DARTS,
    check=_check_darts_each,
    cases=(0.01, 0.001),
    describe=lambda error: f"an error of {error:g}",
    wrong=(
        WrongAnswer(changed(_DARTS, (" / comm.size", "")), "is what all ranks need together"),
        WrongAnswer(changed(_DARTS, (" ** 2", "")), "N is under a root"),
        WrongAnswer(changed(_DARTS, ("comm.size", "comm.size**0.5")), "not the square root of them"),
        WrongAnswer(changed(_DARTS, ("1.64 / error", "1.64 * error")), "are typically off by"),
    ),
    why="one more digit takes a hundred times the darts. How many ranks would you need for it in the same "
    "time?",
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
    expect(rest != 0, f"got {got:,}: too small by {turns} · 2³². In how many bits were the darts counted?")
    expect(abs(off) > 512, f"got {got:,}, wrong in the last digits: 32 bits of a float keep about seven.")
    expect(False, f"got {got:,}, expected {expected:,}.")


_TOTAL = '''\
def total_darts(comm, darts):
    """Return how many darts all ranks have thrown together on rank 0, None elsewhere."""
    mine = np.array(darts, dtype="int64")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
'''

TOTAL_DARTS = Exercise(
    id="02.3",
    title="Spot the bug: many darts",
    task='This is the article\'s way to count, `dtype="i"`. It is right for a few darts.',
    objectives=(1,),
    targets=("counts-fit-32-bits",),
    stub='''\
def total_darts(comm, darts):
    """Return how many darts all ranks have thrown together on rank 0, None elsewhere."""
    mine = np.array(darts, dtype="i")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
''',
    hints=(
        'The program is right for a few darts. What does "i" say about the numbers in an array?',
        "32 bits count up to 2³¹ − 1 = 2,147,483,647. One more, and it is −2,147,483,648; two ranks with 1.5 "
        "thousand million each are past it.",
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
    why="no error was raised when the count went past the end. Where else in a program would you not notice?",
)

EXERCISES = (MEAN_OF_ALL, *QUESTIONS, DARTS_EACH, TOTAL_DARTS)
