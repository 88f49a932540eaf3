"""Exercises, question and prediction of lesson 00: what a rank can compute from its number and the ranks'."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Option, Prediction, Question, WrongAnswer, changed, expect

# -------------------------------------------------------------------- 00.1 the rank to the right


def _check_right_neighbour(answer: SimpleNamespace, comm: Any, case: None) -> None:
    got = answer.right_neighbour(comm)
    rank, size = comm.rank, comm.size
    expected = np.roll(np.arange(size), -1)[rank]
    expect(got is not None, "returned nothing. Is there a `return` in front of the result?")
    expect(isinstance(got, int | np.integer), f"returned {got!r}, expected the number of a rank.")
    if got == expected:
        return
    if _knows_only_four(answer):
        expect(
            False, f"returned {got}: right on 4 ranks, but there are {size} here. What holds their number?"
        )
    last = f"of {size} ranks, rank {size - 1} is the last" if size > 1 else "rank 0 is the only rank"
    expect(got != size, f"returned {got}, but {last}. Which rank follows it in the ring?")
    expect(got != rank, f"returned {got}, its own number.")
    expect(got != (rank - 1) % size, f"returned {got}, its left neighbour.")
    expect(False, f"returned {got}, expected {expected}.")


def _knows_only_four(answer: SimpleNamespace) -> bool:
    """Whether the answer closes a ring of four although `comm.size` is seven."""
    try:
        seven = [answer.right_neighbour(SimpleNamespace(rank=rank, size=7)) for rank in range(4)]
    except (AttributeError, ArithmeticError):
        return False
    return seven == [1, 2, 3, 0]


_RIGHT = '''\
def right_neighbour(comm):
    """Return the rank to the right of this one in the ring 0 → 1 → … → size - 1 → 0."""
    return (comm.rank + 1) % comm.size
'''

RIGHT_NEIGHBOUR = Exercise(
    id="00.1",
    title="A ring of ranks",
    task="A rank's **right neighbour** is the rank that follows it in the ring: rank 1 follows rank 0, and "
    "rank 0 follows the last rank. Return the number of the right neighbour, for any number of ranks.",
    objectives=(4,),
    stub='''\
def right_neighbour(comm):
    """Return the rank to the right of this one in the ring 0 → 1 → … → size - 1 → 0."""
    return comm.rank
''',
    hints=(
        "A rank knows two numbers: comm.rank, its own, and comm.size, the number of ranks. For which rank is "
        "rank + 1 not a rank?",
        "With four ranks, 0 → 1 → 2 → 3 → 0: after comm.size - 1, counting starts again at 0. The "
        "remainder % does that: 4 % 4 is 0.",
        "return (comm.rank + 1) % …",
    ),
    solution=_RIGHT,
    check=_check_right_neighbour,
    cases=(None,),
    sizes=(2, 3, 4, 1),  # a rank alone is its own neighbour
    wrong=(
        WrongAnswer(changed(_RIGHT, (" % comm.size", "")), "Which rank follows it in the ring?"),
        WrongAnswer(changed(_RIGHT, ("comm.size", "4")), "right on 4 ranks, but there are 2 here"),
        WrongAnswer(changed(_RIGHT, ("+ 1", "- 1")), "its left neighbour"),
        WrongAnswer(changed(_RIGHT, ("return ", "")), "returned nothing"),
    ),
    why="only the last rank needs the remainder. Why do all ranks run a line that has it?",
)

# -------------------------------------------------------------------- 00.2 once per node


def _check_should_download(answer: SimpleNamespace, comm: Any, ranks_per_node: int) -> None:
    node = comm.Split(comm.rank // ranks_per_node, comm.rank)
    got = answer.should_download(comm, node)
    first = comm.rank - comm.rank % ranks_per_node
    where = f"on node {comm.rank // ranks_per_node}, local rank {comm.rank - first},"
    expect(isinstance(got, bool | np.bool_), f"returned {got!r}, expected True or False.")
    if comm.rank == first:
        expect(bool(got), f"{where} returned False. Which rank on this node downloads the file, then?")
    else:
        expect(not got, f"{where} returned True, but rank {first} on the same node downloads it already.")


_DOWNLOAD = '''\
def should_download(comm, node):
    """Return True on one rank per node, the one that downloads the file, and False on the others."""
    return node.rank == 0
'''

SHOULD_DOWNLOAD = Exercise(
    id="00.2",
    title="Spot the bug: who downloads?",
    task="A training script needs a data file on the disk of every node. On each node, exactly one rank "
    "should download it. `comm` holds all ranks, and `node` holds those on this rank's node. Many scripts "
    "have the line below. On three nodes, two would not find the file. Correct it.",
    objectives=(3,),
    targets=("rank-0-serves-all-nodes",),
    stub='''\
def should_download(comm, node):
    """Return True on one rank per node, the one that downloads the file, and False on the others."""
    return comm.rank == 0
''',
    hints=(
        "Take three nodes with two ranks each. How many ranks return True now, and how many should?",
        "node        A A B B C C\nrank        0 1 2 3 4 5\nlocal rank  0 1 0 1 0 1    ← one 0 per node",
        "return node.… == 0",
    ),
    solution=_DOWNLOAD,
    check=_check_should_download,
    cases=(2, 1, 3),
    describe=lambda ranks_per_node: f"up to {ranks_per_node} per node",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_DOWNLOAD, ("node.rank == 0", "True")),
            "on node 0, local rank 1, returned True, but rank 0 on the same node",
        ),
        WrongAnswer(
            changed(_DOWNLOAD, ("node.rank == 0", "comm.rank % 2 == 0")),
            "on node 1, local rank 0, returned False",
        ),
        WrongAnswer(changed(_DOWNLOAD, (" == 0", "")), "returned 0, expected True or False"),
    ),
    why="before they read the file, which ranks have to wait for which?",
)

# -------------------------------------------------------------------- question and prediction

KERNEL_OR_RANKS = Question(
    id="00.q1",
    question='You run `cluster["rate"] = 0.1`, then `rate = 0.5` in a cell without `%%px`. Which rate do '
    "the ranks use?",
    options=(
        Option(
            "0.5 on all of them",
            reply="That would mean the ranks look into the kernel's memory, which they cannot. Each keeps "
            "its own value until you send a new one, or run a cell with `%%px`.",
            belief="kernel-on-ranks",
        ),
        Option(
            "0.5 on rank 0, and 0.1 on the others",
            reply="That would mean the kernel is rank 0. The kernel is a fifth process: rank 0 did not know "
            "the kernel's `base` either.",
            belief="kernel-is-rank-0",
        ),
        Option(
            "0.1 on all of them",
            reply="The ranks got their copies in a message. Your second line changed only the kernel's rate: "
            "nothing sent the new value, and nothing warns you.",
            right=True,
        ),
    ),
    objectives=(1,),
)

WHICH_GPU = Question(
    id="00.q3",
    question="Eight nodes have four GPUs each. A launcher starts 32 ranks, one per GPU, and fills one node "
    "after the other. Nodes and GPUs are counted from 0. Where does rank 13 compute?",
    options=(
        Option(
            "on node 3, GPU 1",
            reply="Each node takes four ranks, so the node is 13 // 4 = 3, and the local rank, which picks "
            "the GPU, is 13 % 4 = 1. (`cuda.set_device(rank)` would fail: no node has a GPU 13.)",
            right=True,
        ),
        Option(
            "on node 1, GPU 3",
            reply="That would be right if 13 % 4 gave the node. Ranks 0 to 3 fill node 0, so "
            "13 // 4 is the node.",
            belief="ranks-take-turns-on-nodes",
        ),
        Option(
            "on node 1, GPU 1",
            reply="With eight ranks per node, 13 // 8 = 1 would be the node. But eight is the number of "
            "nodes; each holds four ranks.",
            belief="nodes-divide-ranks",
        ),
    ),
    objectives=(3,),
)

EXERCISES = (KERNEL_OR_RANKS, WHICH_GPU, SHOULD_DOWNLOAD, RIGHT_NEIGHBOUR)

PREDICTIONS = (
    Prediction(
        id="00.p1",
        question="GB to train 7 billion parameters?",
        objectives=(2,),
        targets=("weights-are-all",),
    ),
)
