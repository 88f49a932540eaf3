"""Exercise 06.3: trace a step of data parallelism on three ranks, one of which has no image."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

TRACED = """\
w = comm.bcast(10 * 2**rank, root=0)
shard = [[1, 2], [3], []][rank]
gradient = sum(shard) / 3
total = comm.allreduce(gradient)
w = w - total"""


def _check_trace(answer: SimpleNamespace, comm: Any, case: None) -> None:
    names = {"comm": comm, "rank": comm.rank}
    exec(TRACED, names)  # the oracle: what the lines do
    said = answer.trace()
    expect(isinstance(said, Mapping), f"returned {type(said).__name__}, expected the dict of the stub.")
    for name in ("gradient", "total", "w"):
        values = said.get(name)
        expect(isinstance(values, Sequence) and len(values) == 3, f"`{name}` needs three values, by rank.")
        value = values[comm.rank]
        expect(value is not None, f"`{name}` has no value here yet.")
        expect(isinstance(value, int | float), f"`{name}` = {value!r} is no number.")
        if not np.isclose(value, names[name]):
            raise Wrong(_trace_reply(name, comm.rank, float(value)))


def _trace_reply(name: str, rank: int, value: float) -> str:
    """What to say of a wrong value, without telling the right one."""
    gradient, total = [1.0, 1.0, 0.0][rank], 2.0
    replies = {
        ("gradient", 3 * gradient): "line 3 also divides by 3, the global batch",
        ("gradient", 1.5): "line 3 divides by the global batch, not by the shard",
        ("total", 3 * total): "the gradients that line 4 adds were divided in line 3",
        ("total", gradient): "that was before line 4; who has the sum after an allreduce?",
        ("total", total / 3): "that is the average; allreduce adds",
        ("total", 0.0): "an allreduce leaves the sum on every rank",
        ("w", 10.0 * 2**rank - total): "that begins with its own weight; what did line 1 do?",
        ("w", 70 / 3 - total): "that begins with an average of weights; line 1 is a broadcast",
        ("w", 10.0 - gradient): "that steps along its own gradient; line 5 takes `total`",
    }
    for (of, lookalike), reply in replies.items():
        if of == name and np.isclose(value, lookalike):
            return f"{name} = {value:g} is not right: {reply}"
    return f"{name} = {value:g} is not right: go through the lines once more, with this rank's shard."


_TRACE = '''\
def trace():
    """What ranks 0, 1 and 2 hold after the five lines: three numbers each."""
    return {
        "gradient": [1, 1, 0],
        "total": [2, 2, 2],
        "w": [8, 8, 8],
    }
'''

TRACE = Exercise(
    id="06.3",
    title="Trace a step",
    task="Three ranks train a single weight `w`. The loss of an image `x` is `w * x`, so its "
    "gradient is `x`; the batch has three images, and the learning rate is 1. Be the "
    "computer: what do the ranks hold in the end?",
    objectives=(1, 2, 3),
    stub='''\
def trace():
    """What ranks 0, 1 and 2 hold after the five lines: three numbers each."""
    return {
        "gradient": [None, None, None],
        "total": [None, None, None],
        "w": [None, None, None],
    }
''',
    hints=(
        "Go line by line, and write down what each of the three ranks has. Which lines communicate?",
        "line      rank 0   rank 1   rank 2\n"
        "1 bcast      10       10       10\n"
        "3         (1+2)/3     …        …",
        '"gradient": [1, …, 0],  "total": the same number three times',
    ),
    solution=_TRACE,
    check=_check_trace,
    cases=(None,),
    sizes=(3,),
    opening=TRACED,
    wrong=(
        WrongAnswer(changed(_TRACE, ("[1, 1, 0]", "[3, 3, 0]")), "line 3 also divides by 3"),
        WrongAnswer(changed(_TRACE, ("[2, 2, 2]", "[2, 0, 0]")), "leaves the sum on every rank"),
        WrongAnswer(
            changed(_TRACE, ("[2, 2, 2]", "[2 / 3, 2 / 3, 2 / 3]")), "that is the average; allreduce adds"
        ),
        WrongAnswer(changed(_TRACE, ("[8, 8, 8]", "[8, 18, 38]")), "what did line 1 do?"),
        WrongAnswer(changed(_TRACE, ("[8, 8, 8]", "[64 / 3, 64 / 3, 64 / 3]")), "line 1 is a broadcast"),
    ),
    why="rank 2 had no image at all, and its weight is as good as the others'. Who paid for that?",
)
