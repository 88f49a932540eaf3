"""Exercise 11.4: gradients that are clipped by the norm of a rank's own shard."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array


def _check_clip(answer: SimpleNamespace, comm: Any, case: tuple[int, float]) -> None:
    length, max_norm = case
    gradient = np.arange(1.0, length + 1)
    mine = np.array_split(gradient, comm.size)[comm.rank]
    given = mine.copy()
    answer.clip(comm, given, max_norm)
    norm = float(np.linalg.norm(gradient))
    expected = mine * min(1.0, max_norm / norm)
    expect(
        comm.size == 1 or norm > max_norm or np.array_equal(given, mine),
        f"scaled gradients although their norm, {norm:.2f}, is not above {max_norm:g}.",
    )
    expect_array(given, expected, _lookalikes(gradient, max_norm, comm) if comm.size > 1 else None)


def _lookalikes(gradient: np.ndarray, max_norm: float, comm: Any) -> Mapping[str, Any]:
    """What other norms than that of all gradients give."""
    parts = np.array_split(gradient, comm.size)
    mine = parts[comm.rank]
    norms = [float(np.linalg.norm(part)) for part in parts]
    right = mine * min(1.0, max_norm / float(np.linalg.norm(gradient)))
    wrong = {
        "clipped by the norm of this rank's own shard: each rank has a different factor.": norms[comm.rank],
        "clipped by the sum of the shards' norms, but norms do not add up. What does?": sum(norms),
        "clipped by the largest of the shards' norms.": max(norms),
        "clipped by the mean of the shards' norms.": sum(norms) / comm.size,
        "clipped by the sum of squares; a norm is its square root.": sum(norm**2 for norm in norms),
    }
    found = {words: mine * min(1.0, max_norm / norm) for words, norm in wrong.items()}
    found["left the gradients as they were."] = mine
    return {words: value for words, value in found.items() if not np.allclose(value, right, rtol=1e-10)}


_CLIP = '''\
def clip(comm, gradient, max_norm):
    """Scale all ranks' gradients by one factor so that their norm is at most max_norm.

    `gradient` is this rank's shard of the summed gradients. It is scaled in place.
    """
    norm = np.sqrt(comm.allreduce((gradient**2).sum()))
    gradient *= min(1, max_norm / norm)
'''

CLIP = Exercise(
    id="11.4",
    title="Spot the bug",
    task="A colleague wrote this function and tested it on one rank. On four ranks it runs without an "
    "error, but the weights are no longer those of one process. Find out why, and repair it.",
    objectives=(4,),
    targets=("own-norm-is-the-norm",),
    stub=changed(_CLIP, ("comm.allreduce((gradient**2).sum())", "(gradient**2).sum()")),
    hints=(
        "On two ranks, whose gradients are in this norm?",
        "gradients        3   4 │ 12        norm of all     √(9 + 16 + 144) = 13\n"
        "rank 0           3   4             its own norm    5\n"
        "rank 1                   12        its own norm    12        5 and 12 do not add up to 13",
        "norm = np.sqrt(comm.…((gradient**2).sum()))",
    ),
    solution=_CLIP,
    check=_check_clip,
    cases=((6, 1.0), (7, 2.0), (5, 7.0), (6, 1000.0)),
    describe=lambda case: f"{case[0]} gradients, clipped to a norm of {case[1]:g}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(
                _CLIP,
                (
                    "np.sqrt(comm.allreduce((gradient**2).sum()))",
                    "comm.allreduce(np.sqrt((gradient**2).sum()))",
                ),
            ),
            "norms do not add up",
        ),
        WrongAnswer(
            changed(
                _CLIP,
                ("comm.allreduce((gradient**2).sum())", "(gradient**2).sum()"),
                ("    gradient *=", "    norm = max(comm.allgather(norm))\n    gradient *="),
            ),
            "largest of the shards' norms",
        ),
        WrongAnswer(
            changed(
                _CLIP, ("np.sqrt(comm.allreduce((gradient**2).sum()))", "comm.allreduce((gradient**2).sum())")
            ),
            "square root",
        ),
        WrongAnswer(
            changed(_CLIP, ("comm.allreduce((gradient**2).sum())", "1 * (gradient**2).sum()")),
            "this rank's own shard",
        ),
        WrongAnswer(changed(_CLIP, ("min(1, max_norm / norm)", "max_norm / norm")), "is not above"),
    ),
    why="each rank sends a single number. In stage 0 every rank has all gradients. What would go wrong "
    "with this line there?",
)
