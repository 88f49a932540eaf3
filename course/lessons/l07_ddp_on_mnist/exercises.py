"""Exercises of lesson 07, DDP on MNIST: deal samples, shuffle every epoch, average over unequal parts.

torch is imported where a check needs it, so that exercises without it are checked sooner.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l07_ddp_on_mnist.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l07_ddp_on_mnist.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect, show

# -------------------------------------------------------------------- 07.1 deal like a sampler


def _check_deal(answer: SimpleNamespace, comm: Any, samples: int) -> None:
    rank, size = comm.rank, comm.size
    order = [10 * number for number in range(1, samples + 1)]
    got = answer.deal(order[:], rank, size)
    expect(got is not None, "returned None; does the function reach its return?")
    got = [int(value) for value in got]
    rounds = (samples + size - 1) // size
    expected = [order[(rank + turn * size) % samples] for turn in range(rounds)]
    if got == expected:
        return
    expect(got != order or size == 1, "got all samples: nobody divides them, if not you.")
    short = order[rank::size]
    expect(
        got != short,
        f"got {len(short)} samples, and some other rank {rounds}: it would wait in its last sum for ever.",
    )
    dropped = order[: samples // size * size][rank::size]
    expect(got != dropped, f"got {show(dropped)}: the samples at the end are seen by nobody.")
    blocks = (order * size)[rank * rounds : (rank + 1) * rounds]
    expect(got != blocks, f"got {show(got)}, which are neighbours: they are dealt in turn, like cards.")
    expect(len(got) == rounds, f"got {len(got)} samples; every rank needs {rounds}.")
    raise Wrong(f"got {show(got)}, expected {show(expected)}. Which cards come after the last one?")


_DEAL = '''\
def deal(order, rank, size):
    """The samples of `rank`: dealt in turn, again from the front until all have as many."""
    rounds = -(-len(order) // size)  # rounded up
    cards = order * size
    return cards[: rounds * size][rank::size]
'''

DEAL = Exercise(
    id="07.1",
    title="Deal like a sampler",
    task="",
    objectives=(2,),
    targets=("ddp-splits-the-batch",),
    stub='''\
def deal(order, rank, size):
    """The samples of `rank`: dealt in turn, again from the front until all have as many."""
    rounds = -(-len(order) // size)  # rounded up
    cards = order  # a list
    return cards
''',
    hints=(
        "Two things are missing: more cards, where ranks do not divide them, and a rank's own ones.",
        "10 20 30 40 50 | 10 20 30 …   five samples, begun again\n"
        " 0  1  2  3  0 |  1  2  3     the rank that gets each, if there are four",
        "cards = order + order …   then the first rounds * size of them, and of those every …th, from …",
    ),
    solution=_DEAL,
    check=_check_deal,
    cases=(12, 10, 2),
    describe=lambda samples: f"{samples} samples",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_DEAL, ("cards = order * size", "cards = order")), "would wait in its last sum"),
        WrongAnswer(
            changed(_DEAL, ("[: rounds * size][rank::size]", "[rank * rounds : (rank + 1) * rounds]")),
            "dealt in turn, like cards",
        ),
        WrongAnswer(changed(_DEAL, ("-(-len(order) // size)", "len(order) // size")), "are seen by nobody"),
        WrongAnswer(changed(_DEAL, ("cards[: rounds * size][rank::size]", "order")), "got all samples"),
        WrongAnswer(changed(_DEAL, ("order * size", "order + order[-1:] * size")), "Which cards come after"),
    ),
    why="some samples were dealt twice. When you measure the accuracy on test images, what would that do?",
)

# -------------------------------------------------------------------- 07.2 every epoch another order


def _check_epochs(answer: SimpleNamespace, comm: Any, samples: int) -> None:
    everyone = [
        answer.epochs_of(SimpleNamespace(rank=rank, size=comm.size), samples, 3) for rank in range(comm.size)
    ]
    mine = everyone[comm.rank]
    expect(isinstance(mine, Sequence) and len(mine) == 3, "returned no list of three epochs.")
    for epoch in range(3):
        dealt = sorted(int(index) for seen in everyone for index in seen[epoch])
        if dealt == list(range(samples)):
            continue
        missing = sorted(set(range(samples)) - set(dealt))
        twice = sorted({index for index in dealt if dealt.count(index) > 1})
        expect(
            not (missing and twice),
            f"in epoch {epoch} image {min(missing, default=0)} was with nobody, image "
            f"{min(twice, default=0)} with several ranks: do all deal from one order?",
        )
        raise Wrong(f"in epoch {epoch} the ranks saw {len(dealt)} of {samples} images.")
    orders = [[int(index) for index in seen] for seen in mine]
    expect(sorted(orders[0]) != orders[0] or sorted(orders[1]) != orders[1], "nothing is shuffled.")
    expect(orders[0] != orders[1], f"epochs 0 and 1 have the same order: {show(orders[0])}.")
    expect(orders[1] != orders[2], f"epochs 1 and 2 have the same order: {show(orders[1])}.")


_EPOCHS = '''\
def epochs_of(comm, samples, epochs):
    """The samples that this rank sees: a list for each epoch."""
    sampler = DistributedSampler(range(samples), comm.size, comm.rank, shuffle=True, seed=0)
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen
'''

EPOCHS = Exercise(
    id="07.2",
    title="Spot the bugs: shares that are none, and epochs alike",
    task="Somebody wants to see what each rank gets. There are two mistakes.",
    objectives=(2,),
    targets=("set-epoch-is-optional", "own-seed-own-share"),
    stub='''\
def epochs_of(comm, samples, epochs):
    """The samples that this rank sees: a list for each epoch."""
    sampler = DistributedSampler(range(samples), comm.size, comm.rank, shuffle=True, seed=comm.rank)
    seen = []
    for _ in range(epochs):
        seen.append(list(sampler))
    return seen
''',
    hints=(
        "Run it and compare: two ranks in one epoch, then one rank in two epochs.",
        "seed 0:  4 1 7 5 3 …   rank 0 takes the 1st, rank 1 the 2nd card: of one deck\n"
        "seed 1:  5 6 1 2 0 …   if rank 1 has another deck, its 2nd card may be rank 0's 1st",
        "one seed for all, and in the loop: sampler.set_…(…)",
    ),
    solution=_EPOCHS,
    check=_check_epochs,
    cases=(24,),
    sizes=(2, 3, 4, 1),
    imports="import torch\nfrom torch.utils.data import DistributedSampler",
    wrong=(
        WrongAnswer(changed(_EPOCHS, ("seed=0", "seed=comm.rank")), "do all deal from one order"),
        WrongAnswer(changed(_EPOCHS, ("        sampler.set_epoch(epoch)\n", "")), "have the same order"),
        WrongAnswer(changed(_EPOCHS, ("shuffle=True", "shuffle=False")), "nothing is shuffled"),
        WrongAnswer(changed(_EPOCHS, ("comm.size, comm.rank", "1, 0")), "in epoch 0 the ranks saw"),
    ),
    why="all ranks agree on the order without a message. What would go wrong if each drew its own?",
)

# -------------------------------------------------------------------- 07.3 the average of averages


def _check_mean(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    size = comm.size
    parts = [np.full(count, 10.0**rank) for rank, count in enumerate(lengths[:size])]
    total, count = sum(part.sum() for part in parts), sum(lengths[:size])
    got = answer.mean_loss(comm, parts[comm.rank].copy())
    expect(got is not None, "returned None; does the function reach its return?")
    value = float(got)
    if np.isclose(value, total / count, rtol=1e-12):
        return
    means = [part.mean() for part in parts if len(part)]
    with_empty = size != len(means) and np.isnan(value)
    expect(not with_empty, "got nan: a rank without images has no mean.")
    expect(
        not np.isclose(value, sum(means) / size),
        f"got {value:g}, the mean of the means; a rank with {min(lengths[:size])} images counts as much "
        f"in it as one with {max(lengths[:size])}.",
    )
    own = lengths[comm.rank]
    expect(
        own == 0 or not np.isclose(value, total / own), "divided all losses by the images of one rank only."
    )
    expect(not np.isclose(value, total), "got the sum of all losses; by how many images?")
    expect(
        not np.isclose(value, total / size), "got the sum of all losses divided by the ranks, not the images."
    )
    raise Wrong(f"got {value:g}, expected {total / count:g}.")


_MEAN = '''\
def mean_loss(comm, losses):
    """The mean over the images of all ranks; `losses` is an array, one number for each image of this rank."""
    total = comm.allreduce(losses.sum())
    count = comm.allreduce(len(losses))
    return total / count
'''

MEAN = Exercise(
    id="07.3",
    title="Spot the bug: the average of averages",
    task="Somebody reports the loss on the test images, which are dealt without repeating any.",
    objectives=(2, 4),
    targets=("mean-of-means",),
    stub='''\
def mean_loss(comm, losses):
    """The mean over the images of all ranks; `losses` is an array, one number for each image of this rank."""
    mean = losses.mean()
    return comm.allreduce(mean) / comm.size
''',
    hints=(
        "It is right when all ranks have equally many images. When have they not?",
        "rank 0: 2 2 2   mean 2\nrank 1: 8       mean 8     mean of means 5, mean of all four 3.5",
        "two sums over the ranks: of the losses, and of the …",
    ),
    solution=_MEAN,
    check=_check_mean,
    cases=((3, 3, 3, 3), (3, 1, 2, 1), (2, 0, 1, 3)),
    describe=lambda lengths: f"{lengths[0]}, {lengths[1]}, … images",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_MEAN, ("losses.sum()", "losses.mean()"), ("len(losses)", "1")), "the mean of the means"
        ),
        WrongAnswer(changed(_MEAN, ("total / count", "total / comm.size")), "divided by the ranks"),
        WrongAnswer(changed(_MEAN, ("total / count", "total")), "got the sum of all losses"),
        WrongAnswer(changed(_MEAN, ("comm.allreduce(len(losses))", "len(losses)")), "of one rank only"),
    ),
    why="DDP averages over ranks just like that. Why is it right when the sampler repeats a few samples?",
)

EXERCISES = (DEAL, *QUESTIONS, EPOCHS, MEAN)
