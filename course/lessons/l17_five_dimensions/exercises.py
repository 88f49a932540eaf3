"""Exercise and predictions of lesson 17: who adds which gradients, and what two directions hold and save."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Prediction, WrongAnswer, changed, expect_array

# -------------------------------------------------------------------- 17.1 gradients of two replicas


def _gradient_of(replica: int, stage: int, lengths: Sequence[int]) -> np.ndarray:
    """A gradient whose digits name its stage and replica."""
    return np.full(lengths[stage], 10.0 ** (2 * stage + replica))


def _check_sum(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    stage, mirrored = comm.rank, comm.size - 1 - comm.rank
    one, two = ({s: _gradient_of(r, s, lengths) for s in (stage, mirrored)} for r in (0, 1))

    def both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second])

    right = {s: one[s] + two[s] for s in (stage, mirrored)}
    lookalikes = {
        "left the arrays as they were; change them in place, with +=.": both(one[stage], two[mirrored]),
        "changed `first` only; `second` lacks the other replica's gradients.": both(
            right[stage], two[mirrored]
        ),
        "changed `second` only; `first` lacks the other replica's gradients.": both(
            one[stage], right[mirrored]
        ),
        "took the mean; the loss is a sum over all images, so add the gradients.": both(
            right[stage] / 2, right[mirrored] / 2
        ),
        "added to an array before sending it: one replica counts twice. Send both first.": both(
            right[stage] + one[stage], right[mirrored]
        ),
        "added to an array before sending it: one replica counts twice. Send both, then add.": both(
            right[stage], right[mirrored] + two[mirrored]
        ),
    }
    if lengths[stage] == lengths[mirrored]:
        wrong = both(one[stage] + one[mirrored], two[mirrored] + two[stage])
        lookalikes["added gradients of another stage. Which stage's gradients are the partner's `first`?"] = (
            wrong
        )
    first, second = one[stage].copy(), two[mirrored].copy()
    answer.sum_replicas(comm, first, second)
    expect_array(both(first, second), both(right[stage], right[mirrored]), lookalikes)


_SUM = '''\
def sum_replicas(comm, first, second):
    """Add the other replica's gradients to `first` (of stage r) and `second` (of stage p - 1 - r)."""
    partner = comm.size - 1 - comm.rank
    for_first, for_second = np.empty_like(first), np.empty_like(second)
    comm.Sendrecv(first, partner, recvbuf=for_second, source=partner)
    comm.Sendrecv(second, partner, recvbuf=for_first, source=partner)
    first += for_first
    second += for_second
'''
_FIRST = "    comm.Sendrecv(first, partner, recvbuf=for_second, source=partner)\n"
_SECOND = "    comm.Sendrecv(second, partner, recvbuf=for_first, source=partner)\n"
_ADD_FIRST, _ADD_SECOND = "    first += for_first\n", "    second += for_second\n"

SUM_REPLICAS = Exercise(
    id="17.1",
    title="Spot the bug",
    task="On rank r of p, `first` holds gradients of replica 0's stage r, `second` those of replica 1's "
    "stage p − 1 − r. Sum each stage's gradients over replicas.",
    objectives=(1,),
    targets=("ours-is-your-ours",),
    stub='''\
def sum_replicas(comm, first, second):
    """Add the other replica's gradients to `first` (of stage r) and `second` (of stage p - 1 - r)."""
    partner = comm.size - 1 - comm.rank
    for_first, for_second = np.empty_like(first), np.empty_like(second)
    comm.Sendrecv(first, partner, recvbuf=for_first, source=partner)
    comm.Sendrecv(second, partner, recvbuf=for_second, source=partner)
    first += for_first
    second += for_second
''',
    hints=(
        "Play rank 0 of 4: `first` is of stage 0, and your partner is rank 3. Which stage's gradients are "
        "*its* `first`?",
        "rank 0   first: stage 0   second: stage 3\nrank 3   first: stage 3   second: stage 0",
        "comm.Sendrecv(first, partner, recvbuf=for_…, source=partner), where … names the other array",
    ),
    solution=_SUM,
    check=_check_sum,
    cases=((3, 3, 3, 3), (2, 5, 4, 3)),
    describe=lambda lengths: (
        "stages of equal size" if lengths[0] == lengths[1] else "stages of different sizes"
    ),
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(
                _SUM,
                (_FIRST, _FIRST.replace("for_second", "for_first")),
                (_SECOND, _SECOND.replace("for_first", "for_second")),
            ),
            "added gradients of another stage",
        ),
        WrongAnswer(
            changed(_SUM, (_SECOND + _ADD_FIRST + _ADD_SECOND, _ADD_SECOND + _SECOND + _ADD_FIRST)),
            "Send both first",
        ),
        WrongAnswer(
            changed(_SUM, (_FIRST + _SECOND + _ADD_FIRST, _SECOND + _ADD_FIRST + _FIRST)),
            "Send both, then add",
        ),
        WrongAnswer(
            changed(_SUM, (_ADD_SECOND, _ADD_SECOND + "    first /= 2\n    second /= 2\n")),
            "took the mean",
        ),
        WrongAnswer(
            changed(
                _SUM,
                (_FIRST, _FIRST.replace("for_second", "for_first")),
                (_SECOND, _SECOND.replace("for_first", "for_second")),
                (_ADD_FIRST + _ADD_SECOND, "    first += for_second\n    second += for_first\n"),
            ),
            "TRUNCATE",
        ),
        WrongAnswer(changed(_SUM, (_ADD_SECOND, "")), "changed `first` only"),
        WrongAnswer(changed(_SUM, (_ADD_FIRST, "")), "changed `second` only"),
        WrongAnswer(changed(_SUM, (_ADD_FIRST, ""), (_ADD_SECOND, "")), "left the arrays as they were"),
    ),
    why="with three ranks, who is the partner of rank 1, and why does your function still work there?",
)

EXERCISES = (SUM_REPLICAS,)

PREDICTIONS = (
    Prediction(
        id="17.p1",
        question="MASTER: how many MiB of activations on rank 0?",
        objectives=(2,),
        targets=("two-replicas-twice-the-activations",),
    ),
    Prediction(
        id="17.p2",
        question="MASTER's speed-up over Basic?",
        objectives=(3,),
        targets=("two-directions-twice-as-fast",),
    ),
)
