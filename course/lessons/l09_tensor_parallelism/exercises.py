"""Exercises and questions of lesson 09, tensor parallelism: the missing sum, a wrong split, whose bytes."""

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

# -------------------------------------------------------------------- 09.4 the missing sum


def _check_backward(answer: SimpleNamespace, comm: Any, hidden: int) -> None:
    """Small whole numbers, and hidden numbers that need not divide evenly."""
    draw = np.random.default_rng(hidden)
    x, up, down, d_y = (
        draw.integers(-3, 4, shape).astype(float) for shape in [(4, 3), (3, hidden), (hidden, 3), (4, 3)]
    )
    shards = np.array_split(np.arange(hidden), comm.size)
    parts = [_gradients(x, up[:, shard], down[shard], d_y) for shard in shards]
    of_summed = _gradients(x, up[:, shards[comm.rank]], down[shards[comm.rank]], comm.size * d_y)
    mine = shards[comm.rank]
    given = x.copy(), np.maximum(x @ up[:, mine], 0), up[:, mine].copy(), down[mine].copy(), d_y.copy()
    got = answer.mlp_backward(comm, *given)
    expect(
        isinstance(got, tuple | list) and len(got) == 3, "did not return three things: d_x, d_up and d_down."
    )
    expect(
        all(gradient is not None for gradient in got),
        "returned None as a gradient. `Allreduce` returns nothing. It changes the array in place, so that "
        "line needs no `=`.",
    )
    if comm.size > 1 and hidden % comm.size == 0:
        d_hidden = np.sum([(d_y @ down[shard].T) * (x @ up[:, shard] > 0) for shard in shards], axis=0)
        expect(
            not np.array_equal(got[0], d_hidden @ up[:, mine].T),
            "added up d_hidden over the ranks. On each rank it was complete for that rank's hidden numbers.",
        )
    for number, name in enumerate(("d_up", "d_down"), 1):
        lookalikes = {}
        if comm.size > 1:
            words = f"has {name} {comm.size} times too large. Was d_y added up? Every rank had all of it."
            lookalikes[words] = of_summed[number]
        if comm.size > 1 and hidden % comm.size == 0:
            words = f"added up {name} over the ranks. It belongs to this rank's own piece, and was complete."
            lookalikes[words] = np.sum([part[number] for part in parts], axis=0)
        expect_array(got[number], parts[comm.rank][number], lookalikes)
    own, total = parts[comm.rank][0], np.sum([part[0] for part in parts], axis=0)
    lookalikes = {
        "has only what this rank's own columns add to d_x: the other ranks' parts are missing.": own,
        "has the mean of the ranks' parts of d_x; d_x is their sum.": total / comm.size,
    }
    expect_array(got[0], total, lookalikes if comm.size > 1 else {})
    expect(
        "allreduce" not in answer.mlp_backward.__code__.co_names,
        "has the right sums, from `allreduce`, which pickles the array first. Use `comm.Allreduce`, with a "
        "capital letter: section 3 counts its bytes.",
    )


def _gradients(x: Any, up: Any, down: Any, d_y: Any) -> list[Any]:
    """A rank's parts of the gradients of x, up and down; of all of them, if the matrices are complete."""
    from mpi4py import MPI  # here, because it starts MPI, which the notebook must not

    from course_lib.parallel.tensor_parallel import mlp_backward

    return mlp_backward(MPI.COMM_SELF, x, np.maximum(x @ up, 0), up, down, d_y)


_BACKWARD = '''\
def mlp_backward(comm, x, hidden, up, down, d_y):
    """Return the gradients of x, and of this rank's columns of `up` and rows of `down`."""
    d_hidden = (d_y @ down.T) * (hidden > 0)
    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y
    d_x = d_hidden @ up.T
    comm.Allreduce(MPI.IN_PLACE, d_x)
    return d_x, d_up, d_down
'''
_SUM = "    comm.Allreduce(MPI.IN_PLACE, d_x)\n"
_D_UP = "    d_up, d_down = x.T @ d_hidden, hidden.T @ d_y\n"

MISSING_SUM = Exercise(
    id="09.4",
    title="One line is missing",
    task="`comm.Allreduce(MPI.IN_PLACE, …)` replaces an array by its sum over the ranks. Insert it "
    "where a rank has only a part of a sum.",
    objectives=(1, 2),
    targets=("gradient-of-a-shard-is-whole", "every-layer-needs-a-sum"),
    stub=changed(_BACKWARD, (_SUM, "")),
    hints=(
        "Go through d_down, d_hidden, d_up and d_x. One process with all columns and rows computes them, "
        "too. Which of this rank's numbers differ from the same numbers in that process?",
        "d_y (all) ──→ d_hidden (own columns, complete) ──→ d_up (own columns, complete)\n"
        "                                               └─→ d_x  (from own columns only)",
        "comm.Allreduce(MPI.IN_PLACE, …)   right after `… = d_hidden @ up.T`",
    ),
    solution=_BACKWARD,
    check=_check_backward,
    cases=(12, 7),
    describe=lambda hidden: f"{hidden} hidden numbers",
    sizes=(2, 3, 4, 1),  # alone, nothing has to be added
    save="09_tensor.py",
    wrong=(
        WrongAnswer(changed(_BACKWARD, (_SUM, "    d_x = d_x + 0\n")), "the other ranks' parts are missing"),
        WrongAnswer(changed(_BACKWARD, (_SUM, _SUM + "    d_x /= comm.size\n")), "has the mean of the ranks"),
        WrongAnswer(
            changed(_BACKWARD, (_SUM, ""), (_D_UP, _D_UP + "    comm.Allreduce(MPI.IN_PLACE, d_up)\n")),
            "added up d_up",
        ),
        WrongAnswer(
            changed(_BACKWARD, (_SUM, _SUM + "    comm.Allreduce(MPI.IN_PLACE, d_down)\n")), "added up d_down"
        ),
        WrongAnswer(
            changed(_BACKWARD, (_SUM, ""), (_D_UP, "    comm.Allreduce(MPI.IN_PLACE, d_hidden)\n" + _D_UP)),
            "added up d_hidden",
        ),
        WrongAnswer(
            changed(
                _BACKWARD,
                (_SUM, ""),
                ("    d_hidden =", "    comm.Allreduce(MPI.IN_PLACE, d_y)\n    d_hidden ="),
            ),
            "Was d_y added up?",
        ),
        WrongAnswer(changed(_BACKWARD, (_SUM, "    d_x = comm.allreduce(d_x)\n")), "pickles the array"),
        WrongAnswer(
            changed(_BACKWARD, (_SUM, _SUM.replace("comm", "d_x = comm", 1))), "changes the array in place"
        ),
    ),
    why="the gradient of ReLU depends on where hidden is positive. Why did no rank have to ask another rank?",
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
    task="A guide to parallel training (Kolly, see References) multiplies a 2 × 4 by a 4 × 2 matrix on two "
    "ranks. It says that this can be done *by splitting matrix A by rows and matrix B by columns before "
    "summing the results*. This program does what the sentence says, but does not return A @ B. Repair it.",
    objectives=(1,),
    targets=("any-split-can-be-summed",),
    stub=changed(_PRODUCT, ("axis=1", "axis=first"), ("axis=0", "axis=1"), ("axis=first", "axis=0")),
    hints=(
        "A = [[0, 1, 2, 3], [4, 5, 6, 7]] and B = [[8, 9], [10, 11], [12, 13], [14, 15]] have the product "
        "[[76, 82], [252, 274]]. Multiply by hand what each rank holds. Is the result a part of the sum "
        "that you need?",
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

# -------------------------------------------------------------------- questions

WHOSE_BYTES = Question(
    id="09.q4",
    question="In a language model's MLP, `x` and `y` have 4,096 numbers per token, and `hidden` has 12,288. "
    "Eight GPUs train on 16 texts of 2,048 tokens per step. Which parallelism all-reduces fewer bytes for "
    "this MLP, in equal precision?",
    options=(
        Option(
            "tensor parallelism, since 16 is far below 12,288",
            reply="A batch of 16 would mean that `x` has one row per text. In a language model it has one "
            "row per *token*: 16 · 2,048 = 32,768 rows.",
            belief="batch-is-texts",
        ),
        Option(
            "data parallelism, since 32,768 exceeds 12,288",
            reply="Tensor parallelism adds up `y` and `d_x`: 2 · 4,096 numbers for each of 32,768 tokens. "
            "Data parallelism adds up the gradients of `up` and `down`: 2 · 4,096 numbers for each of 12,288 "
            "hidden numbers. So tensor parallelism all-reduces 2.7 times as many bytes, and forward waits "
            "for half of them. (A gated MLP has three matrices, so its crossing is at 1.5 times as many "
            "tokens, if two of them share one sum of `d_x`.)",
            right=True,
        ),
        Option(
            "neither, since both counts contain 4,096",
            reply="Both counts contain 2 · 4,096, so this factor decides nothing. The other factors differ: "
            "32,768 tokens in one count, 12,288 hidden numbers in the other.",
            belief="width-decides-the-bytes",
        ),
    ),
    objectives=(3,),
)

ROW_FIRST = Question(
    id="09.q3",
    question="A program for two ranks cuts `up` by *rows*, so that each rank has a part of every hidden "
    "number. Each rank applies ReLU to its parts. Then one all-reduce adds them up. Before ReLU, the parts "
    "of one hidden number are 3 on rank 0 and −3 on rank 1. What does every rank have after the all-reduce?",
    options=(
        Option(
            "0, which is also what one process computes",
            reply="That would need ReLU(3) + ReLU(−3) to equal ReLU(3 − 3) = 0. The left side is 3: ReLU is "
            "not linear, so the sum has to come first.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "3, which is also what one process computes",
            reply="The ranks do have 3, but one process adds before ReLU: 3 − 3 = 0, and ReLU(0) = 0.",
            belief="gelu-before-the-row-sum",
        ),
        Option(
            "3, where one process computes 0",
            reply="The ranks compute ReLU(3) + ReLU(−3) = 3, and one process computes ReLU(3 − 3) = 0. If "
            "`up` is cut by rows, ReLU has to wait for an all-reduce. Our cut by columns saves that one, "
            "because each rank has complete hidden numbers.",
            right=True,
        ),
    ),
    objectives=(1,),
)

EXERCISES = (MISSING_SUM, WHOSE_BYTES, A_SENTENCE, ROW_FIRST)

PREDICTIONS = (
    Prediction(
        id="09.p6",
        question="At which batch do both send equally many bytes?",
        objectives=(3,),
        targets=("width-decides-the-bytes",),
    ),
    Prediction(
        id="09.p3",
        question="All-reduces in one block, forward and backward together?",
        objectives=(4,),
        targets=("every-layer-needs-a-sum",),
    ),
)
