"""Exercises and questions of lesson 10, spatial and hybrid: gradients over a cut, and a fused halo's mask."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    WrongAnswer,
    changed,
    expect_array,
)

# -------------------------------------------------------------------- 10.3 the gradients of the ghosts


def _gradient_of(rank: int, rows: int) -> np.ndarray:
    """Two ghost rows, so many of the rank, two ghost rows; the digits say whose they are, and which row."""
    return 10.0**rank * (1 + np.arange(rows + 4.0))[:, None] * np.ones(3)


def _check_returned(answer: SimpleNamespace, comm: Any, rows: Sequence[int]) -> None:
    import torch  # here, because the notebook needs no torch to list exercises

    rank, size = comm.rank, comm.size
    gradients = [_gradient_of(other, rows[other]) for other in range(size)]
    own = gradients[rank][2:-2]
    from_above = gradients[rank - 1][-2:] if rank > 0 else np.zeros((2, 3))
    from_below = gradients[rank + 1][:2] if rank + 1 < size else np.zeros((2, 3))

    own_above = gradients[rank - 1][-4:-2] if rank > 0 else np.zeros((2, 3))
    own_below = gradients[rank + 1][2:4] if rank + 1 < size else np.zeros((2, 3))

    crossed_above = gradients[rank - 1][:2] if rank > 0 else np.zeros((2, 3))
    crossed_below = gradients[rank + 1][-2:] if rank + 1 < size else np.zeros((2, 3))

    def returned(first: Any, last: Any, *, add: bool = True) -> np.ndarray:
        result = own.copy()
        for place, value in ((slice(2), first), (slice(-2, None), last)):
            result[place] = result[place] * add + value
        return result

    lookalikes = {
        "returned its own rows only: the gradients of the ghosts on the neighbours are lost.": own,
        "wrote what it received over the gradients of its own rows. Both count: what is the gradient of a "
        "pixel that is used in two places?": returned(from_above, from_below, add=False),
        "added what it received from below to its first rows, and what it received from above to its "
        "last.": returned(from_below, from_above),
        "sent the gradients of its own first and last rows. The neighbours need those of its ghosts, which "
        "are copies of their rows.": returned(own_above, own_below),
        "sent the first ghosts down and the last ghosts up. The first ghosts are copies of rows of the rank "
        "above, so their gradients go up.": returned(crossed_above, crossed_below),
        "returned the ghosts, too; those rows belong to the neighbours.": gradients[rank],
        "took the mean; the gradient of a pixel that is used in two places is the sum of both.": returned(
            from_above, from_below
        )
        / 2,
    }
    got = answer.return_ghost_rows(comm, torch.tensor(gradients[rank])[None, None], 2)
    expected = returned(from_above, from_below)
    shaped = {words: value[None, None] for words, value in lookalikes.items()}
    expect_array(np.asarray(got), expected[None, None], shaped if size > 1 else None)


_RETURN = '''\
def return_ghost_rows(comm, gradient, width):
    """The gradients of this rank's own rows; those of its ghosts go to the owners."""
    own = gradient[:, :, width:-width].clone()
    from_above, from_below = swap(comm, gradient[:, :, :width], gradient[:, :, -width:])
    own[:, :, :width] += from_above
    own[:, :, -width:] += from_below
    return own
'''
_SWAP = "    from_above, from_below = swap(comm, gradient[:, :, :width], gradient[:, :, -width:])\n"
_FIRST, _LAST = "    own[:, :, :width] += from_above\n", "    own[:, :, -width:] += from_below\n"

RETURN_GHOSTS = Exercise(
    id="10.3",
    title="The halo's backward",
    task="The first and last `width` rows of `gradient` belong to ghosts. Send them to the owners with "
    "`swap`, and add what arrives to this rank's own rows.",
    objectives=(2,),
    targets=("halos-are-forward-only", "average-over-tiles"),
    stub=changed(_RETURN, (_SWAP, ""), (_FIRST, ""), (_LAST, "")),
    hints=(
        "In forward, each rank's upper ghosts came from the rank above. So their gradients go back to that "
        "rank.",
        "forward    last rows of rank 0  ──→  upper ghosts of rank 1\n"
        "backward   last rows of rank 0  ←──  their gradients, and they are ADDED",
        "from_above, from_below = swap(comm, …, …)   and   own[:, :, :width] += …",
    ),
    solution=_RETURN,
    imports="from course_lib.comm.halo import swap",
    check=_check_returned,
    cases=((5, 5, 5, 5), (4, 3, 6, 3)),
    describe=lambda rows: "strips of 3 rows, too" if 3 in rows else "strips of 5 rows",
    sizes=(2, 3, 4, 1),  # alone, nothing arrives
    save="10_halo.py",
    wrong=(
        WrongAnswer(
            changed(_RETURN, (_SWAP, ""), (_FIRST, ""), (_LAST, "    own *= 1\n")),
            "returned its own rows only",
        ),
        WrongAnswer(
            changed(_RETURN, (":width] += from", ":width] = from"), ("-width:] += ", "-width:] = ")),
            "wrote what it received over",
        ),
        WrongAnswer(
            changed(
                _RETURN,
                ("+= from_above", "+= below"),
                ("+= from_below", "+= from_above"),
                ("+= below", "+= from_below"),
            ),
            "what it received from below to its first rows",
        ),
        WrongAnswer(
            changed(
                _RETURN,
                (
                    "gradient[:, :, :width], gradient[:, :, -width:]",
                    "own[:, :, :width], own[:, :, -width:]",
                ),
            ),
            "sent the gradients of its own",
        ),
        WrongAnswer(
            changed(
                _RETURN,
                (
                    "gradient[:, :, :width], gradient[:, :, -width:]",
                    "gradient[:, :, -width:], gradient[:, :, :width]",
                ),
            ),
            "sent the first ghosts down",
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
    task="Each rank has a part of a signal. After a single exchange it computes two convolutions, but the "
    "result differs from that of one process. Find out where it differs, and repair the function.",
    objectives=(3,),
    targets=("padding-stays-zero",),
    stub=changed(_SMOOTH, (_MASK, "")),
    hints=(
        "Between neighbours, the result is right. Compare rank 0's first number with that of one process.",
        "wide   0 0 | a b c …      once   a | 2a+b …\n"
        "           padding               ↑ outside the signal, where the second layer expects padding: 0",
        "If no neighbour comes before this rank, `once[0]` is outside the signal. If none comes after it, …",
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
    why="a ReLU maps zeros to zeros, so it needs no mask. Why does a convolution need one?",
)

# -------------------------------------------------------------------- questions

STRIDE = Question(
    id="10.q4",
    question="A convolution has a kernel of 3 rows, stride 2 and padding 1, so output row i reads input "
    "rows 2i − 1, 2i and 2i + 1. A rank owns input rows 8 to 15 and computes output rows 4 to 7. "
    "Which rows does it need from its neighbours?",
    options=(
        Option(
            "rows 7 and 16",
            reply="Output row 7 reads rows 13, 14 and 15, and the rank owns all three, so it does not need "
            "row 16. With this stride, the two sides differ.",
            belief="halo-is-symmetric",
        ),
        Option(
            "row 7",
            reply="Output row 4 reads rows 7, 8 and 9, and output row 7 reads rows 13, 14 and 15. So the "
            "rank lacks only row 7. In general, if tiles begin at multiples of the stride, a tile needs as "
            "many rows from above as there are rows of padding, here 1, and kernel − stride − padding rows "
            "from below, here 0.",
            right=True,
        ),
        Option(
            "rows 5, 6, 7",
            reply="Output row 4 reads rows 7, 8 and 9, and the rank owns rows 8 and 9. No output row of "
            "this rank reads row 5 or 6.",
            belief="halo-is-the-kernel",
        ),
    ),
    objectives=(1,),
)

EXERCISES = (RETURN_GHOSTS, STRIDE, SMOOTH_TWICE)

PREDICTIONS = (
    Prediction(
        id="10.p5",
        question="Of 80 rows, how many come out wrong?",
        objectives=(1,),
        targets=("padding-is-enough",),
    ),
    Prediction(
        id="10.p6",
        question="Twenty fused layers compute how many times as many pixels?",
        objectives=(3,),
        targets=("fused-work-is-an-edge",),
    ),
    Prediction(
        id="10.p7",
        question="Tiles of 16, no halos, one judgement: how many % are right?",
        objectives=(4,),
        targets=("halos-bring-accuracy",),
    ),
)
