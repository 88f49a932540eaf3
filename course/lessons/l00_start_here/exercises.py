"""Exercises of lesson 00, start here: a rank knows its number and how many there are, and no more."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l00_start_here.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l00_start_here.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect

# -------------------------------------------------------------------- 00.1 the rank to the right


def _check_right_neighbour(answer: SimpleNamespace, comm: Any, case: None) -> None:
    got = answer.right_neighbour(comm)
    rank, size = comm.rank, comm.size
    expected = np.roll(np.arange(size), -1)[rank]
    expect(got is not None, "returned nothing; is there a return in front of the result?")
    expect(isinstance(got, int | np.integer), f"returned {got!r}, expected the number of a rank.")
    if got == expected:
        return
    if _knows_only_four(answer):
        expect(False, f"returned {got}: that would be right on 4 ranks, here are {size}. Who knows how many?")
    last = (
        f"the last of {size} is rank {size - 1}; to its right sits rank 0" if size > 1 else "rank 0 is alone"
    )
    expect(got != size, f"returned {got}, but {last}.")
    expect(got != rank, f"returned {got}, its own number.")
    expect(got != (rank - 1) % size, f"returned {got}, the neighbour on its left.")
    expect(False, f"returned {got}, expected {expected}.")


def _knows_only_four(answer: SimpleNamespace) -> bool:
    """Whether the answer goes round a table of four, though it is told that there are seven."""
    try:
        seven = [answer.right_neighbour(SimpleNamespace(rank=rank, size=7)) for rank in range(4)]
    except (AttributeError, ArithmeticError):
        return False
    return seven == [1, 2, 3, 0]


_RIGHT = '''\
def right_neighbour(comm):
    """The ranks sit round a table, in order: return who sits to the right of this one."""
    return (comm.rank + 1) % comm.size
'''

RIGHT_NEIGHBOUR = Exercise(
    id="00.1",
    title="Round the table",
    task="The ranks sit round a table, in the order of their numbers. Who sits to the right of a "
    "rank?\n\n"
    "Change the cell and run it. It is checked at once, on 1, 2, 3 and 4 ranks of its own: "
    "nothing that you try can do harm. `hint()` says where to look, and more each time; "
    "`solution()` shows an answer after your first try.",
    objectives=(1,),
    stub='''\
def right_neighbour(comm):
    """The ranks sit round a table, in order: return who sits to the right of this one."""
    return comm.rank
''',
    hints=(
        "A rank knows two numbers: comm.rank, its own, and comm.size, how many there are. Which rank has no "
        "rank + 1?",
        "Four at the table: 0 → 1 → 2 → 3 → 0. Counting goes on from the beginning when it comes to "
        "comm.size; that is what the remainder % does: 4 % 4 is 0.",
        "return (comm.rank + 1) % …",
    ),
    solution=_RIGHT,
    check=_check_right_neighbour,
    cases=(None,),
    sizes=(2, 3, 4, 1),  # alone, everyone is one's own neighbour
    wrong=(
        WrongAnswer(changed(_RIGHT, (" % comm.size", "")), "to its right sits rank 0"),
        WrongAnswer(changed(_RIGHT, ("comm.size", "4")), "right on 4 ranks, here are 2"),
        WrongAnswer(changed(_RIGHT, ("+ 1", "- 1")), "the neighbour on its left"),
        WrongAnswer(changed(_RIGHT, ("return ", "")), "returned nothing"),
    ),
    why="only the last rank needs the remainder; why does it stand in the program of all ranks?",
)

# -------------------------------------------------------------------- 00.2 once per node


def _check_should_download(answer: SimpleNamespace, comm: Any, ranks_per_node: int) -> None:
    node = comm.Split(comm.rank // ranks_per_node, comm.rank)
    got = answer.should_download(comm, node)
    first = comm.rank - comm.rank % ranks_per_node
    where = f"on node {comm.rank // ranks_per_node}, local rank {comm.rank - first},"
    expect(isinstance(got, bool | np.bool_), f"returned {got!r}, expected True or False.")
    if comm.rank == first:
        expect(bool(got), f"{where} said False: then who on this node downloads the file?")
    else:
        expect(not got, f"{where} said True: rank {first} is on the same node and downloads it already.")


_DOWNLOAD = '''\
def should_download(comm, node):
    """True on the first rank of every node, which downloads the file for its node; else False."""
    return node.rank == 0
'''

SHOULD_DOWNLOAD = Exercise(
    id="00.2",
    title="Spot the bug: once per node",
    task="A program needs a file, and it should be downloaded once for every node: not by every "
    "rank, and not for the first node alone. `comm` holds all ranks, `node` those on the same"
    " node. The line below is that of many training scripts. What happens on the second node?",
    objectives=(1,),
    targets=("rank-0-serves-all-nodes",),
    stub='''\
def should_download(comm, node):
    """True on the first rank of every node, which downloads the file for its node; else False."""
    return comm.rank == 0
''',
    hints=(
        "`comm` holds all ranks; `node` holds only those on the same machine. How many files does the "
        "program download on three nodes, and how many should it?",
        "node   A A B B C C\nrank   0 1 2 3 4 5\nlocal  0 1 0 1 0 1    ← one 0 on every node",
        "return node.… == 0",
    ),
    solution=_DOWNLOAD,
    check=_check_should_download,
    cases=(2, 1, 3),
    describe=lambda ranks_per_node: f"room for {ranks_per_node} on a node",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_DOWNLOAD, ("node.rank == 0", "True")),
            "on node 0, local rank 1, said True: rank 0 is on the same node",
        ),
        WrongAnswer(
            changed(_DOWNLOAD, ("node.rank == 0", "comm.rank % 2 == 0")),
            "on node 1, local rank 0, said False",
        ),
        WrongAnswer(changed(_DOWNLOAD, (" == 0", "")), "returned 0, expected True or False"),
    ),
    why="all the ranks of a node wait until its file is there. Which of them could go on without waiting?",
)

EXERCISES = (RIGHT_NEIGHBOUR, *QUESTIONS, SHOULD_DOWNLOAD)
