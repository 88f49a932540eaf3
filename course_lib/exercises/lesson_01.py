"""Exercises of lesson 01, MPI basics."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from course_lib.exercises.model import Exercise, WrongAnswer, expect, expect_array


def _check_shift(answer: SimpleNamespace, comm: Any, length: int) -> None:
    value = np.full(length, 10.0**comm.rank)
    mine = value.copy()
    got = answer.shift(comm, mine)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    lookalikes = {}
    if comm.size > 1:
        lookalikes["kept its own value: nothing arrived in `received`."] = value
        lookalikes["got zeros or leftovers: `received` was never filled."] = np.zeros(length)
    if comm.size > 2:
        from_right = np.full(length, 10.0**right)
        lookalikes[f"got the value of rank {right}, its right neighbour; whom should it receive from?"] = (
            from_right
        )
    expect_array(got, np.full(length, 10.0**left), lookalikes)
    expect(np.array_equal(mine, value), "changed `value`, which belongs to the caller.")
    expect(comm.size == 1 or got is not mine, "returned the very array it was given.")


SHIFT = Exercise(
    id="01.1",
    title="Pass it on",
    stub='''\
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array that comes from the left."""
    right = (comm.rank + 1) % comm.size
    received = np.zeros_like(value)
    return received
''',
    hints=(
        "You know whom to send to. Whom do you receive from, and in which single call can both happen?",
        "0 → 1 → 2 → 3 → 0: all send to the right at the same moment, so all receive from the left. "
        "Send first and then Recv works only while messages are small; Sendrecv does both.",
        "comm.Sendrecv(value, dest=right, recvbuf=received, source=…)",
    ),
    solution='''\
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array that comes from the left."""
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)
    return received
''',
    check=_check_shift,
    cases=(1, 0, 3, 1_000_000),
    sizes=(2, 3, 4, 1),  # alone, a mistake looks odd: everyone is one's own neighbour
    describe=lambda length: f"{length:,} element{'s' * (length != 1)}",
    wrong=(
        WrongAnswer(
            """\
def shift(comm, value):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Sendrecv(value, dest=left, recvbuf=received, source=right)
    return received
""",
            "its right neighbour",
        ),
        WrongAnswer(
            """\
def shift(comm, value):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Send(value, dest=right)
    comm.Recv(received, source=left)
    return received
""",
            "circle of waiting",
        ),
        WrongAnswer(
            """\
def shift(comm, value):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Recv(received, source=left)
    comm.Send(value, dest=right)
    return received
""",
            "does not end",
        ),
        WrongAnswer(
            """\
def shift(comm, value):
    right = (comm.rank + 1) % comm.size
    comm.Isend(value, dest=right)
    return value
""",
            "own value",
        ),
    ),
    why="why does Send followed by Recv pass every test with small arrays, and hang with a million numbers?",
)

EXERCISES = (SHIFT,)
