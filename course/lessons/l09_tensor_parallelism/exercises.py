"""Exercises of lesson 09, tensor parallelism: two all-reduces, a bias, a loss without full logits."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l09_tensor_parallelism.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l09_tensor_parallelism.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array

# -------------------------------------------------------------------- 09.1 place the two all-reduces


def _check_pair(answer: SimpleNamespace, comm: Any, hidden: int) -> None:
    """Small whole numbers, and a hidden layer that need not divide evenly."""
    draw = np.random.default_rng(hidden)
    x, up, down, dy = (
        draw.integers(-3, 4, shape).astype(float) for shape in [(3, 4), (4, hidden), (hidden, 4), (3, 4)]
    )
    parts = [_pair(x, up[:, mine], down[mine], dy) for mine in np.array_split(np.arange(hidden), comm.size)]
    mine = np.array_split(np.arange(hidden), comm.size)[comm.rank]
    counting = _counting(comm)
    given = [x.copy(), up[:, mine].copy(), down[mine].copy(), dy.copy()]
    got = answer.mlp(counting, *given)
    expect(isinstance(got, tuple) and len(got) == 2, "did not return two things: y and dx.")
    whole = _pair(x, up, down, dy)
    for name, value, right, part in (
        ("y", got[0], whole[0], [y for y, _ in parts]),
        ("dx", got[1], whole[1], [dx for _, dx in parts]),
    ):
        expect_array(value, right, _lookalikes(name, part, comm.rank) if comm.size > 1 else None)
    expect(
        comm.size == 1 or counting.calls == 2,
        f"is right, with {counting.calls} all-reduces; two are enough. Which one is not needed?",
    )


def _pair(x: Any, up: Any, down: Any, dy: Any) -> tuple[Any, Any]:
    """What two layers give, and the gradient of x: of whole matrices, or a rank's part of both."""
    hidden = np.maximum(x @ up, 0)
    return hidden @ down, ((dy @ down.T) * (hidden > 0)) @ up.T


def _lookalikes(name: str, parts: list[Any], rank: int) -> Mapping[str, Any]:
    return {
        f"got only its own part of {name}: the other ranks' parts are missing.": parts[rank],
        f"got the mean of the ranks' parts of {name}; {name} is their sum.": np.mean(parts, axis=0),
    }


def _counting(comm: Any) -> Any:
    """The same communicator, that counts its all-reduces."""

    def call(name: str) -> Any:
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            made.calls += 1
            return getattr(comm, name)(*args, **kwargs)

        return counted

    made = type("Counting", (type(comm),), {name: call(name) for name in ("Allreduce", "allreduce")})(comm)
    made.calls = 0
    return made


_MLP = '''\
def mlp(comm, x, up, down, dy):
    """Return y = relu(x @ A) @ B, and dx, the gradient of x: both in full, on every rank.

    `up` are this rank's columns of A, `down` its rows of B. x, and dy, the gradient
    of y, are the same on all ranks.
    """
    hidden = np.maximum(x @ up, 0)
    y = hidden @ down
    comm.Allreduce(MPI.IN_PLACE, y)
    dhidden = (dy @ down.T) * (hidden > 0)
    dx = dhidden @ up.T
    comm.Allreduce(MPI.IN_PLACE, dx)
    return y, dx
'''
_SUM_Y, _SUM_DX = "    comm.Allreduce(MPI.IN_PLACE, y)\n", "    comm.Allreduce(MPI.IN_PLACE, dx)\n"

TWO_ALL_REDUCES = Exercise(
    id="09.1",
    title="Place the two all-reduces",
    task="Here are both ways by hand, with ReLU in place of GeLU. Four results are computed, and "
    "for two of them the ranks have to meet.",
    objectives=(2,),
    targets=("gather-after-every-column", "every-layer-needs-a-sum"),
    stub=changed(_MLP, (_SUM_Y, ""), (_SUM_DX, "")),
    hints=(
        "Go through the four results in turn: hidden, y, dhidden, dx. Is it this rank's own columns, or a "
        "part of a sum?",
        "forward:    x ──→ hidden (own columns) ──→ y  (a part of a sum)\n"
        "backward:   dy ─→ dhidden (own columns) ─→ dx (a part of a sum)",
        "comm.Allreduce(MPI.IN_PLACE, …)   once after y, once after …",
    ),
    solution=_MLP,
    check=_check_pair,
    cases=(8, 7),
    describe=lambda hidden: f"{hidden} hidden numbers",
    sizes=(2, 3, 4, 1),  # alone, nothing has to be added
    wrong=(
        WrongAnswer(changed(_MLP, (_SUM_DX, "")), "got only its own part of dx"),
        WrongAnswer(changed(_MLP, (_SUM_Y, "")), "got only its own part of y"),
        WrongAnswer(
            changed(_MLP, (_SUM_Y, _SUM_Y + "    y /= comm.size\n")), "got the mean of the ranks' parts of y"
        ),
        WrongAnswer(
            changed(_MLP, ("    y = hidden", "    hidden = comm.allreduce(hidden)\n    y = hidden")),
            "rank",
        ),
        WrongAnswer(changed(_MLP, (_SUM_DX, _SUM_DX + "    comm.allreduce(0)\n")), "two are enough"),
    ),
    why="dhidden is multiplied by (hidden > 0), and nobody had to ask for hidden. Why not?",
)

# -------------------------------------------------------------------- 09.2 a bias, once


def _check_row(answer: SimpleNamespace, comm: Any, length: int) -> None:
    draw = np.random.default_rng(length)
    x, weight = (draw.integers(-3, 4, shape).astype(float) for shape in [(2, length), (length, 3)])
    bias = np.array([1000.0, 2000.0, 3000.0])
    mine = np.array_split(np.arange(length), comm.size)[comm.rank]
    got = answer.row_linear(comm, x[:, mine], weight[mine], bias.copy())
    product = x @ weight
    part = x[:, mine] @ weight[mine]
    lookalikes = {
        f"has the bias {comm.size} times: it was in every rank's part of the sum.": product
        + comm.size * bias,
        "has no bias.": product,
        "has the bias of a part of a sum: nothing was added up.": part + bias,
        "got the mean of the parts; their sum is wanted.": product / comm.size + bias,
    }
    expect_array(got, product + bias, lookalikes if comm.size > 1 else None)


_ROW = '''\
def row_linear(comm, x, weight, bias):
    """Return X @ W + b on every rank.

    `x` are this rank's columns of X, `weight` its rows of W; `bias` is b.
    """
    y = x @ weight
    comm.Allreduce(MPI.IN_PLACE, y)
    return y + bias
'''

ROW_BIAS = Exercise(
    id="09.2",
    title="Spot the bug: a bias that grows with the ranks",
    task="Somebody's row layer. On one rank it is right.",
    objectives=(1,),
    targets=("bias-on-every-rank",),
    stub='''\
def row_linear(comm, x, weight, bias):
    """Return X @ W + b on every rank.

    `x` are this rank's columns of X, `weight` its rows of W; `bias` is b.
    """
    y = x @ weight + bias
    comm.Allreduce(MPI.IN_PLACE, y)
    return y
''',
    hints=(
        "On one rank it is right. What is in the sum of two ranks, besides the products?",
        "rank 0   part + b ─┐\nrank 1   part + b ─┴─ sum:  X @ W + 2 b",
        "y = x @ weight   …   return y + …",
    ),
    solution=_ROW,
    check=_check_row,
    cases=(4, 7),
    describe=lambda length: f"{length} columns",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(changed(_ROW, ("y + bias", "y")), "has no bias"),
        WrongAnswer(changed(_ROW, ("    comm.Allreduce(MPI.IN_PLACE, y)\n", "")), "nothing was added up"),
        WrongAnswer(changed(_ROW, ("return y +", "return y / comm.size +")), "got the mean of the parts"),
        WrongAnswer(changed(_ROW, ("y + bias", "y + comm.size * bias")), "has the bias 2 times"),
    ),
    why="a column layer adds its bias before anything is sent. Why is that right there?",
)

# -------------------------------------------------------------------- 09.3 a loss without full logits


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
            "summed the exponentials of its own logits only: a softmax over a shard.": own - logits[target],
            "did not get the target's logit from the rank that has it.": total,
            f"counted the target's logit {comm.size} times: on every rank, though one has it.": (
                total - comm.size * logits[target]
            ),
            f"got the mean of the losses' parts, over {comm.size} ranks.": total - logits[target] / comm.size,
        }
    right = np.asarray(total - logits[target])
    expect_array(got, right, {words: v for words, v in lookalikes.items() if not np.isclose(v, right)})


_LOSS = '''\
def vocabulary_loss(comm, logits, target, start):
    """Return -log softmax(all logits)[target], on every rank.

    `logits` are this rank's part of them, number `start` of the vocabulary first;
    `target` is any number.
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
    title="The loss, without the whole logits",
    task="For one token. The function is right on one rank. On several, the sums need the other "
    "ranks, and only one rank has the target.",
    objectives=(3,),
    targets=("parts-of-a-sum-are-shards",),
    stub='''\
def vocabulary_loss(comm, logits, target, start):
    """Return -log softmax(all logits)[target], on every rank.

    `logits` are this rank's part of them, number `start` of the vocabulary first;
    `target` is any number.
    """
    total, picked = np.exp(logits).sum(), logits[target]
    numbers = np.array([total, picked])
    return np.log(numbers[0]) - numbers[1]
''',
    hints=(
        "Two numbers have to be those of the whole vocabulary: the sum of the exponentials, and the target's "
        "logit. And where is the target in the array of the rank that has it?",
        "vocabulary  0 1 2 3 │ 4 5 6      target 5, start 4:\n"
        "rank 1's logits       0 1 2      it is number 1 here, and nowhere on rank 0",
        "picked = logits[target - …] if start <= target < … else 0.0   and   comm.Allreduce(MPI.IN_PLACE, …)",
    ),
    solution=_LOSS,
    check=_check_loss,
    cases=((8, 1), (7, 5), (9, 8)),
    describe=lambda case: f"a vocabulary of {case[0]}, and number {case[1]} of it",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_LOSS, (_SUM_BOTH, "    numbers[1] = comm.allreduce(picked)\n")), "a softmax over a shard"
        ),
        WrongAnswer(
            changed(_LOSS, (_SUM_BOTH, "    numbers[0] = comm.allreduce(total)\n")),
            "from the rank that has it",
        ),
        WrongAnswer(changed(_LOSS, (" if here else 0.0", "")), "got 3.0"),
        WrongAnswer(changed(_LOSS, ("target - start", "target")), "IndexError"),
    ),
    why="how many numbers did each rank send, and how many would an all-gather of the logits have sent?",
)

EXERCISES = (TWO_ALL_REDUCES, *QUESTIONS, ROW_BIAS, VOCABULARY_LOSS)
