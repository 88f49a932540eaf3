"""Exercises of lesson 09, tensor parallelism: two layers, a wrong split, a loss of split logits."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l09_tensor_parallelism.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l09_tensor_parallelism.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array

# -------------------------------------------------------------------- 09.1 where the ranks meet


def _check_pair(answer: SimpleNamespace, comm: Any, hidden: int) -> None:
    """Small whole numbers, and a hidden layer that need not divide evenly."""
    draw = np.random.default_rng(hidden)
    x, up, down, target = (
        draw.integers(-3, 4, shape).astype(float) for shape in [(4, 3), (3, hidden), (hidden, 3), (4, 3)]
    )
    shards = np.array_split(np.arange(hidden), comm.size)
    mine = shards[comm.rank]
    counting = _counting(comm)
    given = [x.copy(), up[:, mine].copy(), down[mine].copy(), target.copy()]
    got = answer.mlp_step(counting, *given)
    expect(isinstance(got, tuple) and len(got) == 4, "did not return four things: y, d_x, d_up and d_down.")
    y, d_x, d_up, d_down = _step(x, up, down, target, np.maximum(x @ up, 0) @ down)
    right = {"y": y, "d_x": d_x, "d_up": d_up[:, mine], "d_down": d_down[mine]}
    parts = [_step(x, up[:, shard], down[shard], target, y) for shard in shards]
    for number, (name, value) in enumerate(zip(right, got, strict=True)):
        wrong = _lookalikes(name, [part[number] for part in parts], comm.rank) if comm.size > 1 else {}
        if name == "y" and comm.size > 1 and hidden % comm.size == 0:
            wrong = {**wrong, **_summed_hidden(x, up, down, shards, comm.rank)}
        expect_array(value, right[name], wrong)
    expect(
        comm.size == 1 or counting.calls == 2,
        f"is right, with {counting.calls} all-reduces; two are enough. Which one is not needed?",
    )


def _step(x: Any, up: Any, down: Any, target: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Output and gradients of two layers: of the full matrices, or a rank's part; `y` is the full output."""
    hidden, dy = np.maximum(x @ up, 0), (y - target) / len(x)
    d_hidden = (dy @ down.T) * (hidden > 0)
    return hidden @ down, d_hidden @ up.T, x.T @ d_hidden, hidden.T @ dy


def _lookalikes(name: str, parts: list[Any], rank: int) -> Mapping[str, Any]:
    if name in ("d_up", "d_down"):
        if len({part.shape for part in parts}) > 1:
            return {}
        words = f"added up {name} over the ranks. It belongs to this rank's own shard, and was complete."
        return {words: np.sum(parts, axis=0)}
    return {
        f"got only this rank's own part of {name}: the other ranks' parts are missing.": parts[rank],
        f"got the mean of the ranks' parts of {name}; {name} is their sum.": np.mean(parts, axis=0),
    }


def _summed_hidden(x: Any, up: Any, down: Any, shards: list[Any], rank: int) -> Mapping[str, Any]:
    """What y is when hidden is summed over the ranks: this rank's part of it, and the sum of the parts."""
    summed = np.sum([np.maximum(x @ up[:, shard], 0) for shard in shards], axis=0)
    parts = [summed @ down[shard] for shard in shards]
    words = "added up hidden over the ranks. Each rank has different hidden numbers, and each is complete."
    return {f"{words} Is y complete?": parts[rank], words: np.sum(parts, axis=0)}


def _counting(comm: Any) -> Any:
    """The same communicator; its `calls` counts the all-reduces."""

    def call(name: str) -> Any:
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            made.calls += 1
            return getattr(comm, name)(*args, **kwargs)

        return counted

    made = type("Counting", (type(comm),), {name: call(name) for name in ("Allreduce", "allreduce")})(comm)
    made.calls = 0
    return made


_MLP = '''\
def mlp_step(comm, x, up, down, target):
    """Return y = relu(x @ A) @ B and these gradients: of x, and of this rank's shards.

    They are the gradients of half the mean squared error. `up` holds this rank's columns of A, `down`
    its rows of B. x and target are the same on all ranks; so must y and d_x be.
    """
    hidden = np.maximum(x @ up, 0)
    y = hidden @ down
    comm.Allreduce(MPI.IN_PLACE, y)
    dy = (y - target) / len(x)
    d_down = hidden.T @ dy
    d_hidden = (dy @ down.T) * (hidden > 0)
    d_up = x.T @ d_hidden
    d_x = d_hidden @ up.T
    comm.Allreduce(MPI.IN_PLACE, d_x)
    return y, d_x, d_up, d_down
'''
_SUM_Y, _SUM_DX = "    comm.Allreduce(MPI.IN_PLACE, y)\n", "    comm.Allreduce(MPI.IN_PLACE, d_x)\n"
_FIRST = "    hidden = np.maximum(x @ up, 0)\n"

WHERE_THEY_MEET = Exercise(
    id="09.1",
    title="Where the ranks meet",
    task="This function takes both layers forward and backward on one rank's shards, with ReLU in place of "
    "GeLU. On one rank it is right. On several, two lines are missing; each is "
    "`comm.Allreduce(MPI.IN_PLACE, …)`, which replaces an array by its sum over the ranks. Insert them where "
    "the ranks hold parts of a sum.",
    objectives=(2, 3),
    targets=("gather-after-every-column", "every-layer-needs-a-sum"),
    stub=changed(_MLP, (_SUM_Y, ""), (_SUM_DX, ""), (_FIRST, "    # two lines are missing below\n" + _FIRST)),
    hints=(
        "Go through the results in turn: hidden, y, d_down, d_hidden, d_up, d_x. Has this rank used all the "
        "numbers that the result depends on, or are there others on other ranks?",
        "forward:   x  ──→ hidden (own columns, complete)   ──→ y   (a part of a sum)\n"
        "backward:  dy ──→ d_hidden (own columns, complete) ──→ d_x (a part of a sum)",
        "comm.Allreduce(MPI.IN_PLACE, …)   once right after `y = …`, once right after `… = …`",
    ),
    solution=_MLP,
    check=_check_pair,
    cases=(8, 7),
    describe=lambda hidden: f"{hidden} hidden numbers",
    sizes=(2, 3, 4, 1),  # alone, nothing has to be added
    wrong=(
        WrongAnswer(changed(_MLP, (_SUM_DX, "")), "got only this rank's own part of d_x"),
        WrongAnswer(changed(_MLP, (_SUM_Y, "")), "got only this rank's own part of y"),
        WrongAnswer(
            changed(_MLP, (_SUM_Y, _SUM_Y + "    y /= comm.size\n")), "got the mean of the ranks' parts of y"
        ),
        WrongAnswer(
            changed(_MLP, ("    y = hidden", "    hidden = comm.allreduce(hidden)\n    y = hidden")),
            "added up hidden",
        ),
        WrongAnswer(
            changed(_MLP, (_FIRST, _FIRST + "    comm.Allreduce(MPI.IN_PLACE, hidden)\n"), (_SUM_Y, "")),
            "Is y complete?",
        ),
        WrongAnswer(changed(_MLP, (_SUM_DX, _SUM_DX + "    comm.allreduce(0)\n")), "two are enough"),
        WrongAnswer(changed(_MLP, (_SUM_DX, _SUM_DX + "    d_up = comm.allreduce(d_up)\n")), "added up d_up"),
    ),
    why="d_hidden needs to know where hidden is positive, and no rank had to ask another. Why not?",
)

# -------------------------------------------------------------------- 09.2 a sentence as a program


def _check_product(answer: SimpleNamespace, comm: Any, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    A = np.arange(rows * inner).reshape(rows, inner)
    B = np.arange(A.size, A.size + inner * columns).reshape(inner, columns)
    got = answer.product(comm, A.copy(), B.copy())
    Y = A @ B
    lookalikes = {}
    if comm.size > 1 and inner % comm.size == 0:
        mine = np.array_split(np.arange(inner), comm.size)[comm.rank]
        lookalikes["is this rank's part of a sum: the other ranks' parts are missing."] = A[:, mine] @ B[mine]
    if comm.size > 1 and rows % comm.size == 0 and columns % comm.size == 0:
        blocks = [a @ b for a, b in zip(np.split(A, comm.size), np.split(B, comm.size, axis=1), strict=True)]
        total = np.sum(blocks, axis=0)
        lookalikes[
            f"has the shape {total.shape}, expected {Y.shape}. Each rank has computed one block of Y, and "
            "the sum adds different blocks. Which blocks has no rank computed?"
        ] = total
    expect_array(got, Y, lookalikes)


_PRODUCT = '''\
def product(comm, A, B):
    """Return A @ B on every rank, from each rank's share of both matrices."""
    a = np.array_split(A, comm.size, axis=1)[comm.rank]
    b = np.array_split(B, comm.size, axis=0)[comm.rank]
    return comm.allreduce(a @ b)
'''

A_SENTENCE = Exercise(
    id="09.2",
    title="Spot the bug",
    task="A guide to parallel training (Kolly, see References) computes the product of section 1. "
    "There, A is our `x`, and B is our `A`. The guide says that the product can be computed *by splitting "
    "matrix A by rows and matrix B by columns before summing the results*. Somebody wrote a program that "
    "does so. On two ranks it does not return A @ B.",
    objectives=(1,),
    targets=("any-split-can-be-summed",),
    stub=changed(_PRODUCT, ("axis=1", "axis=first"), ("axis=0", "axis=1"), ("axis=first", "axis=0")),
    hints=(
        "Write down what rank 0 and rank 1 hold for the product of section 1, and multiply by hand. What is "
        "each rank's result, and is it a part of a sum?",
        "Y[i, j] = A[i, 0]·B[0, j] + A[i, 1]·B[1, j] + …\n"
        "Cut this sum into two: which numbers of A and of B does the first half need?",
        "a = np.array_split(A, comm.size, axis=…)   b = np.array_split(B, comm.size, axis=…)",
    ),
    solution=_PRODUCT,
    check=_check_product,
    cases=((2, 4, 2), (4, 12, 4), (3, 5, 2)),
    describe=lambda shape: f"A of {shape[0]} × {shape[1]}, B of {shape[1]} × {shape[2]}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_PRODUCT, ("axis=1", "axis=0")), "ValueError"),
        WrongAnswer(changed(_PRODUCT, ("comm.allreduce(a @ b)", "a @ b")), "the other ranks' parts"),
        WrongAnswer(
            changed(  # the stub, written differently: the stub itself counts as not attempted
                _PRODUCT,
                *(("axis=1", "axis=first"), ("axis=0", "axis=1"), ("axis=first", "axis=0")),
                ("a @ b", "np.matmul(a, b)"),
            ),
            "Which blocks has no rank computed?",
        ),
    ),
    why="the guide's numbers are right, and its sentence is not. Which two words would you swap?",
)

# -------------------------------------------------------------------- 09.3 a loss of split logits


def _check_loss(answer: SimpleNamespace, comm: Any, case: tuple[int, int]) -> None:
    vocabulary, target = case
    logits = np.random.default_rng(vocabulary).normal(size=vocabulary) + np.arange(vocabulary) / 4
    mine = np.array_split(np.arange(vocabulary), comm.size)[comm.rank]
    got = answer.vocabulary_loss(comm, logits[mine].copy(), target, int(mine[0]))
    total = np.log(np.exp(logits).sum())
    lookalikes = {}
    if comm.size > 1:
        own = np.log(np.exp(logits[mine]).sum())
        lookalikes = {
            "sums the exponentials of this rank's logits only: a softmax over a shard.": own - logits[target],
            "lacks the target's logit. Another rank has it.": total,
            f"counts the target's logit {comm.size} times; one rank has it.": (
                total - comm.size * logits[target]
            ),
            f"divides the target's logit by {comm.size} ranks.": total - logits[target] / comm.size,
        }
    right = np.asarray(total - logits[target])
    expect_array(got, right, {words: v for words, v in lookalikes.items() if not np.isclose(v, right)})


_LOSS = '''\
def vocabulary_loss(comm, logits, target, start):
    """Return -log softmax(all logits)[target], on every rank.

    `logits` holds this rank's shard, which begins with number `start` of the vocabulary.
    `target` may be on any rank.
    """
    here = start <= target < start + len(logits)
    total, picked = np.exp(logits).sum(), logits[target - start] if here else 0.0
    numbers = np.array([total, picked])
    comm.Allreduce(MPI.IN_PLACE, numbers)
    return np.log(numbers[0]) - numbers[1]
'''
_SUM_BOTH = "    comm.Allreduce(MPI.IN_PLACE, numbers)\n"

VOCABULARY_LOSS = Exercise(
    id="09.3",
    title="A loss from split logits",
    task="Each rank has the logits of its shard of the vocabulary. Return the loss of one token without "
    "gathering them. The function is right on one rank. On several, which of its numbers needs the other "
    "ranks, and which rank has the target's logit?",
    objectives=(4,),
    targets=("parts-of-a-sum-are-shards",),
    stub='''\
def vocabulary_loss(comm, logits, target, start):
    """Return -log softmax(all logits)[target], on every rank.

    `logits` holds this rank's shard, which begins with number `start` of the vocabulary.
    `target` may be on any rank.
    """
    total, picked = np.exp(logits).sum(), logits[target]
    numbers = np.array([total, picked])
    return np.log(numbers[0]) - numbers[1]
''',
    hints=(
        "The loss needs two numbers from the full vocabulary: the sum of the exponentials and the target's "
        "logit. And at which index does the rank that has the target find it?",
        "vocabulary  0 1 2 3 │ 4 5 6      target 5, start 4:\n"
        "rank 1's logits       0 1 2      index 1 on this rank, and nowhere on rank 0",
        "picked = logits[target - …] if start <= target < … else 0.0   and   comm.Allreduce(MPI.IN_PLACE, …)",
    ),
    solution=_LOSS,
    check=_check_loss,
    cases=((8, 1), (7, 5), (9, 8)),
    describe=lambda case: f"a vocabulary of {case[0]}, target {case[1]}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_LOSS, (_SUM_BOTH, "    numbers[1] = comm.allreduce(picked)\n")), "a softmax over a shard"
        ),
        WrongAnswer(
            changed(_LOSS, (_SUM_BOTH, "    numbers[0] = comm.allreduce(total)\n")),
            "Another rank has it",
        ),
        WrongAnswer(changed(_LOSS, (" if here else 0.0", "")), "got 3.0"),
        WrongAnswer(changed(_LOSS, ("target - start", "target")), "IndexError"),
    ),
    why="how many numbers went into the sum, and how many would an all-gather of the logits have moved?",
)

EXERCISES = (WHERE_THEY_MEET, *QUESTIONS, A_SENTENCE, VOCABULARY_LOSS)
