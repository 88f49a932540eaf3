"""Exercise 06.4: an update that does not wait for the sums that it was started with."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect_array

RATE = 0.5
_kept: list[Any] = []  # a sum that nobody waits for goes on writing to its array


def _late(comm: Any) -> Any:
    """The same communicator; higher ranks are later at every sum, so that lower ones return without it."""
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
            f"stepped along its own gradient {index}: the sum had been started, but was not there yet.": (
                np.full_like(weight, -RATE * factor * 10.0**comm.rank)
            ),
            f"stepped along the mean of the gradients {index}; the loss was divided before, so add only.": (
                np.full_like(weight, -RATE * factor * total / comm.size)
            ),
            f"did not change the weights {index}, or not in place.": np.zeros_like(weight),
        }
        expect_array(weight, np.full_like(weight, -RATE * factor * total), lookalikes)


_UPDATE = '''\
def update(comm, weights, gradients, rate):
    """Sum every gradient over all ranks, in place, and step along the sums."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        requests[i].Wait()
        weight -= rate * gradients[i]
'''

_STUB = '''\
def update(comm, weights, gradients, rate):
    """Sum every gradient over all ranks, in place, and step along the sums."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        weight -= rate * gradients[i]
        requests[i].Wait()
'''

WAIT_FIRST = Exercise(
    id="06.4",
    title="Spot the bug: the sum that is not there yet",
    task="Somebody's update with sums that are started early. On one rank it is right.",
    objectives=(3,),
    targets=("started-is-done",),
    stub=_STUB,
    hints=(
        "All calls are there. What does a rank that arrives first hold when Iallreduce returns?",
        "Iallreduce ──→ returns at once        the gradient is still our own\n"
        "   Wait     ──→ returns with the sum   now it is everybody's",
        "requests[i].…()   comes before   weight -= …",
    ),
    solution=_UPDATE,
    check=_check_update,
    cases=(None,),
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_UPDATE, ("        requests[i].Wait()\n", "")), "was not there yet"),
        WrongAnswer(changed(_UPDATE, ("requests[i].Wait()", "requests[0].Wait()")), "own gradient 1"),
        WrongAnswer(changed(_UPDATE, ("rate * gradients[i]", "rate * gradients[i] / comm.size")), "add only"),
        WrongAnswer(changed(_UPDATE, ("weight -= rate", "weight = weight - rate")), "not in place"),
    ),
    why="on which rank would the wrong order have passed, and why does a test on one rank not find it?",
)
