"""Exercises of lesson 06, data parallelism by hand: average gradients, start equal, wait for sums.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l06_data_parallel_by_hand.exercise_wait import WAIT_FIRST
from course.lessons.l06_data_parallel_by_hand.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l06_data_parallel_by_hand.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect_array

TORCH = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F"

# -------------------------------------------------------------------- 06.1 average the gradients

LAYERS = 2, 3  # the sizes of the two gradient arrays


def _check_average(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """Array i of rank r holds (i + 1) · 10^r, as a sum over its shard; an empty shard holds zeros."""
    lengths, total = lengths[: comm.size], sum(lengths[: comm.size])
    sums = [10.0**rank if length else 0.0 for rank, length in enumerate(lengths)]
    gradients = [np.full(size, (i + 1) * sums[comm.rank]) for i, size in enumerate(LAYERS)]
    given = list(gradients)
    answer.average_gradients(comm, gradients, total)
    for i, array in enumerate(given):
        mean = (i + 1) * sum(sums) / total
        lookalikes = {
            f"array {i} still holds this rank's own sum: nothing was added, or not in place.": sums[
                comm.rank
            ],
            f"array {i} holds the sum over all ranks. It was not divided, or not in place.": sum(sums),
            f"array {i} holds the sum divided by {comm.size} ranks. A mean over how many images?": (
                sum(sums) / comm.size
            ),
            f"array {i} holds this rank's own mean: nothing was added over the ranks.": (
                sums[comm.rank] / max(lengths[comm.rank], 1)
            ),
            f"array {i} holds this rank's sum divided by the global batch. "
            "What about the other ranks' sums?": sums[comm.rank] / total,
            f"array {i} was divided by the global batch twice.": sum(sums) / total**2,
        }
        wrong = {words: np.full(array.shape, (i + 1) * value) for words, value in lookalikes.items()}
        expect_array(array, np.full(array.shape, mean), wrong)


_AVERAGE = '''\
def average_gradients(comm, gradients, global_size):
    """Turn the ranks' gradient sums into the mean gradient of the global batch, on every rank, in place.

    `gradients` is a list of NumPy arrays. Each holds the sum over the images of this rank's shard.
    """
    for gradient in gradients:
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= global_size
'''

AVERAGE = Exercise(
    id="06.1",
    title="Average the gradients",
    task="Two lines are missing in the loop: one communicates, one divides. Shards may differ in size; an "
    "empty one has sums of zero.",
    objectives=(1, 2, 3),
    stub='''\
def average_gradients(comm, gradients, global_size):
    """Turn the ranks' gradient sums into the mean gradient of the global batch, on every rank, in place.

    `gradients` is a list of NumPy arrays. Each holds the sum over the images of this rank's shard.
    """
    for gradient in gradients:
        ...
''',
    hints=(
        "Which collective leaves the sum on *every* rank? And over how many images does the mean of the "
        "global "
        "batch run?",
        "mean of five images = (a + b + c + d + e) / 5\n"
        "rank 0 holds  a + b + c ─┐\n"
        "rank 1 holds  d + e     ─┴─ Allreduce ──→ a + b + c + d + e on both, then / 5",
        "comm.Allreduce(MPI.IN_PLACE, …)   and   gradient /= …",
    ),
    solution=_AVERAGE,
    check=_check_average,
    cases=((3, 3, 3, 3), (3, 2, 2, 1), (2, 0, 1, 4)),
    describe=lambda lengths: (
        "an empty shard on rank 1" if 0 in lengths else f"shards of {lengths[0]}, {lengths[1]}, … images"
    ),
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_AVERAGE, ("        gradient /= global_size\n", "")),
            "It was not divided, or not in place",
        ),
        WrongAnswer(changed(_AVERAGE, ("/= global_size", "/= comm.size")), "A mean over how many images?"),
        WrongAnswer(
            changed(_AVERAGE, ("        comm.Allreduce(MPI.IN_PLACE, gradient)\n", "")),
            "What about the other ranks' sums?",
        ),
        WrongAnswer(
            changed(_AVERAGE, ("in gradients:", "in gradients[:1]:")),
            "array 1 still holds this rank's own sum",
        ),
        WrongAnswer(
            changed(
                _AVERAGE, ("comm.Allreduce(MPI.IN_PLACE, gradient)", "gradient = comm.allreduce(gradient)")
            ),
            "nothing was added, or not in place",
        ),
        WrongAnswer(changed(_AVERAGE, ("gradient /= global_size", "gradient /= global_size**2")), "twice"),
    ),
    why="a rank with an empty shard has nothing to contribute. Why must it call Allreduce all the same?",
)

# -------------------------------------------------------------------- 06.3 start equal


def _check_start_equal(answer: SimpleNamespace, comm: Any, case: None) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).double()
    own = [np.full(tuple(p.shape), 10.0**comm.rank) + index for index, p in enumerate(model.parameters())]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), own, strict=True):
            parameter.copy_(torch.from_numpy(value))
    answer.start_equal(comm, model)
    ranks = np.arange(comm.size)
    for index, (name, parameter) in enumerate(model.named_parameters()):
        lookalikes = {
            f"{name} is still this rank's own. Where did the numbers of rank 0 go?": own[index],
            f"{name} is the sum over all ranks. Rank 0's values were asked for.": np.full_like(
                own[index], (10.0**ranks + index).sum()
            ),
            f"{name} is the mean over all ranks. Rank 0's values were asked for.": np.full_like(
                own[index], (10.0**ranks + index).mean()
            ),
            f"{name} came from rank {comm.size - 1}.": np.full_like(own[index], 10.0 ** ranks[-1] + index),
        }
        expected = np.full_like(own[index], 1.0 + index)
        expect_array(parameter.detach().numpy(), expected, lookalikes)


_START = '''\
def start_equal(comm, model):
    """Overwrite the weights of every rank's model with those of rank 0."""
    for parameter in model.parameters():
        weights = parameter.detach().numpy()
        comm.Bcast(weights, root=0)
'''

START_EQUAL = Exercise(
    id="06.3",
    title="Spot the bug",
    task="Somebody wrote this phase 1. It runs without an error, and `replicas_agree` says False.",
    objectives=(6,),
    targets=("copy-is-the-tensor",),
    stub='''\
def start_equal(comm, model):
    """Overwrite the weights of every rank's model with those of rank 0."""
    for parameter in model.parameters():
        weights = np.array(parameter.detach())
        comm.Bcast(weights, root=0)
''',
    hints=(
        "Bcast is right: afterwards, `weights` holds rank 0's numbers on every rank. Which memory is that?",
        "parameter  ── np.array copies ──→  weights  ←── Bcast fills\n"
        "parameter  ── .numpy() shares ──→  the same memory",
        "weights = parameter.detach().…()",
    ),
    solution=_START,
    check=_check_start_equal,
    cases=(None,),
    sizes=(2, 3, 4, 1),
    imports=TORCH,
    wrong=(
        WrongAnswer(
            changed(_START, ("comm.Bcast(weights, root=0)", "comm.Allreduce(MPI.IN_PLACE, weights)")),
            "0.weight is the sum over all ranks",
        ),
        WrongAnswer(
            changed(
                _START,
                (
                    "comm.Bcast(weights, root=0)",
                    "comm.Allreduce(MPI.IN_PLACE, weights)\n        weights /= comm.size",
                ),
            ),
            "0.weight is the mean over all ranks",
        ),
        WrongAnswer(changed(_START, ("detach()", "detach().clone()")), "0.weight is still this rank's own"),
        WrongAnswer(changed(_START, ("root=0", "root=comm.size - 1")), "0.weight came from rank 1"),
    ),
    why="nothing failed, and a training would have run on. Which check of this lesson finds it?",
)

EXERCISES = (AVERAGE, *QUESTIONS, WAIT_FIRST, START_EQUAL)
