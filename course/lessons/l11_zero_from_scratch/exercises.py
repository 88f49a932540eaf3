"""Exercises of lesson 11, ZeRO: who owns what, a bucket's gradients, a layer's weights, a norm.

The first is a faded example: the lesson shows a whole step of stage 1, 11.1 leaves two lines of stage 2 open,
11.3 has nothing but the signature of stage 3's forward pass. All of it in NumPy, on flat arrays.
"""

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l11_zero_from_scratch.exercise_clip import CLIP
from course.lessons.l11_zero_from_scratch.exercise_trace import TRACE
from course.lessons.l11_zero_from_scratch.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l11_zero_from_scratch.quiz import QUESTIONS
from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
)

# -------------------------------------------------------------------- 11.1 stage 2's gradients


def _check_slices(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """Buckets of decimal-coded gradients, made one by one; afterwards none of them may be alive."""
    made: list[weakref.ref[np.ndarray]] = []
    got = answer.shard_gradients(comm, _buckets(lengths, comm.rank, made))
    expect(
        isinstance(got, list), f"returned {type(got).__name__}, expected a list with a slice for each bucket."
    )
    expect(
        len(got) == len(lengths),
        f"returned {len(got)} slice{'s' * (len(got) != 1)}, and there are {len(lengths)} buckets.",
    )
    for number, (value, length) in enumerate(zip(got, lengths, strict=True)):
        positions = np.arange(1.0, length + 1)
        mine = np.array_split(positions, comm.size)[comm.rank]
        total = mine * _ones(comm.size)
        expect_array(value, total, _lookalikes(number, positions, total, comm) if comm.size > 1 else None)
    gc.collect()
    alive = sum(bucket() is not None for bucket in made)
    expect(
        alive == 0,
        f"is right, and {alive} full bucket{'s' * (alive > 1)} cannot be freed: a slice that is a view "
        f"keeps all "
        "it is cut from.",
    )


def _buckets(lengths: Sequence[int], rank: int, made: list[weakref.ref[np.ndarray]]) -> Iterator[np.ndarray]:
    def bucket(length: int) -> np.ndarray:
        gradient = np.arange(1.0, length + 1) * 10.0**rank
        made.append(weakref.ref(gradient))
        return gradient

    for length in lengths:
        yield bucket(length)


def _lookalikes(number: int, positions: np.ndarray, total: np.ndarray, comm: Any) -> Mapping[str, Any]:
    """What certain mistakes give for bucket `number`: an explanation and the value."""
    size, rank = comm.size, comm.rank
    where = f"bucket {number}: "
    found = {
        where + "that is the whole sum; of it this rank keeps its slice only.": positions * _ones(size),
        where + "that is the whole of this rank's own gradients.": positions * 10.0**rank,
        where + "that slice has this rank's own gradients: nothing was added.": total
        / _ones(size)
        * 10.0**rank,
        where + f"got the mean; the sum is {size} times larger.": total / size,
        where + "got zeros or what happened to be there: nothing was received.": np.zeros_like(total),
    }
    for other, part in enumerate(np.array_split(positions, size)):
        if other != rank:
            found[where + f"that is the slice of rank {other}."] = part * _ones(size)
        missing = missing_ranks(_ones(size) - 10**other, size)
        found[where + f"{missing}."] = total / _ones(size) * (_ones(size) - 10.0**other)
    return found


def _ones(size: int) -> int:
    return int("1" * size)


_SLICES = '''\
def shard_gradients(comm, buckets):
    """Return a list: this rank's slice of the summed gradients of each bucket.

    `buckets` yields arrays, as backward makes them. None may be kept.
    """
    slices = []
    for gradient in buckets:
        counts = [len(part) for part in np.array_split(gradient, comm.size)]
        mine = np.zeros(counts[comm.rank])
        comm.Reduce_scatter(gradient, mine, counts)
        slices.append(mine)
    return slices
'''
_SUM = "        comm.Reduce_scatter(gradient, mine, counts)\n"

SLICES = Exercise(
    id="11.1",
    title="Stage 2, with two gaps",
    task="The array for the slice has the wrong length, and nothing is summed.",
    objectives=(1, 3),
    targets=("view-is-small",),
    stub=changed(_SLICES, ("counts[comm.rank]", "0"), (_SUM, "")),
    hints=(
        "In the step of stage 1, one line sums gradients, and each rank gets its slice of the sum. How "
        "long must the array for it be?",
        "gradient of a bucket, on all ranks   1 2 3 4 5 │ 10 20 30 40 50 │ …\n"
        "after a reduce-scatter               rank 0: 11 22 33    rank 1: 44 55\n"
        "`mine` has as many numbers as this rank's count.",
        "mine = np.zeros(counts[…])   and   comm.Reduce_scatter(gradient, …, counts)",
    ),
    solution=_SLICES,
    check=_check_slices,
    cases=((8, 4), (7, 3), (1, 9, 2)),
    sizes=(2, 3, 4, 1),  # alone, a slice is the whole
    describe=lambda lengths: f"buckets of {', '.join(map(str, lengths))} gradients",
    wrong=(
        WrongAnswer(
            changed(
                _SLICES,
                ("        mine = np.zeros(counts[comm.rank])\n", ""),
                (_SUM, "        comm.Allreduce(MPI.IN_PLACE, gradient)\n"),
                ("append(mine)", "append(gradient)"),
            ),
            "keeps its slice only",
        ),
        WrongAnswer(
            changed(
                _SLICES,
                ("np.zeros(counts[comm.rank])", "np.array_split(gradient, comm.size)[comm.rank]"),
                (_SUM, "        comm.Allreduce(MPI.IN_PLACE, gradient)\n"),
            ),
            "a view keeps all it is cut from",
        ),
        WrongAnswer(
            changed(_SLICES, (_SUM, "        mine += np.array_split(gradient, comm.size)[comm.rank]\n")),
            "nothing was added",
        ),
        WrongAnswer(changed(_SLICES, (_SUM, _SUM + "        mine /= comm.size\n")), "got the mean"),
        WrongAnswer(changed(_SLICES, (_SUM, "")), "nothing was received"),
    ),
    why="a bucket leaves while backward goes on. Which bucket is full first: that of the first layers, or "
    "of the last?",
)

# -------------------------------------------------------------------- 11.3 stage 3's forward pass


def _check_forward(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    whole = [np.arange(1.0, length + 1) + 100 * layer for layer, length in enumerate(lengths)]
    shards = [np.array_split(weights, comm.size)[comm.rank].copy() for weights in whole]
    there: list[weakref.ref[Any]] = []
    wrong: list[Wrong] = []

    def look(layer: int, weights: Any) -> None:
        expect(layer == len(there), f"ran layer {layer!r} where layer {len(there)} was due.")
        expect_array(weights, whole[layer], _wrong_weights(layer, whole, comm))
        gc.collect()
        others = sum(other() is not None and other() is not weights for other in there)
        expect(
            others == 0,
            f"has gathered {others + 1} layers while layer {layer} runs. Which of them is needed now?",
        )

    def run(layer: int, x: float, weights: Any) -> float:
        try:
            look(layer, weights)
        except Wrong as error:  # raised afterwards: the other ranks wait for this one's slices
            wrong.append(error)
        there.append(weakref.ref(weights))
        return 2 * x + float(np.sum(weights))

    got = answer.forward(comm, run, 1.0, [shard.copy() for shard in shards], list(lengths))
    for error in wrong[:1]:
        raise error
    expect(len(there) == len(lengths), f"ran {len(there)} of {len(lengths)} layers.")
    x = 1.0
    for weights in whole:
        x = 2 * x + float(np.sum(weights))
    expect_array(got, np.asarray(x), {"returned the x that came in.": np.asarray(1.0)})


def _wrong_weights(layer: int, whole: Sequence[np.ndarray], comm: Any) -> Mapping[str, Any]:
    """What certain mistakes hand to `run`."""
    weights, where = whole[layer], f"layer {layer} ran with "
    mine = np.array_split(np.arange(len(weights)), comm.size)[comm.rank]
    only_mine = np.zeros_like(weights)
    only_mine[mine] = weights[mine]
    found: dict[str, Any] = {}
    if comm.size > 1:
        found |= {
            where + "this rank's slice of the weights only.": weights[mine],
            where + "zeros in place of the other ranks' slices.": only_mine,
            where + "zeros: nothing was gathered.": np.zeros_like(weights),
        }
    return found


_FORWARD = '''\
def forward(comm, run, x, shards, lengths):
    """Return what the layers make of x: x = run(layer, x, weights), for layers 0, 1, 2, …

    `shards[layer]` is this rank's slice of the layer's `lengths[layer]` weights.
    `run` needs them all; but two layers may never be whole at the same time.
    """
    for layer, shard in enumerate(shards):
        weights = np.zeros(lengths[layer])
        counts = [len(part) for part in np.array_split(weights, comm.size)]
        comm.Allgatherv(shard, [weights, counts])
        x = run(layer, x, weights)
        del weights
    return x
'''

FORWARD = Exercise(
    id="11.3",
    title="Stage 3, from its signature",
    task="Only forward. You know the two lines that matter.",
    objectives=(3,),
    stub='''\
def forward(comm, run, x, shards, lengths):
    """Return what the layers make of x: x = run(layer, x, weights), for layers 0, 1, 2, …

    `shards[layer]` is this rank's slice of the layer's `lengths[layer]` weights.
    `run` needs them all; but two layers may never be whole at the same time.
    """
    return x
''',
    hints=(
        "A loop over the layers, with three steps in each: make the weights whole, run the layer, let them "
        "go.",
        "layer 0   gather ─ run ─ free\nlayer 1                       gather ─ run ─ free\n"
        "To gather slices of unequal length takes `counts`, as in the step of stage 1.",
        "comm.Allgatherv(shard, [weights, …])   then   x = run(layer, …, weights)",
    ),
    solution=_FORWARD,
    check=_check_forward,
    cases=((8, 4), (5, 7, 3)),
    describe=lambda lengths: f"layers of {', '.join(map(str, lengths))} weights",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(
                _FORWARD,
                ("    for layer, shard in", "    kept = []\n    for layer, shard in"),
                ("        del weights\n", "        kept.append(weights)\n"),
            ),
            "has gathered 2 layers",
        ),
        WrongAnswer(
            changed(_FORWARD, ("run(layer, x, weights)", "run(layer, x, shard)")), "slice of the weights only"
        ),
        WrongAnswer(
            changed(_FORWARD, ("        comm.Allgatherv(shard, [weights, counts])\n", "")),
            "nothing was gathered",
        ),
        WrongAnswer(changed(_FORWARD, ("x = run(", "y = run(")), "returned the x that came in"),
        WrongAnswer(
            changed(
                _FORWARD,
                (
                    "    for layer, shard in enumerate(shards):",
                    "    for layer, shard in [*enumerate(shards)][::-1]:",
                ),
            ),
            "where layer 0 was due",
        ),
    ),
    why="backward needs the weights of the last layer first. Who still has them whole?",
)

EXERCISES = (SLICES, *QUESTIONS, TRACE, FORWARD, CLIP)
