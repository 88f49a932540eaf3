"""Exercise 11.2, traced on paper: who owns what, and what ranks hold after the two halves of stage 1."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

TRACED = """\
gradient = np.array([1, 2, 3, 4, 5]) * 10**rank
counts = [2, 2, 1]
mine = np.zeros(counts[rank], int)
comm.Reduce_scatter(gradient, mine, counts)
weights = np.zeros(5, int)
comm.Allgatherv(-mine, [weights, counts])"""


def _check_trace(answer: SimpleNamespace, comm: Any, case: None) -> None:
    names: dict[str, Any] = {"np": np, "comm": comm, "rank": comm.rank}
    exec(TRACED, names)  # the oracle: what the lines do
    said = answer.trace()
    expect(isinstance(said, Mapping), f"returned {type(said).__name__}, expected the dict of the stub.")
    owners = [rank for rank, count in enumerate(names["counts"]) for _ in range(count)]
    expected = {"owner": (owners, "numbers 0 to 4"), "mine": (names["mine"].tolist(), f"rank {comm.rank}")}
    expected["weights"] = (names["weights"].tolist(), f"rank {comm.rank}")
    for name, (right, of) in expected.items():
        values = said.get(name)
        where = f"`{name}`"
        if name != "owner":
            expect(isinstance(values, Sequence) and len(values) == 3, f"{where} needs three lists, by rank.")
            values, where = values[comm.rank], f"{where} of rank {comm.rank}"
        expect(isinstance(values, Sequence) and None not in values, f"{where} has no values here yet.")
        if list(values) != right:
            raise Wrong(
                f"{where} = {list(values)} is not right: {_trace_reply(name, list(values), right, of)}"
            )


def _trace_reply(name: str, values: list[Any], right: list[Any], of: str) -> str:
    """What to say of wrong values, without giving the right ones."""
    if len(values) != len(right):
        return (
            f"it has {len(values)} values. How many does `counts` say for {of}?"
            if name == "mine"
            else (f"it has {len(values)} values; {of} needs {len(right)}.")
        )
    if name == "owner":
        return "`counts` cuts the buffer from its beginning: 2 numbers for rank 0, then 2, then 1."
    if name == "mine":
        ratio = {value / one for value, one in zip(values, right, strict=True)}
        own = ratio and max(ratio) < 1
        return (
            "line 4 adds up the gradients of all three ranks."
            if own
            else "which numbers of the buffer are this rank's, and over which ranks is the sum?"
        )
    if any(value == 0 for value in values):
        return "after an all-gather, every rank holds the shards of all ranks."
    return (
        "line 6 sends the shards with a minus." if min(values) > 0 else "go through lines 5 and 6 once more."
    )


_TRACE = '''\
def trace():
    """Who owns numbers 0 to 4; what ranks 0, 1 and 2 hold in `mine` and in `weights` at the end."""
    return {
        "owner": [0, 0, 1, 1, 2],
        "mine": [[111, 222], [333, 444], [555]],
        "weights": [[-111, -222, -333, -444, -555]] * 3,
    }
'''

TRACE = Exercise(
    id="11.2",
    title="Who holds what",
    task="Three ranks run these lines. Which rank owns which number of the buffer, and what does each rank "
    "hold at the end? Trace it on paper first.",
    objectives=(1, 3),
    targets=("slices-follow-layers",),
    stub='''\
def trace():
    """Who owns numbers 0 to 4; what ranks 0, 1 and 2 hold in `mine` and in `weights` at the end."""
    return {
        "owner": [None, None, None, None, None],
        "mine": [[None], [None], [None]],
        "weights": [[None]] * 3,
    }
''',
    hints=(
        "Write the gradients of the three ranks below each other, in five columns. Which columns does "
        "line 4 add up for which rank?",
        "rank 0     1   2 │   3   4 │   5\nrank 1    10  20 │  30  40 │  50\nrank 2   100 200 │ 300 400 │ "
        "500\n"
        "           for 0      for 1    for 2",
        '"owner": [0, 0, 1, …],  "mine": [[111, …], …],  "weights": [[-111, …]] * 3',
    ),
    solution=_TRACE,
    check=_check_trace,
    cases=(None,),
    sizes=(3,),
    opening=TRACED,
    wrong=(
        WrongAnswer(changed(_TRACE, ("[0, 0, 1, 1, 2]", "[0, 1, 2, 0, 1]")), "from its beginning"),
        WrongAnswer(
            changed(_TRACE, ("[[111, 222], [333, 444], [555]]", "[[1, 2], [30, 40], [500]]")), "adds up"
        ),
        WrongAnswer(
            changed(_TRACE, ("[[111, 222], [333, 444], [555]]", "[[111, 222, 333, 444, 555]] * 3")),
            "How many does `counts` say",
        ),
        WrongAnswer(
            changed(
                _TRACE,
                (
                    "[[-111, -222, -333, -444, -555]] * 3",
                    "[[-111, -222, 0, 0, 0], [0, 0, -333, -444, 0], [0, 0, 0, 0, -555]]",
                ),
            ),
            "the shards of all ranks",
        ),
        WrongAnswer(
            changed(_TRACE, ("[[-111, -222, -333, -444, -555]]", "[[111, 222, 333, 444, 555]]")), "a minus"
        ),
    ),
    why="rank 2 owns one number, and its gradient still has five. Which stage changes that?",
)
