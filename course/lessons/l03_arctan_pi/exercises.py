"""Exercises of lesson 03, arctan π and quadrature: strips in strides, one rank's number, terms far out."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l03_arctan_pi.quiz import LAST_DIGITS, WEAK
from course.lessons.l03_arctan_pi.quiz import PREDICTIONS as PREDICTIONS
from course_lib.pi import midpoint_part
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

# -------------------------------------------------------------------- 03.1 the area under a curve


def _check_area(answer: SimpleNamespace, comm: Any, strips: int) -> None:
    asked: list[float] = []

    def f(x: Any) -> Any:
        """Strip i has the area 10**i: the digits of the result tell how often each strip was counted."""
        asked.extend(np.ravel(x).tolist())
        return strips * 10.0 ** np.round(x * strips - 0.5)

    got = answer.area(comm, f, strips)
    for x in asked:
        _expect_middle(x, strips)
    if comm.rank == 0:
        expect(isinstance(got, int | float | np.number | np.ndarray), f"returned {got}, expected the area.")
        expect(np.size(got) == 1, f"returned {np.size(got)} numbers, expected one.")
        _expect_each_once(float(np.ravel(got)[0]), strips, comm.size)
    else:
        expect(got is None, f"returned {got}; only rank 0 has the area, the others return None.")
    few, many = strips // comm.size, -(-strips // comm.size)
    each = f"{few}" if few == many else f"{few} or {many}"
    words = f"took {len(asked)} of {strips} strips; divided among {comm.size} ranks, that is {each} each."
    expect(len(asked) in (few, many), words)


def _expect_middle(x: float, strips: int) -> None:
    number = x * strips - 0.5
    expect(
        abs(number - round(number)) < 1e-6,
        f"took the height at x = {x:g}; with {strips} strips the middles are "
        f"{', '.join(f'{(i + 0.5) / strips:g}' for i in range(min(strips, 3)))}, …",
    )
    expect(-1e-6 < number < strips - 0.5, f"took a strip at x = {x:g}, which is not between 0 and 1.")


def _expect_each_once(got: float, strips: int, size: int) -> None:
    """The digits of the sum: 1 for a strip that was counted once."""
    off = abs(got - round(got)) > 1e-3 or got < 0 or got >= 10 ** (strips + 1)
    counts = [] if off else [round(got) // 10**i % 10 for i in range(strips)]
    if counts == [1] * strips:
        return
    expect(got != 0, "got 0: no rank's strips have arrived on rank 0.")
    if counts and counts == [size] * strips:
        raise Wrong(f"got {size} times the area: does every rank add up the strips of all?")
    for times, words in ((0, "missing"), (2, "counted twice")):
        those = [i for i, count in enumerate(counts) if count == times]
        expect(not those, f"got an area in which {_strips(those)} {words}.")
    raise Wrong(f"got {got:g}, expected {int('1' * strips):g}.")


def _strips(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"strip {numbers[0]} is"
    return f"strips {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} are"


_AREA = '''\
def area(comm, f, strips):
    """Return the area under f from 0 to 1 on rank 0, None elsewhere."""
    h = 1 / strips
    part = 0.0
    for i in range(comm.rank, strips, comm.size):
        part += h * f(h * (i + 0.5))
    mine = np.array(part)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return total if comm.rank == 0 else None
'''
_LOOP = "range(comm.rank, strips, comm.size)"
_BLOCK = "range(comm.rank * (strips // comm.size), (comm.rank + 1) * (strips // comm.size))"
_SUM = "    comm.Reduce(mine, total, root=0)\n"
_RETURN = "return total if comm.rank == 0 else None"

AREA = Exercise(
    id="03.1",
    title="The area under a curve, on all ranks",
    task="This function adds up all strips on every rank. Fill the two gaps: each rank takes its strips, in "
    "strides, and rank 0 returns the whole area. The next two sections time your function.",
    objectives=(1,),
    stub=changed(
        _AREA,
        (f"in {_LOOP}:", "in range(strips):  # gap 1: only the strips of this rank"),
        (_SUM, ""),
        (_RETURN, "return None  # gap 2: the sum of all parts, on rank 0 only"),
    ),
    hints=(
        "Section 2 distributes terms; strips go the same way. And which call adds up the parts?",
        "strip    0  1  2  3  4  5  6  7\nrank     0  1  2  3  0  1  2  3     on four ranks: start at your "
        "rank, continue in strides of size",
        "for i in range(comm.rank, …, …):   and then   comm.Reduce(mine, …, root=0)",
    ),
    solution=_AREA,
    check=_check_area,
    cases=(4, 7, 2),
    describe=lambda strips: f"{strips} strips",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_AREA, (_LOOP, "range(strips)")), "does every rank add up the strips of all?"),
        WrongAnswer(changed(_AREA, (_LOOP, _BLOCK)), "in which strip 6 is missing"),
        WrongAnswer(
            changed(_AREA, ("i + 0.5", "i")), "took the height at x = 0; with 4 strips the middles are"
        ),
        WrongAnswer(changed(_AREA, (_LOOP, "range(comm.rank + 1, strips + 1, comm.size)")), "not between 0"),
        WrongAnswer(changed(_AREA, (_SUM, "")), "no rank's strips have arrived on rank 0"),
        WrongAnswer(
            changed(_AREA, (_SUM, ""), ("return total", "return mine")), "strips 1 and 3 are missing"
        ),
        WrongAnswer(changed(_AREA, (" if comm.rank == 0 else None", "")), "only rank 0 has the area"),
        WrongAnswer(
            changed(_AREA, (_LOOP, "range(0 if comm.rank == 0 else strips, strips)")),
            "took 4 of 4 strips",
        ),
    ),
    why="`range(strips)` on every rank raises no error, and the area is wrong. On how many ranks not?",
)

# -------------------------------------------------------------------- 03.2 rank 0 alone knows how many


def _check_from_root(answer: SimpleNamespace, comm: Any, intervals: int) -> None:
    got = answer.pi_from_root(comm, intervals if comm.rank == 0 else None)
    if comm.rank > 0:
        expect(got is None, f"returned {got}; only rank 0 has π, the others return None.")
        return
    expect(isinstance(got, float), f"returned {got}, expected a number.")
    whole, own = midpoint_part(intervals), midpoint_part(intervals, 0, comm.size)
    if abs(got - whole) < 1e-9:
        return
    expect(got != 0, "got 0: nothing was added up.")
    expect(abs(got - own) > 1e-9 or comm.size == 1, "got its own part; where do the others come in?")
    raise Wrong(f"got {got:.10f}, expected {whole:.10f}.")


FROM_ROOT = Exercise(
    id="03.2",
    title="Put in order: one rank knows how many",
    task="Put the lines in order. Two of them have the same purpose, but only one of these two works: leave "
    "the other out.",
    objectives=(4,),
    stub='order("")\n',
    opening='''\
def pi_from_root(comm, intervals):
    """Return π on rank 0, the only rank that knows how many `intervals`; None elsewhere."""''',
    blocks={
        "A": "    part = np.array(midpoint_part(int(n), comm.rank, comm.size))",
        "B": "    return float(total) if comm.rank == 0 else None",
        "C": '    n = np.array(intervals or 0, dtype="int64")',
        "D": "    comm.Bcast(n, root=0)  # copies n from rank 0 to all ranks (lesson 04)",
        "E": "    total = np.zeros_like(part)",
        "F": "    comm.Reduce(part, total, root=0)",
        "G": '    n = np.array(intervals, dtype="int64")',
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
    describe=lambda intervals: f"{intervals} intervals",
    sizes=(2, 3, 4, 1),
    imports="from course_lib.pi import midpoint_part",
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
        f"got {got:.4g}, expected {expected:.4g}: in how many bits is 2k + 1?": _in_32_bits(first, count),
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
    objectives=(1,),
    targets=("counts-fit-32-bits",),
    stub=changed(_TERMS, ("int64", "i")),
    hints=(
        "It is right for a small `first`, wrong for a large one. Which numbers in the formula grow?",
        "term k is ±4 / (2k + 1). 32 bits hold whole numbers up to 2,147,483,647. Does every number in the "
        "formula fit when k does?",
        'k = np.arange(…, …, comm.size, dtype="…")',
    ),
    solution=_TERMS,
    check=_check_terms_from,
    cases=(0, 1_200_000_000, 5_000_000_000),
    describe=lambda first: f"the terms from {first:,} on",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_TERMS, ('dtype="int64"', "dtype=np.int32")), "in how many bits is 2k + 1?"),
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

EXERCISES = (AREA, WEAK, LAST_DIGITS, FROM_ROOT, TERMS_FROM)
