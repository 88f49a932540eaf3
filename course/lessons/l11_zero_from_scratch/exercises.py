"""Exercises of lesson 11, ZeRO: who owns what, a bucket's gradients, a layer's weights, a norm.

The first is a faded example: the lesson shows a full step of stage 1, 11.1 leaves two lines of stage 2 open,
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


def _check_shards(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """Buckets of decimal-coded float32 gradients, made one by one; afterwards none may be alive."""
    made: list[weakref.ref[np.ndarray]] = []
    got = answer.shard_gradients(comm, _buckets(lengths, comm.rank, made))
    expect(
        isinstance(got, list), f"returned {type(got).__name__}, expected a list with one shard per bucket."
    )
    expect(
        len(got) == len(lengths),
        f"returned {len(got)} shard{'s' * (len(got) != 1)} for {len(lengths)} buckets.",
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
        f"has the right shards, but {alive} full bucket{'s' * (alive > 1)} cannot be freed: a view keeps the "
        "whole array that it is cut from.",
    )


def _buckets(lengths: Sequence[int], rank: int, made: list[weakref.ref[np.ndarray]]) -> Iterator[np.ndarray]:
    def bucket(length: int) -> np.ndarray:
        gradient = (np.arange(1, length + 1) * 10**rank).astype(np.float32)
        made.append(weakref.ref(gradient))
        return gradient

    for length in lengths:
        yield bucket(length)


def _lookalikes(number: int, positions: np.ndarray, total: np.ndarray, comm: Any) -> Mapping[str, Any]:
    """What certain mistakes give for bucket `number`: an explanation and the value."""
    size, rank = comm.size, comm.rank
    where = f"bucket {number}: "
    found = {
        where + "that is the full sum; this rank keeps its shard only.": positions * _ones(size),
        where + "those are all of this rank's own gradients.": positions * 10.0**rank,
        where + "that shard has this rank's own gradients: nothing was added.": total
        / _ones(size)
        * 10.0**rank,
        where + f"got the mean; the sum is {size} times as large.": total / size,
        where + "that shard was never filled: nothing was received.": np.zeros_like(total),
    }
    for other, part in enumerate(np.array_split(positions, size)):
        if other != rank:
            found[where + f"that is the shard of rank {other}."] = part * _ones(size)
        missing = missing_ranks(_ones(size) - 10**other, size)
        found[where + f"{missing}."] = total / _ones(size) * (_ones(size) - 10.0**other)
    return found


def _ones(size: int) -> int:
    return int("1" * size)


_SHARDS = '''\
def shard_gradients(comm, buckets):
    """Return this rank's shard of the summed gradients, a list with one array per bucket.

    `buckets` yields one array after the other, as backward fills them. Do not keep any of them.
    """
    shards = []
    for gradient in buckets:
        counts = [len(part) for part in np.array_split(gradient, comm.size)]
        mine = np.zeros(counts[comm.rank], gradient.dtype)
        comm.Reduce_scatter(gradient, mine, counts)
        shards.append(mine)
    return shards
'''
_SUM = "        comm.Reduce_scatter(gradient, mine, counts)\n"

SHARDS = Exercise(
    id="11.1",
    title="Stage 2, with two gaps",
    task="This function gets one bucket after the other. From each bucket it should keep this rank's shard "
    "of the sum over all ranks. Fill two gaps: `mine` must be as long as the shard, and a call in place "
    "of `...` must fill it.",
    objectives=(1, 3),
    targets=("view-is-small",),
    stub=changed(_SHARDS, ("counts[comm.rank]", "0"), (_SUM, "        ...\n")),
    hints=(
        "In `zero1_step`, one line sums the gradients and leaves each rank its shard of the sum. How long "
        "must the array for the shard be?",
        "gradient of a bucket, on all ranks   1 2 3 4 5 │ 10 20 30 40 50 │ …\n"
        "after a reduce-scatter               rank 0: 11 22 33    rank 1: 44 55\n"
        "`counts` has the length of every rank's shard.",
        "mine = np.zeros(counts[…], gradient.dtype)   and   comm.Reduce_scatter(gradient, …, counts)",
    ),
    solution=_SHARDS,
    check=_check_shards,
    cases=((8, 4), (7, 3), (1, 9, 2)),
    sizes=(2, 3, 4, 1),  # alone, a shard is everything
    describe=lambda lengths: f"buckets of {', '.join(map(str, lengths))} gradients",
    wrong=(
        WrongAnswer(
            changed(
                _SHARDS,
                ("        mine = np.zeros(counts[comm.rank], gradient.dtype)\n", ""),
                (_SUM, "        comm.Allreduce(MPI.IN_PLACE, gradient)\n"),
                ("append(mine)", "append(gradient)"),
            ),
            "keeps its shard only",
        ),
        WrongAnswer(
            changed(
                _SHARDS,
                (
                    "np.zeros(counts[comm.rank], gradient.dtype)",
                    "np.array_split(gradient, comm.size)[comm.rank]",
                ),
                (_SUM, "        comm.Allreduce(MPI.IN_PLACE, gradient)\n"),
            ),
            "a view keeps the whole array",
        ),
        WrongAnswer(
            changed(_SHARDS, (_SUM, "        mine += np.array_split(gradient, comm.size)[comm.rank]\n")),
            "nothing was added",
        ),
        WrongAnswer(changed(_SHARDS, (_SUM, _SUM + "        mine /= comm.size\n")), "got the mean"),
        WrongAnswer(changed(_SHARDS, (_SUM, "")), "nothing was received"),
    ),
    why="backward fills the buckets one by one. Which is full first: that of the first layers, or that "
    "of the last?",
)

# -------------------------------------------------------------------- 11.3 stage 3's forward pass


def _check_forward(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    full = [np.arange(1.0, length + 1) + 100 * layer for layer, length in enumerate(lengths)]
    shards = [np.array_split(weights, comm.size)[comm.rank].copy() for weights in full]
    there: list[weakref.ref[Any]] = []
    wrong: list[Wrong] = []

    def look(layer: int, weights: Any) -> None:
        expect(layer == len(there), f"ran layer {layer!r} where layer {len(there)} was due.")
        expect_array(weights, full[layer], _wrong_weights(layer, full, comm))
        gc.collect()
        others = sum(other() is not None and other() is not weights for other in there)
        expect(
            others == 0,
            f"has {others + 1} layers gathered while layer {layer} runs. Which of them is needed now?",
        )

    def run(layer: int, x: float, weights: Any) -> float:
        try:
            look(layer, weights)
        except Wrong as error:  # raised afterwards: the other ranks wait for this one's shards
            wrong.append(error)
        there.append(weakref.ref(weights))
        return 2 * x + float(np.sum(weights))

    got = answer.forward(comm, run, 1.0, [shard.copy() for shard in shards], list(lengths))
    for error in wrong[:1]:
        raise error
    expect(len(there) == len(lengths), f"ran {len(there)} of {len(lengths)} layers.")
    x = 1.0
    for weights in full:
        x = 2 * x + float(np.sum(weights))
    expect_array(got, np.asarray(x), {"returned the x that came in.": np.asarray(1.0)})


def _wrong_weights(layer: int, full: Sequence[np.ndarray], comm: Any) -> Mapping[str, Any]:
    """What certain mistakes hand to `run`."""
    weights, where = full[layer], f"layer {layer} ran with "
    mine = np.array_split(np.arange(len(weights)), comm.size)[comm.rank]
    only_mine = np.zeros_like(weights)
    only_mine[mine] = weights[mine]
    found: dict[str, Any] = {}
    if comm.size > 1:
        found |= {
            where + "this rank's shard of the weights only.": weights[mine],
            where + "zeros in place of the other ranks' shards.": only_mine,
            where + "zeros: nothing was gathered.": np.zeros_like(weights),
        }
    return found


_FORWARD = '''\
def forward(comm, run, x, shards, lengths):
    """Run layers 0, 1, 2, … in turn, each by x = run(layer, x, weights), and return the last x.

    `shards[layer]` is this rank's shard of the layer's `lengths[layer]` weights. `run` needs
    all of them, but no two layers may be gathered at the same time.
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
    task="Write the forward pass of stage 3. The docstring says what is given; the collective that gathers "
    "shards is in `zero1_step`.",
    objectives=(3,),
    stub='''\
def forward(comm, run, x, shards, lengths):
    """Run layers 0, 1, 2, … in turn, each by x = run(layer, x, weights), and return the last x.

    `shards[layer]` is this rank's shard of the layer's `lengths[layer]` weights. `run` needs
    all of them, but no two layers may be gathered at the same time.
    """
    return x
''',
    hints=(
        "Loop over the layers. Each turn has three steps: gather the weights, run the layer, free them.",
        "layer 0   gather ─ run ─ free\nlayer 1                       gather ─ run ─ free\n"
        "To gather shards of unequal length you need `counts`, as in `zero1_step`.",
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
            "has 2 layers gathered",
        ),
        WrongAnswer(
            changed(_FORWARD, ("run(layer, x, weights)", "run(layer, x, shard)")), "shard of the weights only"
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
    why="backward starts with the last layer. Does any rank still have its full weights?",
)

EXERCISES = (SHARDS, *QUESTIONS, TRACE, FORWARD, CLIP)
