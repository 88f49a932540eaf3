"""Exercise 06.2: an update that uses sums which were started, but are not complete."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect_array

RATE = 0.5
_kept: list[Any] = []  # a sum that nobody waited for still writes to its array


def _late(comm: Any) -> Any:
    """The same communicator, but higher ranks arrive late at every sum, so lower ones cannot have it yet."""
    from mpi4py import MPI  # here, because it starts MPI, which the notebook must not

    class Late(MPI.Intracomm):
        def Iallreduce(self, *args: Any, **kwargs: Any) -> MPI.Request:
            time.sleep(0.03 * self.rank)
            return super().Iallreduce(*args, **kwargs)

    return Late(comm)


def _check_update(answer: SimpleNamespace, comm: Any, case: None) -> None:
    gradients = [np.full(2, 10.0**comm.rank), np.full(3, 3 * 10.0**comm.rank)]
    weights = [np.zeros(2), np.zeros(3)]
    _kept.append(gradients)
    answer.update(_late(comm), weights, gradients, RATE)
    total = sum(10.0**rank for rank in range(comm.size))
    for index, weight in enumerate(weights):
        factor = 1 + 2 * index
        lookalikes = {
            f"weights {index} moved along this rank's own gradient: the sum was not complete yet.": (
                np.full_like(weight, -RATE * factor * 10.0**comm.rank)
            ),
            f"weights {index} moved along the mean of the gradients; here the sum was asked for.": (
                np.full_like(weight, -RATE * factor * total / comm.size)
            ),
            f"weights {index} did not change, or not in place.": np.zeros_like(weight),
        }
        expect_array(weight, np.full_like(weight, -RATE * factor * total), lookalikes)


_UPDATE = '''\
def update(comm, weights, gradients, rate):
    """Sum every gradient over all ranks, in place, and move the weights along the sums."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        requests[i].Wait()
        weight -= rate * gradients[i]
'''

_STUB = '''\
def update(comm, weights, gradients, rate):
    """Sum every gradient over all ranks, in place, and move the weights along the sums."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        weight -= rate * gradients[i]
        requests[i].Wait()
'''

WAIT_FIRST = Exercise(
    id="06.2",
    title="Spot the bug",
    task="Somebody starts all sums at once and then updates. On one rank the result is right. On four it is "
    "not, and not always in the same way.",
    objectives=(5,),
    targets=("started-is-done",),
    stub=_STUB,
    hints=(
        "No call is missing. What does `gradients[i]` hold when Iallreduce returns on the first rank to "
        "arrive?",
        "Iallreduce ──→ returns at once     the gradient may still be our own\n"
        "Wait       ──→ returns later       now it is the sum",
        "requests[i].…()   comes before   weight -= …",
    ),
    solution=_UPDATE,
    check=_check_update,
    cases=(None,),
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_UPDATE, ("        requests[i].Wait()\n", "")), "not complete yet"),
        WrongAnswer(
            changed(_UPDATE, ("requests[i].Wait()", "requests[0].Wait()")),
            "weights 1 moved along this rank's own gradient",
        ),
        WrongAnswer(
            changed(_UPDATE, ("rate * gradients[i]", "rate * gradients[i] / comm.size")),
            "here the sum was asked for",
        ),
        WrongAnswer(changed(_UPDATE, ("weight -= rate", "weight = weight - rate")), "not in place"),
    ),
    why="on which rank would the wrong order pass? Why can a test on one rank never find it?",
)
