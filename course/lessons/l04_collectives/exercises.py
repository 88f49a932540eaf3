"""Exercises of lesson 04, collectives: half a ring, a tree to put in order, a program with two mistakes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l04_collectives.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l04_collectives.quiz import QUESTIONS
from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
)

# -------------------------------------------------------------------- 04.1 the second half of the ring


def _check_ring_all_gather(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    size, rank = comm.size, comm.rank
    cuts = np.cumsum(lengths[: size - 1])
    complete = [_sum_of(chunk, range(size), lengths[chunk]) for chunk in range(size)]
    # what the first half leaves here: in a chunk, the numbers of the ranks that it has passed
    passed = [[(chunk + k) % size for k in range((rank - chunk) % size + 1)] for chunk in range(size)]
    array = np.concatenate([_sum_of(chunk, passed[chunk], lengths[chunk]) for chunk in range(size)])
    start, chunks = np.split(array.copy(), cuts), np.split(array, cuts)
    sends: list[str] = []
    answer.ring_all_gather(_counting(comm, sends), chunks)
    wrong = dict[bool, str]()
    for chunk, found in enumerate(np.split(array, cuts)):
        if not np.array_equal(found, complete[chunk]):
            same = np.array_equal(found, start[chunk])
            if same and np.array_equal(chunks[chunk], complete[chunk]):
                raise Wrong(
                    "put a new array into the list; `chunks[into]` is part of the array: write into it."
                )
            words = "as it was after the first half: which complete chunk should have come in its place?"
            wrong[same] = f"chunk {chunk} is {words}" if same else _about_chunk(chunk, float(found[0]), size)
    for same in (False, True):  # what was written wrongly says more
        expect(same not in wrong, wrong.get(same, ""))
    expect(len(sends) < size, f"sent {len(sends)} messages; size − 1 = {size - 1} are enough.")


def _counting(comm: Any, sends: list[str]) -> Any:
    """The same communicator; `sends` gets the name of each call that sends, and buffers must not overlap."""

    def noting(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            sends.append(name)
            buffers = [each for each in (*args, *kwargs.values()) if isinstance(each, np.ndarray)]
            if len(buffers) == 2 and np.shares_memory(buffers[0], buffers[1]):
                raise Wrong(
                    "the chunk that goes out is the one that comes in. Which one is complete in step 0?"
                )
            return getattr(comm, name)(*args, **kwargs)

        return call

    names = ("Send", "Ssend", "Isend", "Issend", "Sendrecv", "send", "isend", "sendrecv")
    return type("Counting", (type(comm),), {name: noting(name) for name in names})(comm)


_OF_CHUNK = 2.0**-10  # in the fraction of a number, which holds no more than 1023 of them


def _sum_of(chunk: int, ranks: Sequence[int], length: int) -> np.ndarray:
    """The sum of these ranks' numbers for a chunk: its digits tell the ranks, its fraction the chunk."""
    return np.full(length, sum(10.0**rank for rank in ranks) + len(ranks) * (chunk + 1) * _OF_CHUNK)


def _about_chunk(chunk: int, value: float, size: int) -> str:
    """What the first number of a wrong chunk says of the mistake."""
    digits, chunks = int(value), (value % 1) / _OF_CHUNK
    if digits == int("1" * size) and chunks % size == 0:
        return f"the sum of chunk {int(chunks) // size - 1} was received into chunk {chunk}."
    if digits > int("1" * size):
        return f"a complete chunk was added to chunk {chunk}; copy it: nothing has to be added any more."
    where = "an incomplete chunk was passed on. Which one is complete on the rank that sends?"
    return f"in chunk {chunk}, {missing_ranks(digits, size)}: {where}"


_RING = '''\
def ring_all_gather(comm, chunks):
    """Copy the complete chunks round the ring, in place, until every rank has all of them."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(comm.size - 1):
        out, into = (comm.rank + 1 - step) % comm.size, (comm.rank - step) % comm.size
        comm.Sendrecv(chunks[out], dest=right, recvbuf=chunks[into], source=left)
'''
_SENDRECV = "        comm.Sendrecv(chunks[out], dest=right, recvbuf=chunks[into], source=left)\n"
_OUT, _INTO = "(comm.rank + 1 - step)", "(comm.rank - step)"

RING_ALL_GATHER = Exercise(
    id="04.1",
    objectives=(2,),
    title="Once more round the ring",
    task="Write the second half. Rank r now holds the complete chunk r+1; the last rank holds chunk 0. In "
    "each of size − 1 steps every rank sends a complete chunk to the right and receives a different one from "
    "the left, directly into its place. Nothing is added any more. Two lines are enough.",
    stub='''\
def ring_all_gather(comm, chunks):
    """Copy the complete chunks round the ring, in place, until every rank has all of them."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(comm.size - 1):
        ...  # which chunk goes out, and which one comes in? Then the exchange.
''',
    hints=(
        "In step 0, rank 0 sends chunk 1, which is complete. Its left neighbour is the last rank: which "
        "chunk is complete there? In step 1, each rank passes on what it has just received.",
        "four ranks   step 0            step 1            step 2\n"
        "rank 0       out 1, into 0     out 0, into 3     out 3, into 2\n"
        "rank 1       out 2, into 1     out 1, into 0     out 0, into 3",
        "out, into = (comm.rank + … - step) % comm.size, (comm.rank - …) % comm.size",
    ),
    solution=_RING,
    check=_check_ring_all_gather,
    cases=((2, 2, 2, 2), (3, 2, 2, 1), (250_000, 250_000, 250_000, 250_000)),
    describe=lambda lengths: (
        "chunks of " + ", ".join(f"{length:,}" for length in lengths[:2]) + ", … numbers"
    ),
    sizes=(3, 2, 4, 1),
    wrong=(
        WrongAnswer(changed(_RING, (_OUT, "(comm.rank - step)")), "is the one that comes in"),
        WrongAnswer(changed(_RING, (_OUT, "(comm.rank - 1 - step)")), "an incomplete chunk was passed on"),
        WrongAnswer(changed(_RING, (_INTO, "(comm.rank - step - 1)")), "was received into chunk"),
        WrongAnswer(
            changed(
                _RING,
                (
                    _SENDRECV,
                    "        incoming = np.empty_like(chunks[into])\n"
                    "        comm.Sendrecv(chunks[out], dest=right, recvbuf=incoming, source=left)\n"
                    "        chunks[into] += incoming\n",
                ),
            ),
            "nothing has to be added any more",
        ),
        WrongAnswer(
            changed(
                _RING,
                (
                    _SENDRECV,
                    "        comm.Send(chunks[out], dest=right)\n"
                    "        comm.Recv(chunks[into], source=left)\n",
                ),
            ),
            "circle of waiting",
        ),
        WrongAnswer(
            changed(
                _RING,
                (
                    _SENDRECV,
                    "        incoming = np.empty_like(chunks[into])\n"
                    "        comm.Sendrecv(chunks[out], dest=right, recvbuf=incoming, source=left)\n"
                    "        chunks[into] = incoming\n",
                ),
            ),
            "put a new array into the list",
        ),
        WrongAnswer(
            changed(_RING, ("range(comm.size - 1)", "range(comm.size - 2)")), "as it was after the first half"
        ),
        WrongAnswer(changed(_RING, ("range(comm.size - 1)", "range(comm.size)")), "are enough"),
    ),
    why="each rank sends n − 1 chunks in each half. How many arrays is that for n = 4, and for n = 100?",
)

# -------------------------------------------------------------------- 04.2 put the tree together


def _check_tree(answer: SimpleNamespace, comm: Any, length: int) -> None:
    buffer = np.full(length, 10.0**comm.rank)
    answer.tree_broadcast(comm, buffer)
    wrong = {}
    for rank in range(1, comm.size):
        words = "kept its own numbers: it received no message."
        if rank != comm.rank:
            words = f"holds the numbers of rank {rank}, which sent before it had received."
        wrong[words] = np.full(length, 10.0**rank)
    expect_array(buffer, np.ones(length), wrong)


TREE = Exercise(
    id="04.2",
    objectives=(5,),
    title="Put in order: a broadcast along a tree",
    task="Which lines, in which order, finish this function? Two of the seven are not needed.",
    stub='order("")\n',
    opening='''\
def tree_broadcast(comm, buffer):
    """Copy `buffer` of rank 0 to up to 8 ranks; in every round, twice as many have it."""''',
    blocks={
        "A": "            comm.Recv(buffer, source=comm.rank - have)",
        "B": "        if comm.rank < have and comm.rank + have < comm.size:",
        "C": "    for have in (4, 2, 1):",
        "D": "        elif have <= comm.rank < 2 * have:",
        "E": "            comm.Send(buffer, dest=comm.rank + have)",
        "F": "        if comm.rank == 0 and have < comm.size:",
        "G": "    for have in (1, 2, 4):",
    },
    hints=(
        "How many ranks have the numbers at the start? Which ranks can send in the second round?",
        "have = 1    0 → 1\nhave = 2    0 → 2   1 → 3\nhave = 4    0 → 4   1 → 5   2 → 6   3 → 7",
        'order("G … E … A")',
    ),
    solution='order("G B E D A")\n',
    check=_check_tree,
    cases=(1, 1_000_000),
    describe=lambda length: f"{length:,} number{'s' * (length > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer('order("C B E D A")', "which sent before it had received"),
        WrongAnswer('order("G F E D A")', "waiting in Recv from rank 1"),
        WrongAnswer('order("G B E")', "kept its own numbers"),
        WrongAnswer('order("G B A D E")', "raised"),
        WrongAnswer('order("G D A B E")', "is not Python"),
    ),
    why="rank 0 sends three times to reach seven others. How often would it send to reach a thousand?",
)

# -------------------------------------------------------------------- 04.3 two mistakes


def _check_centred(answer: SimpleNamespace, comm: Any, length: int) -> None:
    ranks = range(comm.size)
    everyone = [np.arange(length) + 10.0**rank for rank in ranks]
    scales = [np.array([2.0 + 3 * rank]) for rank in ranks]
    mine, scale, mean = everyone[comm.rank], scales[comm.rank].copy(), np.mean(everyone, axis=0)
    got = answer.centred(comm, mine.copy(), scale)
    lookalikes: dict[str, Any] = {}
    if comm.size > 1:
        rooted = "used a sum that it does not have: after Reduce, only the root has it."
        lookalikes |= {
            rooted: mine * scales[0],
            f"{rooted} And the scale is its own, not rank 0's.": mine * scales[comm.rank],
            "has the right mean, but not the scale of rank 0: did this rank call Bcast as well?": (
                (mine - mean) * scales[comm.rank]
            ),
            "subtracted the sum; subtract the mean.": (mine - mean * comm.size) * scales[0],
            "used the scale of the last rank.": (mine - mean) * scales[-1],
            "subtracted its own numbers, not the mean over all ranks.": np.zeros(length),
        }
    right = (mine - mean) * scales[0]
    expect_array(got, right, {words: v for words, v in lookalikes.items() if not np.allclose(v, right)})


_CENTRED = '''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Allreduce(mine, total)
    return (mine - total / comm.size) * scale
'''

CENTRED = Exercise(
    id="04.3",
    objectives=(7,),
    targets=("only-root-calls", "reduce-fills-every-rank"),
    title="Spot the bugs",
    task="Every rank should return its own numbers minus the mean over all ranks, scaled as rank 0 says. The "
    "program runs on four ranks without an error, and its result is right on rank 0. Find what is wrong.",
    stub='''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    if comm.rank == 0:
        comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return (mine - total / comm.size) * scale
''',
    hints=(
        "The result is right on rank 0. What do `scale` and `total` hold on rank 1 before the last line?",
        "          scale                      total\n"
        "rank 0    its own, which is right    the sum\n"
        "rank 1    did it receive one?        what did the root send it?",
        "one call is needed on all ranks; the other must leave its result on all: comm.…reduce(mine, total)",
    ),
    solution=_CENTRED,
    check=_check_centred,
    cases=(1, 3),
    describe=lambda length: f"{length} number{'s' * (length > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_CENTRED, ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)")),
            "only the root has it",
        ),
        WrongAnswer(
            changed(_CENTRED, ("    comm.Bcast(scale, root=0)\n", "")),
            "did this rank call Bcast as well?",
        ),
        WrongAnswer(
            changed(
                _CENTRED,
                ("    comm.Bcast(scale, root=0)\n", ""),
                ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)"),
            ),
            "And the scale is its own",
        ),
        WrongAnswer(
            changed(_CENTRED, ("comm.Bcast(scale, root=0)", "comm.Bcast(scale, root=comm.size - 1)")),
            "the scale of the last rank",
        ),
        WrongAnswer(changed(_CENTRED, (" / comm.size", "")), "subtracted the sum"),
    ),
    why="the program with both mistakes ran to its end. Why is that worse than a program that hangs?",
)

EXERCISES = (RING_ALL_GATHER, *QUESTIONS, TREE, CENTRED)
