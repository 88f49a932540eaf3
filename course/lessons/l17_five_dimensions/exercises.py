"""Exercise, question and prediction of lesson 17: who adds which gradients, and what a speed-up compares."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Option, Prediction, Question, WrongAnswer, changed, expect_array

# -------------------------------------------------------------------- 17.1 gradients of two replicas


def _gradient_of(replica: int, stage: int, lengths: Sequence[int]) -> np.ndarray:
    """A gradient whose digits say of which stage and replica it is."""
    return np.full(lengths[stage], 10.0 ** (2 * stage + replica))


def _check_sum(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    stage, mirrored = comm.rank, comm.size - 1 - comm.rank
    first, second = ({s: _gradient_of(r, s, lengths) for s in (stage, mirrored)} for r in (0, 1))

    def both(ours: np.ndarray, opposite: np.ndarray) -> np.ndarray:
        return np.concatenate([ours, opposite])

    right = {s: first[s] + second[s] for s in (stage, mirrored)}
    lookalikes = {
        "left the arrays as they were; change them in place, with +=.": both(first[stage], second[mirrored]),
        "changed `ours` only; `opposite` lacks the other replica's gradients.": both(
            right[stage], second[mirrored]
        ),
        "changed `opposite` only; `ours` lacks the other replica's gradients.": both(
            first[stage], right[mirrored]
        ),
        "took the mean; the loss is a sum over all images, so the gradients are added.": both(
            right[stage] / 2, right[mirrored] / 2
        ),
        "sent an array to which it had already added: one replica counts twice. Send both first.": both(
            right[stage] + first[stage], right[mirrored]
        ),
        "sent an array to which it had already added: one replica counts twice. Send both, then add.": both(
            right[stage], right[mirrored] + second[mirrored]
        ),
    }
    if lengths[stage] == lengths[mirrored]:
        wrong = both(first[stage] + first[mirrored], second[mirrored] + second[stage])
        lookalikes["added gradients of another stage. Which stage's gradients are the partner's `ours`?"] = (
            wrong
        )
    ours, opposite = first[stage].copy(), second[mirrored].copy()
    answer.sum_replicas(comm, ours, opposite)
    expect_array(both(ours, opposite), both(right[stage], right[mirrored]), lookalikes)


_SUM = '''\
def sum_replicas(comm, ours, opposite):
    """Add the other replica's gradients to `ours` (of stage r) and `opposite` (of stage p - 1 - r)."""
    partner = comm.size - 1 - comm.rank
    for_ours, for_opposite = np.empty_like(ours), np.empty_like(opposite)
    comm.Sendrecv(ours, partner, recvbuf=for_opposite, source=partner)
    comm.Sendrecv(opposite, partner, recvbuf=for_ours, source=partner)
    ours += for_ours
    opposite += for_opposite
'''
_FIRST = "    comm.Sendrecv(ours, partner, recvbuf=for_opposite, source=partner)\n"
_SECOND = "    comm.Sendrecv(opposite, partner, recvbuf=for_ours, source=partner)\n"
_ADD_OURS, _ADD_OPPOSITE = "    ours += for_ours\n", "    opposite += for_opposite\n"

SUM_REPLICAS = Exercise(
    id="17.1",
    title="Spot the bug",
    task="On rank r of p, `ours` holds replica 0's gradients of stage r; `opposite`, replica 1's of "
    "stage p − 1 − r. Sum each stage's gradients over replicas.",
    objectives=(1,),
    targets=("ours-is-your-ours",),
    stub='''\
def sum_replicas(comm, ours, opposite):
    """Add the other replica's gradients to `ours` (of stage r) and `opposite` (of stage p - 1 - r)."""
    partner = comm.size - 1 - comm.rank
    for_ours, for_opposite = np.empty_like(ours), np.empty_like(opposite)
    comm.Sendrecv(ours, partner, recvbuf=for_ours, source=partner)
    comm.Sendrecv(opposite, partner, recvbuf=for_opposite, source=partner)
    ours += for_ours
    opposite += for_opposite
''',
    hints=(
        "Play rank 0 of 4: `ours` is of stage 0, and your partner is rank 3. Which stage's gradients are "
        "*its* `ours`?",
        "rank 0   ours: stage 0   opposite: stage 3\nrank 3   ours: stage 3   opposite: stage 0",
        "comm.Sendrecv(ours, partner, recvbuf=for_…, source=partner), where … names the other array",
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
                (_FIRST, _FIRST.replace("opp", "o").replace("for_oosite", "for_ours")),
                (_SECOND, _SECOND.replace("for_ours", "for_opposite")),
            ),
            "added gradients of another stage",
        ),
        WrongAnswer(
            changed(_SUM, (_SECOND + _ADD_OURS + _ADD_OPPOSITE, _ADD_OPPOSITE + _SECOND + _ADD_OURS)),
            "Send both first",
        ),
        WrongAnswer(
            changed(_SUM, (_FIRST + _SECOND + _ADD_OURS, _SECOND + _ADD_OURS + _FIRST)),
            "Send both, then add",
        ),
        WrongAnswer(
            changed(_SUM, (_ADD_OPPOSITE, _ADD_OPPOSITE + "    ours /= 2\n    opposite /= 2\n")),
            "took the mean",
        ),
        WrongAnswer(changed(_SUM, (_ADD_OPPOSITE, "")), "changed `ours` only"),
        WrongAnswer(changed(_SUM, (_ADD_OURS, "")), "changed `opposite` only"),
        WrongAnswer(changed(_SUM, (_ADD_OURS, ""), (_ADD_OPPOSITE, "")), "left the arrays as they were"),
    ),
    why="with three ranks, who is the partner of rank 1, and why does your function still work there?",
)

# -------------------------------------------------------------------- questions

HOW_WELL = Question(
    id="17.q1",
    question="On 128 GPUs, MASTER with data parallelism took 27 minutes. What is its scaling "
    "efficiency from 4 GPUs?",
    options=(
        Option(
            "0.50: speed-up 16.1 over Basic",
            reply="16.1 is measured from Basic, a different method: on the same 4 GPUs, MASTER alone has a "
            "speed-up of 1.72 (7.25 / 4.21 hours). Start from MASTER's time.",
            belief="any-baseline-will-do",
        ),
        Option(
            "0.29: speed-up 9.4 over MASTER",
            reply="4.21 hours are 253 minutes; 253 / 27 = 9.4; 9.4 / 32 = 0.29. Both times are MASTER's, but "
            "the talk gives neither batch nor GPUs per replica. The reported 16.1 is a product: 1.72 from "
            "MASTER times 9.4 from more GPUs.",
            right=True,
        ),
        Option(
            "0.94: speed-up 30 over MASTER",
            reply="That would mean 4.21 hours became 8 minutes, but they became 27. Data parallelism need "
            "not scale that well: with a fixed batch, each GPU computes less between two all-reduces.",
            belief="data-ranks-scale-ideally",
        ),
    ),
    objectives=(3,),
)

EXERCISES = (SUM_REPLICAS, HOW_WELL)

PREDICTIONS = (
    Prediction(
        id="17.p1",
        question="MASTER: how many MiB of activations on rank 0?",
        objectives=(2,),
        targets=("two-replicas-twice-the-activations",),
    ),
)
