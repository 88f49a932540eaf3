"""What checks are written with: arrays that are nearly right, sums that tell who is missing."""

import numpy as np
import pytest

from mpi_classroom.exercises import Exercise, Wrong, expect_array, missing_ranks, same_code
from mpi_classroom.lessons import find_exercise

STUB = 'def f(a):\n    """Do it."""\n    return a\n'


def test_comments_docstrings_and_layout_are_no_attempt() -> None:
    assert same_code(STUB, 'def f( a ):  # mine\n    """Something else."""\n\n    return (a)\n')
    assert not same_code(STUB, "def f(a):\n    return a + 1\n")
    assert not same_code(STUB, "def f(a:\n")


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (1011, "rank 2's contribution is missing"),
        (1, "the contributions of ranks 1, 2 and 3 are missing"),
        (1121, "rank 1's contribution is counted 2 times"),
        (1111, "the sum is 1111"),
    ],
)
def test_a_decimal_sum_tells_who_is_missing(total: float, words: str) -> None:
    assert missing_ranks(total, 4) == words


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "returned None"),
        ([[1.0], [2.0, 3.0]], "lists of different lengths"),
        (np.ones((2, 1)), r"has the shape \(2, 1\), expected \(2,\)"),
        (np.array([0.5, 0.5]), "these are the means"),
        (np.array([1.0, 3.0]), "got 1, 3, expected 1, 1"),
    ],
)
def test_an_array_that_is_wrong_says_how(got: object, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        expect_array(got, np.ones(2), {"these are the means": np.full(2, 0.5)})


def test_a_puzzle_is_put_together_below_its_opening() -> None:
    puzzle = find_exercise("01.2")
    assert isinstance(puzzle, Exercise)
    assert puzzle.assemble("C, A").splitlines()[-2:] == [puzzle.blocks["C"], puzzle.blocks["A"]]
    assert puzzle.assemble("A").startswith(puzzle.opening)
    with pytest.raises(Wrong, match=r"there is no block 'X'; the blocks are A, B, C, D, E\."):
        puzzle.assemble("A X")
