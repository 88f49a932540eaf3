"""Exercises, questions, predictions of lesson 03: a line through times, one rank's number, terms far out."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from course_lib.pi import midpoint_loop
from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    Wrong,
    WrongAnswer,
    changed,
    expect,
)

# -------------------------------------------------------------------- 03.4 the line through two times


def _check_fit(answer: SimpleNamespace, comm: Any, ranks: int) -> None:
    a, b, small, large = 16e-6, 4e-9, 2_000, 1_000_000
    seconds = {n: a + b * n / ranks for n in (small, 50_000, large)}
    got = answer.fit(seconds, ranks)
    expect(isinstance(got, tuple) and len(got) == 2, f"returned {got!r}, expected a and b.")
    for name, found, right in (("b", got[1], b), ("a", got[0], a)):
        expect(isinstance(found, int | float), f"{name} is {found!r}, expected a number.")
        if abs(found - right) <= 1e-6 * right:
            continue
        lookalikes = {
            "b": {
                f"each rank has N / {ranks} strips, so your b is the time of 1/{ranks} strip.": b / ranks,
                "the slope of the line is b / p; you divided it by p once more.": b / ranks**2,
                "your b still contains part of a: what do the two times have in common?": seconds[large]
                / large
                * ranks,
                "the two jobs differ by large - small strips, but you divided by a different number.": b
                * (large - small)
                / large,
                "this is the overhead a. Which of the two is returned first?": a,
            },
            "a": {
                "the time of the smallest job includes its strips.": seconds[small],
                f"you subtracted the time of {small:,} strips; each rank has fewer.": seconds[small]
                - b * small,
                "a is what is left without the strips' time, so it is positive.": -a,
            },
        }[name]
        for words, value in lookalikes.items():
            expect(abs(found - value) > 1e-6 * abs(value), f"{name} = {found:.3g} s: {words}")
        raise Wrong(f"{name} = {found:.3g} s, expected {right:.3g} s.")


_FIT = '''\
def fit(seconds, ranks):
    """a and b of t = a + b · N / p, from the smallest and largest N of the jobs {N: t}."""
    small, large = min(seconds), max(seconds)
    b = (seconds[large] - seconds[small]) / (large - small) * ranks
    a = seconds[small] - b * small / ranks
    return a, b
'''
_B = "(seconds[large] - seconds[small]) / (large - small) * ranks"
_A = "seconds[small] - b * small / ranks"

FIT = Exercise(
    id="03.4",
    title="A line through two jobs",
    task="Two jobs give two equations *t* = *a* + *b*·N/p. Solve them for *b*, then for *a*.",
    objectives=(1,),
    stub=changed(
        _FIT,
        (f"b = {_B}", "b = 1e-9  # gap 1: seconds per strip"),
        (f"a = {_A}", "a = 0.0  # gap 2: the seconds that do not depend on N"),
    ),
    hints=(
        "Subtract one time from the other: what happens to a?",
        "t_large = a + b · N_large / p\n"
        "t_small = a + b · N_small / p\n"
        "difference =  b · (N_large − N_small) / p      now solve for b",
        "b = (seconds[large] - …) / (large - …) * …   and   a = seconds[small] - …",
    ),
    solution=_FIT,
    check=_check_fit,
    cases=(1, 2, 64),
    describe=lambda ranks: f"times of {ranks} rank{'s' * (ranks > 1)}",
    sizes=(2, 3, 4, 1),
    save="03_quadrature.py",
    wrong=(
        WrongAnswer(changed(_FIT, (" * ranks", "")), "your b is the time of 1/2 strip"),
        WrongAnswer(changed(_FIT, (" * ranks", " / ranks")), "you divided it by p once more"),
        WrongAnswer(changed(_FIT, (_B, "seconds[large] / large * ranks")), "your b still contains part of a"),
        WrongAnswer(changed(_FIT, ("/ (large - small)", "/ large")), "differ by large - small strips"),
        WrongAnswer(changed(_FIT, (_A, "seconds[small]")), "includes its strips"),
        WrongAnswer(changed(_FIT, (" / ranks", "")), "you subtracted the time of 2,000 strips"),
        WrongAnswer(changed(_FIT, ("return a, b", "return b, a")), "Which of the two is returned first?"),
        WrongAnswer(changed(_FIT, (_A, "b * small / ranks - seconds[small]")), "so it is positive"),
        WrongAnswer(changed(_FIT, ("return a, b", "return a")), "expected a and b"),
    ),
    why="any two points lie on a line. How could you find out whether the jobs between them lie on it?",
)

# -------------------------------------------------------------------- 03.2 rank 0 alone knows how many


def _check_from_root(answer: SimpleNamespace, comm: Any, strips: int) -> None:
    got = answer.pi_from_root(comm, strips if comm.rank == 0 else None)
    if comm.rank > 0:
        expect(got is None, f"returned {got}; only rank 0 has π, the others return None.")
        return
    expect(isinstance(got, float), f"returned {got}, expected a number.")
    whole, own = midpoint_loop(strips), midpoint_loop(strips, 0, comm.size)
    if abs(got - whole) < 1e-9:
        return
    expect(got != 0, "got 0: nothing was added up.")
    expect(abs(got - own) > 1e-9 or comm.size == 1, "got rank 0's part alone; which call adds the others?")
    raise Wrong(f"got {got:.10f}, expected {whole:.10f}.")


FROM_ROOT = Exercise(
    id="03.2",
    title="Put in order: one rank knows how many",
    task="Put the lines in order. Two lines have the same purpose; leave out the one that fails.",
    objectives=(3,),
    stub='order("")\n',
    opening='''\
def pi_from_root(comm, strips):
    """Return π on rank 0, None elsewhere. Only rank 0 knows `strips`; the others pass None."""''',
    blocks={
        "A": "    part = np.array(midpoint_loop(int(n), comm.rank, comm.size))",
        "B": "    return float(total) if comm.rank == 0 else None",
        "C": '    n = np.array(strips or 0, dtype="int64")',
        "D": "    comm.Bcast(n, root=0)  # copies n from rank 0 to all ranks (lesson 04)",
        "E": "    total = np.zeros_like(part)",
        "F": "    comm.Reduce(part, total, root=0)",
        "G": '    n = np.array(strips, dtype="int64")',
    },
    hints=(
        "Which ranks need n, and when? No rank can add up its part before it has n.",
        "rank 0  n ──┬──→  part ──┐\n"
        "rank 1      ├──→  part ──┼─→  rank 0  π     Bcast, compute, Reduce\n"
        "rank 2      └──→  part ──┘",
        'order("C … … E … B")',
    ),
    solution='order("C D A E F B")\n',
    check=_check_from_root,
    cases=(5, 1000),
    describe=lambda strips: f"{strips} strips",
    sizes=(2, 3, 4, 1),
    imports="from course_lib.pi import midpoint_loop",
    wrong=(
        WrongAnswer('order("C A D E F B")', "raised ZeroDivisionError"),
        WrongAnswer('order("G D A E F B")', "raised TypeError"),
        WrongAnswer('order("C D A E B")', "got 0: nothing was added up"),
        WrongAnswer('order("C D A E F")', "returned None"),
    ),
    why="why does every rank create an array for n before it knows n?",
)

# -------------------------------------------------------------------- 03.3 terms far out


def _check_terms_from(answer: SimpleNamespace, comm: Any, first: int) -> None:
    count = 7
    got = answer.terms_from(comm, first, count)
    if comm.rank > 0:
        expect(got is None, f"returned {got}; only rank 0 has the sum, the others return None.")
        return
    expect(isinstance(got, float), f"returned {got}, expected a number.")
    terms = [(-1) ** k * 4 / (2 * k + 1) for k in range(first, first + count)]
    expected, size = sum(terms), comm.size
    if _near(got, expected):
        return
    found = {
        "got the sum of rank 0's terms alone.": sum(terms[0::size]),
        f"got {size} times the sum: every rank adds up all terms.": size * expected,
        f"got {got:.4g}, expected {expected:.4g}: how many bits hold 2k + 1?": _in_32_bits(first, count),
        f"got {got:.4g}, expected {expected:.4g}: a float of 32 bits keeps about seven digits of k.": (
            _in_floats(first, count)
        ),
    }
    for words, value in found.items():
        expect(not _near(got, value), words)
    raise Wrong(f"got {got:.6g}, expected {expected:.6g}.")


def _near(got: float, value: float) -> bool:
    return abs(got - value) <= 1e-6 * abs(value)


def _in_32_bits(first: int, count: int) -> float:
    k = np.arange(first, first + count).astype(np.int32)
    return float(np.sum((4.0 - 8.0 * (k % 2)) / (2 * k + 1)))


def _in_floats(first: int, count: int) -> float:
    k = np.arange(first, first + count).astype(np.float32)
    return float(np.sum((4.0 - 8.0 * (k % 2)) / (2 * k + 1)))


_TERMS = '''\
def terms_from(comm, first, count):
    """Return on rank 0 the sum of `count` terms of 4 - 4/3 + 4/5 - … from term `first` on; else None."""
    k = np.arange(first + comm.rank, first + count, comm.size, dtype="int64")
    part = np.array(np.sum((4.0 - 8.0 * (k % 2)) / (2 * k + 1)))
    total = np.zeros_like(part)
    comm.Reduce(part, total, root=0)
    return float(total) if comm.rank == 0 else None
'''

TERMS_FROM = Exercise(
    id="03.3",
    title="Spot the bug",
    task="This function adds up `count` terms of the series, from term `first` on. It does not always return "
    "the right sum. Find out when it goes wrong, and repair it.",
    objectives=(3,),
    targets=("counts-fit-32-bits",),
    stub=changed(_TERMS, ("int64", "i")),
    hints=(
        "It is right for a small `first`, wrong for a large one. Which numbers in the formula grow?",
        "term k is ±4 / (2k + 1). A signed 32-bit integer holds at most 2,147,483,647. Does every "
        "number in the formula fit when k does?",
        'k = np.arange(…, …, comm.size, dtype="…")',
    ),
    solution=_TERMS,
    check=_check_terms_from,
    cases=(0, 1_200_000_000, 5_000_000_000),
    describe=lambda first: f"the terms from {first:,} on",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_TERMS, ('dtype="int64"', "dtype=np.int32")), "how many bits hold 2k + 1?"),
        WrongAnswer(
            changed(_TERMS, ('dtype="int64"', 'dtype="i"'), ("2 * k", "2.0 * k")), "raised OverflowError"
        ),
        WrongAnswer(changed(_TERMS, ("int64", "float32")), "keeps about seven digits of k"),
        WrongAnswer(
            changed(_TERMS, ("first + comm.rank", "first"), ("comm.size, dtype", "1, dtype")),
            "every rank adds up all terms",
        ),
        WrongAnswer(
            changed(_TERMS, ("    comm.Reduce(part, total, root=0)\n", "    total = part\n")),
            "rank 0's terms alone",
        ),
        WrongAnswer(changed(_TERMS, (" if comm.rank == 0 else None", "")), "only rank 0 has the sum"),
    ),
    why="k was still below 2³¹ when the terms went wrong. Which number in the formula was not?",
)

# -------------------------------------------------------------------- questions

SIXTEEN_GPUS = Question(
    id="03.q3",
    question="A training step takes 80 ms on one GPU, and 20 ms on 8 GPUs that share its batch. On 16 GPUs, "
    "adding up gradients takes as long as on 8. All other work is shared evenly, and nothing overlaps. "
    "How long is a step on 16?",
    options=(
        Option(
            "10 ms",
            reply="That would mean that the 8 GPUs compute for all of the 20 ms. But an eighth of 80 ms is "
            "only 10 ms. The other 10 ms go into adding up gradients. That is the overhead a, and 16 GPUs "
            "pay it in full.",
            belief="n-ranks-n-times",
        ),
        Option(
            "20 ms",
            reply="That would mean that more GPUs no longer shorten the computing. But each of 8 GPUs "
            "computes for 10 ms, and each of 16 for 5 ms. Only the time to add up gradients stays.",
            belief="efficiency-is-a-wall",
        ),
        Option(
            "15 ms",
            reply="20 = a + 80/8, so a is 10 ms, and on 16 GPUs a step takes 10 + 80/16 = 15 ms. Twice the "
            "GPUs saved only a quarter of the time, and the efficiency falls from 50 to 33 %. In practice, "
            "overlap hides part of a. But 16 GPUs are often two nodes, and between nodes a is larger. "
            "Half the images may keep a GPU less busy. In DDP (lesson 07), each GPU also runs the full "
            "optimizer step.",
            right=True,
        ),
    ),
    objectives=(1, 2),
)

LAST_DIGITS = Question(
    id="03.q2",
    question="A colleague adds up the same million positive terms in float64, on one rank and on four. "
    "The sums differ in the 4th digit. Rounding, or a bug?",
    options=(
        Option(
            "a bug, because correct sums agree in every digit",
            reply="That would make the four sums above wrong. But they differ only from "
            "about the 15th digit on. A bug is likely for a different reason: the 4th digit is far from the "
            "15th.",
            belief="other-digits-are-a-bug",
        ),
        Option(
            "a bug, because rounding shows in the last digits",
            reply="Even if a million roundings all went the same way, about nine digits would agree. Terms "
            "that are missing or counted twice can change the 4th digit. Look for those first. (Added one by "
            "one in float32, rounding alone can change the third digit; in bfloat16, the first.)",
            right=True,
        ),
        Option(
            "rounding, because four ranks add in a different order",
            reply="Above, a different order changed about the 15th digit. To reach the 4th digit, rounding "
            "would have to be a hundred billion times as large.",
            belief="rounding-explains-it",
        ),
    ),
    objectives=(4,),
)

EXERCISES = (FIT, SIXTEEN_GPUS, FROM_ROOT, TERMS_FROM, LAST_DIGITS)

PREDICTIONS = (
    Prediction(
        id="03.p4",
        question="10 strips: how many times as fast are two ranks?",
        objectives=(1,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="03.p6",
        question="Up to how many strips is one rank faster?",
        objectives=(1,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="03.p9",
        question="And with 100 µs more per sum?",
        objectives=(1,),
        targets=("overhead-matters-little",),
    ),
    Prediction(
        id="03.p7",
        question="100 strips on two ranks: how many times as long as 50 on one?",
        objectives=(2,),
        targets=("weak-is-strong",),
    ),
    Prediction(
        id="03.p8",
        question="How many times as fast as one rank are 1,024 ranks?",
        objectives=(2,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="03.p3",
        question="How many different sums on 1, 2, 3 and 4 ranks?",
        objectives=(4,),
        targets=("sums-are-bitwise-equal",),
    ),
)
