"""Exercises of lesson 10, spatial and hybrid: the gradients of a halo, and the mask of a fused halo."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l10_spatial_and_hybrid.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l10_spatial_and_hybrid.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect_array

# -------------------------------------------------------------------- 10.1 the gradients of the ghosts


def _gradient_of(rank: int, rows: int) -> np.ndarray:
    """Rows of a ghost, so many of the rank, and a ghost; the digits say whose they are, and which row."""
    return 10.0**rank * (1 + np.arange(rows + 2.0))[:, None] * np.ones(3)


def _check_returned(answer: SimpleNamespace, comm: Any, rows: Sequence[int]) -> None:
    rank, size = comm.rank, comm.size
    gradients = [_gradient_of(other, rows[other]) for other in range(size)]
    own = gradients[rank][1:-1]
    from_above = gradients[rank - 1][-1] if rank > 0 else np.zeros(3)
    from_below = gradients[rank + 1][0] if rank + 1 < size else np.zeros(3)

    def returned(first: Any, last: Any, *, add: bool = True) -> np.ndarray:
        result = own.copy()
        for place, value in ((0, first), (-1, last)):
            result[place] = result[place] * add + value
        return result

    lookalikes = {
        "returned its own rows only: the gradients of the ghosts on the neighbours are lost.": own,
        "wrote what it received over the gradients of its own rows. Both count: what is the gradient of a "
        "pixel that is used in two places?": returned(from_above, from_below, add=False),
        "added what it received from below to its first row, and what it received from above to its "
        "last.": returned(from_below, from_above),
        "returned the ghosts, too; those rows belong to the neighbours.": gradients[rank],
        "took the mean; the gradient of a pixel that is used in two places is the sum of both.": returned(
            from_above, from_below
        )
        / 2,
    }
    expected = returned(from_above, from_below)
    got = answer.return_ghosts(comm, gradients[rank].copy())
    expect_array(got, expected, lookalikes if size > 1 else None)


_RETURN = '''\
def return_ghosts(comm, gradient):
    """Return the gradient of this rank's own rows; its ghosts' gradients go to their owners.

    `gradient` has a ghost row, the rank's own rows, and a ghost row.
    """
    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    own = gradient[1:-1].copy()
    from_above, from_below = np.zeros_like(own[0]), np.zeros_like(own[0])
    comm.Sendrecv(gradient[0], above, recvbuf=from_below, source=below)
    comm.Sendrecv(gradient[-1], below, recvbuf=from_above, source=above)
    own[0] += from_above
    own[-1] += from_below
    return own
'''
_UP = "    comm.Sendrecv(gradient[0], above, recvbuf=from_below, source=below)\n"
_DOWN = "    comm.Sendrecv(gradient[-1], below, recvbuf=from_above, source=above)\n"
_ADD_FIRST, _ADD_LAST = "    own[0] += from_above\n", "    own[-1] += from_below\n"

RETURN_GHOSTS = Exercise(
    id="10.1",
    title="The halo's backward",
    task="`gradient` is a NumPy array of rows: a ghost row, this rank's own rows, and a ghost row. Send the "
    "two ghosts' gradients to the ranks that own those rows, and return the gradient of your own rows.",
    objectives=(2,),
    targets=("halos-are-forward-only",),
    stub=changed(_RETURN, (_UP, ""), (_DOWN, ""), (_ADD_FIRST, ""), (_ADD_LAST, "")),
    hints=(
        "Every arrow of the picture turns round. Which rank sent the pixels of my upper ghost? Its gradient "
        "goes to that rank.",
        "forward    last row of rank 0  ──→  upper ghost of rank 1\n"
        "backward   last row of rank 0  ←──  gradient of that ghost, and it is ADDED",
        "comm.Sendrecv(gradient[0], above, recvbuf=from_below, source=…)   and   own[-1] += …",
    ),
    solution=_RETURN,
    check=_check_returned,
    cases=((3, 3, 3, 3), (2, 1, 4, 1)),
    describe=lambda rows: "strips of one row, too" if 1 in rows else "strips of 3 rows",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_RETURN, (_UP, ""), (_DOWN, ""), (_ADD_FIRST, ""), (_ADD_LAST, "    return own\n")),
            "returned its own rows only",
        ),
        WrongAnswer(
            changed(_RETURN, ("own[0] += from_above", "own[0] = from_above"), ("own[-1] += ", "own[-1] = ")),
            "wrote what it received over",
        ),
        WrongAnswer(
            changed(
                _RETURN,
                ("own[0] += from_above", "own[0] += from_below"),
                ("own[-1] += from_below", "own[-1] += from_above"),
            ),
            "what it received from below to its first row",
        ),
        WrongAnswer(changed(_RETURN, ("return own", "return gradient")), "returned the ghosts, too"),
        WrongAnswer(changed(_RETURN, ("return own", "return own / 2")), "took the mean"),
    ),
    why="forward only copied rows. Where does the addition in backward come from?",
)

# -------------------------------------------------------------------- 10.2 two layers, one exchange


def _check_smooth(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    lengths = lengths[: comm.size]
    signal = 10.0 + np.arange(sum(lengths)) ** 2.0
    start = sum(lengths[: comm.rank])
    mine = slice(start, start + lengths[comm.rank])
    wide = np.concatenate([np.zeros(2), signal, np.zeros(2)])[start : mine.stop + 4]  # two ghosts per side
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    expected = _twice(wide, first, last)
    ends = "is wrong at the {} of the signal: numbers outside it must be zero again before the second layer."
    lookalikes = {
        ends.format("ends"): _twice(wide, False, False),
        ends.format("start"): _twice(wide, False, last),
        ends.format("end"): _twice(wide, first, False),
        "has zeros between neighbours, too: those ghosts are real numbers, not padding.": _twice(
            wide, True, True
        ),
    }
    differs = {words: value for words, value in lookalikes.items() if not np.allclose(value, expected)}
    expect_array(answer.smooth_twice(comm, signal[mine].copy()), expected, differs)


def _twice(wide: np.ndarray, first: bool, last: bool) -> np.ndarray:
    """Both layers, with a mask before the first number, after the last, at both ends or at none."""
    once = np.convolve(wide, [1, 2, 1], mode="valid")
    once[0] *= not first
    once[-1] *= not last
    return np.convolve(once, [1, 2, 1], mode="valid")


_SMOOTH = '''\
def smooth_twice(comm, mine):
    """Return `mine`, a part of a signal, after two convolutions with kernel 1, 2, 1 and padding 1."""
    before = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    after = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    wide = np.zeros(len(mine) + 4)
    wide[2:-2] = mine
    comm.Sendrecv(mine[:2], before, recvbuf=wide[-2:], source=after)  # one exchange, for both layers
    comm.Sendrecv(mine[-2:], after, recvbuf=wide[:2], source=before)
    once = np.convolve(wide, [1, 2, 1], mode="valid")  # two shorter
    if before == MPI.PROC_NULL:
        once[0] = 0
    if after == MPI.PROC_NULL:
        once[-1] = 0
    return np.convolve(once, [1, 2, 1], mode="valid")
'''
_MASK = """\
    if before == MPI.PROC_NULL:
        once[0] = 0
    if after == MPI.PROC_NULL:
        once[-1] = 0
"""

SMOOTH_TWICE = Exercise(
    id="10.2",
    title="Spot the bug: two layers, one exchange",
    task="A signal takes the place of an image: each rank has a part of it. Two convolutions follow one "
    "exchange, but the result differs from one process's. Find out where, and repair it.",
    objectives=(5,),
    targets=("padding-stays-zero",),
    stub=changed(_SMOOTH, (_MASK, "")),
    hints=(
        "Between neighbours it is right. Compare the first number of rank 0 with that of one process.",
        "wide   0 0 | a b c …      once   a | 2a+b …\n"
        "           padding               ↑ outside the signal, where the second layer expects padding: 0",
        "Where no neighbour comes before, `once[0]` is outside the signal; where none comes after, …",
    ),
    solution=_SMOOTH,
    check=_check_smooth,
    cases=((4, 4, 4, 4), (2, 5, 3, 2)),
    describe=lambda lengths: f"{lengths[0]}, {lengths[1]}, … numbers per rank",
    wrong=(
        WrongAnswer(changed(_SMOOTH, ("once[-1] = 0", "once[-1] *= 1")), "is wrong at the end"),
        WrongAnswer(changed(_SMOOTH, ("once[0] = 0", "once[0] *= 1")), "is wrong at the start"),
        WrongAnswer(changed(_SMOOTH, (_MASK, "    once *= 1\n")), "is wrong at the ends"),
        WrongAnswer(
            changed(_SMOOTH, (_MASK, "    once[0] = once[-1] = 0\n")), "has zeros between neighbours"
        ),
    ),
    why="a ReLU between the two layers would need no mask of its own. Why does a convolution need one?",
)

EXERCISES = (RETURN_GHOSTS, *QUESTIONS, SMOOTH_TWICE)
