"""Exercises, questions and predictions of lesson 06: the share of a loss, sums that were started, who waits.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

import time
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
    expect,
    expect_array,
)

# -------------------------------------------------------------------- 06.1 the share of the loss


def _check_share(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """Rank r has `lengths[r]` images; the batch has those of all ranks together."""
    import torch
    from mpi4py import MPI  # here, because it starts MPI, which the notebook must not
    from torch.nn import functional as F

    lengths, mine = lengths[: comm.size], lengths[comm.rank]
    total = sum(lengths)
    outputs = torch.arange(3.0 * mine, dtype=torch.float64).reshape(mine, 3).sin().requires_grad_()
    targets = torch.arange(mine) % 3
    share = answer.share_of_loss(outputs, targets, total)
    expect(isinstance(share, torch.Tensor), f"returned {type(share).__name__}, expected a tensor.")
    expect(share.requires_grad, "returned a number that backward cannot start from; return the tensor.")
    whole = float(F.cross_entropy(outputs, targets, reduction="sum"))
    lookalikes = {
        f"returned the mean over the {mine} images at hand. Over all ranks, what do the means add up to?": (
            whole / max(mine, 1)
        ),
        "returned the sum over the images at hand. How many images does the mean run over?": whole,
        f"divided the sum by 128, but this batch has {total} images.": whole / 128,
        f"divided the mean over this shard by {total} images. Is it a mean or a sum that you divide?": (
            whole / max(mine, 1) / total
        ),
    }
    for ranks in (comm.size, MPI.COMM_WORLD.size):
        fewer = f", but {comm.size} share this batch" if ranks != comm.size else ""
        lookalikes |= {
            f"divided this shard's mean by {ranks} ranks{fewer}. A mean of means is right only while "
            "shards are equal.": whole / max(mine, 1) / ranks,
            f"divided the sum by {ranks} ranks{fewer}. How many images does the mean run over?": whole
            / ranks,
        }
    got = share.detach().numpy()
    if mine == 0:
        expect(
            not np.isnan(got),
            "returned nan for an empty shard: the mean of no images is 0 / 0. Can `cross_entropy` add?",
        )
    expect_array(got, np.array(whole / total), {why: np.array(value) for why, value in lookalikes.items()})


_SHARE = '''\
def share_of_loss(outputs, targets, batch_size):
    """This rank's share of the loss: the shares of all ranks add up to the mean over the whole batch."""
    return F.cross_entropy(outputs, targets, reduction="sum") / batch_size
'''
_DIVISION = 'F.cross_entropy(outputs, targets, reduction="sum") / batch_size'

SHARE = Exercise(
    id="06.1",
    title="A share of the loss",
    task="Make the shares of all ranks add up to the *mean over the whole batch* "
    "of `batch_size` images. Shards may differ in size, and one may be empty.",
    objectives=(1,),
    stub='''\
def share_of_loss(outputs, targets, batch_size):
    """This rank's share of the loss: the shares of all ranks add up to the mean over the whole batch."""
    return F.cross_entropy(outputs, targets)
''',
    hints=(
        '`cross_entropy` averages over the images at hand. With `reduction="sum"` it adds.',
        "mean of five losses = (a + b + c + d + e) / 5\n"
        "rank 0 returns  (a + b + c) / 5 ─┐\n"
        "rank 1 returns      (d + e) / 5 ─┴─ their sum is the mean",
        'F.cross_entropy(outputs, targets, reduction="…") / …',
    ),
    solution=_SHARE,
    check=_check_share,
    cases=((3, 2, 2, 1), (3, 3, 3, 3), (2, 0, 1, 4)),
    describe=lambda lengths: (
        "an empty shard on rank 1" if 0 in lengths else f"shards of {lengths[0]} images, {lengths[1]}, …"
    ),
    sizes=(2, 3, 4, 1),
    imports="import torch\nfrom torch.nn import functional as F\ncomm = MPI.COMM_WORLD",
    save="06_by_hand.py",
    wrong=(
        WrongAnswer(changed(_SHARE, (" / batch_size", "")), "How many images does the mean run over?"),
        WrongAnswer(
            changed(_SHARE, (_DIVISION, "F.cross_entropy(outputs, targets) * 1.0")), "the means add up to?"
        ),
        WrongAnswer(
            changed(_SHARE, (_DIVISION, "F.cross_entropy(outputs, targets) / batch_size")),
            "Is it a mean or a sum that you divide?",
        ),
        WrongAnswer(
            changed(_SHARE, (_DIVISION, "F.cross_entropy(outputs, targets) / comm.size")),
            "right only while shards are equal",
        ),
        WrongAnswer(
            changed(_SHARE, (_DIVISION, _DIVISION.replace("batch_size", "comm.size"))),
            "How many images does the mean run over?",
        ),
        WrongAnswer(
            changed(_SHARE, (_DIVISION, f"({_DIVISION}).item()")), "returned float, expected a tensor"
        ),
    ),
    why="a rank with an empty shard returns 0. Why must it call Allreduce all the same?",
)

# -------------------------------------------------------------------- 06.2 wait before the update

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
            f"weights {index} moved along the mean of the gradients; the task asks for the sum.": (
                np.full_like(weight, -RATE * factor * total / comm.size)
            ),
            f"weights {index} did not change, or not in place.": np.zeros_like(weight),
        }
        expect_array(weight, np.full_like(weight, -RATE * factor * total), lookalikes)


_UPDATE = '''\
def update(comm, weights, gradients, rate):
    """Sum each gradient over all ranks, then subtract rate * sum from its weights, in place."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        requests[i].Wait()
        weight -= rate * gradients[i]
'''

_STUB = '''\
def update(comm, weights, gradients, rate):
    """Sum each gradient over all ranks, then subtract rate * sum from its weights, in place."""
    requests = [comm.Iallreduce(MPI.IN_PLACE, gradient) for gradient in gradients]
    for i, weight in enumerate(weights):
        weight -= rate * gradients[i]
        requests[i].Wait()
'''

WAIT_FIRST = Exercise(
    id="06.2",
    title="Spot the bug",
    task="Somebody starts the sums of all gradients, then updates. On one rank the result is right. On "
    "four it can be wrong, and differ from run to run. Repair it.",
    objectives=(2,),
    targets=("started-is-done",),
    stub=_STUB,
    hints=(
        "No call is missing. On the earliest rank, Iallreduce returns before others call it. What can "
        "`gradients[i]` hold then?",
        "Iallreduce ──→ returns at once     the array may hold anything\n"
        "Wait       ──→ returns when        the array holds the sum",
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
            "the task asks for the sum",
        ),
        WrongAnswer(changed(_UPDATE, ("weight -= rate", "weight = weight - rate")), "not in place"),
    ),
    why="what may `gradients[i]` hold before Wait? Why can a test on one rank never find the bug?",
)

# -------------------------------------------------------------------- questions

WHICH_GPU = Question(
    id="06.q1",
    question="Eight GPUs, two per machine. Each step's first all-reduce takes 310 ms on GPUs 0 to 5, and "
    "12 ms on GPUs 6 and 7. What do you look at first?",
    options=(
        Option(
            "the network of the first three machines",
            reply="All eight need every contribution, so a slow network would slow GPUs 6 and 7 as "
            "well. They take 12 ms: when they arrive, all others are waiting.",
            belief="short-wait-is-good",
        ),
        Option(
            "what GPUs 6 and 7 do before it",
            reply="The others wait about 300 ms for these two, which share a machine: "
            "check its temperature, data loading, other programs. (With the pipelines of lesson 08, also ask "
            "whom these two wait for.)",
            right=True,
        ),
        Option(
            "how to send fewer bytes",
            reply="Once all have arrived, the sum takes at most 12 ms. Halving the bytes would save at most "
            "6 of 310 ms.",
            belief="collective-time-is-transfer",
        ),
    ),
    objectives=(1,),
)

SAME_TRAINING = Question(
    id="06.q2",
    question="One GPU trains with batches of 256 and a rate of 0.1, without batch norm and dropout. On eight "
    "GPUs, each takes the mean loss of 32 of the 256 images, and a library *averages* the "
    "gradients. Which training on one GPU equals this?",
    options=(
        Option(
            "batches of 256, rate 0.1",
            reply="The average of eight equal shards' means is the mean over 256 images. With unequal "
            "shards it is not. (If each GPU took all 256, the average would not change.)",
            right=True,
        ),
        Option(
            "batches of 32, rate 0.1",
            reply="That would mean each GPU updates its replica with its own gradient. All use the "
            "average over all 256 images.",
            belief="still-batch-64",
        ),
        Option(
            "batches of 256, rate 0.8",
            reply="This library averages. With plain SGD, a *sum* of the eight means would act like rate 0.8 "
            "(section 1). (Adam hides such factors unless you clip: its steps hardly depend on the "
            "gradient's size.)",
            belief="ranks-multiply-the-step",
        ),
    ),
    objectives=(1,),
)

SAME_SEED = Question(
    id="06.q3",
    question="A program gives all ranks the same seed, so it drops line 1. One day, rank 3 draws one extra "
    "random number before it builds its model. What happens?",
    options=(
        Option(
            "the first all-reduce raises an error",
            reply="MPI adds arrays of equal size and type. It does not know what they mean.",
            belief="mpi-knows-meaning",
        ),
        Option(
            "the sums make the weights equal after some steps",
            reply="All ranks take the *same* step, so the differences stay (only weight decay shrinks them, "
            "slowly). In section 3, four unequal replicas got 79.5 %.",
            belief="no-broadcast-no-harm",
        ),
        Option(
            "rank 3's weights stay different; no error",
            reply="Rank 3's gradients fit only its own weights, but all ranks add them. Line 1 costs one "
            "broadcast per tensor, once.",
            right=True,
        ),
    ),
    objectives=(1,),
)

EXERCISES = (SHARE, SAME_SEED, WHICH_GPU, SAME_TRAINING, WAIT_FIRST)

PREDICTIONS = (
    Prediction(
        id="06.p1",
        question="Milliseconds, if messages start during backward?",
        objectives=(2,),
        targets=("sending-comes-after",),
    ),
    Prediction(
        id="06.p2",
        question="Median staleness of the slow worker's gradients?",
        objectives=(3,),
        targets=("a-slow-worker-is-only-late",),
    ),
)
