"""Exercises of lesson 04 on collectives made by hand: the ring traced and rebuilt, the tree put together."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
    show,
)

# -------------------------------------------------------------------- 04.2 trace the ring

TRACED = """\
mine = np.array([1, 2, 3]) * 10**rank
left, right = (rank - 1) % 3, (rank + 1) % 3
for step in range(2):
    sent, added = (rank - step) % 3, (rank - step - 1) % 3
    mine[added] += comm.sendrecv(mine[sent], dest=right, source=left)
    held.append(mine.tolist())"""

_MEANWHILE = {  # what rank 2 may be thought to hold, by step: an explanation and the numbers
    0: {
        "that is what it had at the start": [100, 200, 300],
        "that is where it would be if each chunk were added on every rank": [111, 222, 333],
        "that adds to the chunk that it sends. Which one is `added`, with rank 2 and step 0?": [
            100,
            200,
            330,
        ],
        "that takes the message from rank 0. Who is on the left of rank 2?": [100, 202, 300],
        "that replaces the number; line 5 adds": [100, 20, 300],
        "that is an exchange: what is sent is still there": [100, 220, 0],
    },
    1: {
        "that is the end of an all-reduce; here the second half, the all-gather, is missing": [111, 222, 333],
        "that is after step 0": [100, 220, 300],
        "rank 1's chunk has been added to since the start: what had it received in step 0?": [110, 220, 300],
        "the number that came replaces nothing; line 5 adds": [11, 220, 300],
        "that adds to the same chunk twice; with step 1, which is `added`?": [100, 222, 300],
    },
}


def _check_trace(answer: SimpleNamespace, comm: Any, case: None) -> None:
    held: list[list[int]] = []
    exec(TRACED, {"np": np, "comm": comm, "rank": comm.rank, "held": held})  # the oracle: what the lines do
    said = answer.trace()
    expect(isinstance(said, Mapping), f"returned {type(said).__name__}, expected the dict of the stub.")
    if comm.rank != 2:
        return  # the question is about rank 2
    for step, right in enumerate(held):
        values = said.get(f"after step {step}")
        expect(isinstance(values, Sequence) and len(values) == 3, f"step {step} needs three numbers.")
        numbers = list(values or [])
        expect(None not in numbers, f"after step {step}: some numbers are still None.")
        expect(
            all(isinstance(v, int | float) for v in numbers), f"after step {step}: {values} has no numbers."
        )
        if numbers != right:
            raise Wrong(_trace_reply(step, numbers, right))


def _trace_reply(step: int, values: Sequence[float], right: Sequence[float]) -> str:
    """What to say of wrong values, without telling the right ones."""
    for words, lookalike in _MEANWHILE[step].items():
        if list(values) == lookalike:
            return f"after step {step}, {show(values)} is not right: {words}."
    wrong = [i for i, value in enumerate(values) if value != right[i]]
    return (
        f"after step {step}, chunk {wrong[0]} = {values[wrong[0]]:g} is not right: who sent what to rank 2?"
    )


_TRACE = '''\
def trace():
    """What rank 2 holds after each of the two steps: its chunks 0, 1 and 2."""
    return {
        "after step 0": [100, 220, 300],
        "after step 1": [111, 220, 300],
    }
'''

TRACE = Exercise(
    id="04.2",
    objectives=(3,),
    title="Trace the ring",
    task="Three ranks, and only the first half. Be the computer: what does rank 2 hold after each step?",
    stub='''\
def trace():
    """What rank 2 holds after each of the two steps: its chunks 0, 1 and 2."""
    return {
        "after step 0": [None, None, None],
        "after step 1": [None, None, None],
    }
''',
    hints=(
        "In a step, every rank sends one chunk and adds to one other. For each rank, work out `sent` and "
        "`added` first.",
        "step 0    rank 0   rank 1   rank 2\n"
        "sent         0        1        2\n"
        "added        2        0        1\n"
        "Rank 2 adds what rank 1 sends. In step 1, rank 1 sends the chunk that it has just added to.",
        '"after step 0": [100, …, 300],  and one more chunk changes in step 1',
    ),
    solution=_TRACE,
    check=_check_trace,
    cases=(None,),
    sizes=(3,),
    opening=TRACED,
    wrong=(
        WrongAnswer(
            changed(_TRACE, ("[100, 220, 300]", "[100, 200, 330]")), "adds to the chunk that it sends"
        ),
        WrongAnswer(changed(_TRACE, ("[100, 220, 300]", "[100, 202, 300]")), "on the left of rank 2"),
        WrongAnswer(changed(_TRACE, ("[111, 220, 300]", "[111, 222, 333]")), "the end of an all-reduce"),
        WrongAnswer(changed(_TRACE, ("[111, 220, 300]", "[110, 220, 300]")), "added to since the start"),
        WrongAnswer(changed(_TRACE, ("[111, 220, 300]", "[111, 220, 0]")), "chunk 2 = 0 is not right"),
    ),
    why="after step 1, which chunk is complete on rank 2, and which on rank 0?",
)

# -------------------------------------------------------------------- 04.3 half a ring


def _check_ring_half(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    size, rank = comm.size, comm.rank
    got = answer.ring_reduce_scatter(comm, [_numbers(chunk, rank, lengths[chunk]) for chunk in range(size)])
    expected = np.sum([_numbers(rank, other, lengths[rank]) for other in range(size)], axis=0)
    lookalikes: dict[str, Any] = {}
    if isinstance(got, np.ndarray) and got.size and got.dtype.kind == "f":
        lookalikes[_about_chunk(rank, float(got.flat[0]), size)] = got.copy()
    expect_array(got, expected, lookalikes)


_OF_CHUNK = 2.0**-10  # in the fraction of a number, which holds no more than 1023 of them


def _numbers(chunk: int, rank: int, length: int) -> np.ndarray:
    """What a rank brings for a chunk: the digits tell whose it is, the fraction which chunk."""
    return np.full(length, 10.0**rank + (chunk + 1) * _OF_CHUNK)


def _about_chunk(chunk: int, value: float, size: int) -> str:
    """What the first number of a wrong chunk says of the mistake."""
    whole, fraction = int(value), (value % 1) / _OF_CHUNK
    added = sum(map(int, str(whole)))  # so many contributions
    if whole == int("1" * size) and fraction % size == 0:
        return f"returned the sum of chunk {int(fraction) // size - 1}; here chunk {chunk} is wanted."
    if fraction != added * (chunk + 1):
        return f"in chunk {chunk}, numbers of other chunks were added: is what comes from the left `added`?"
    if whole == 10**chunk:
        return f"chunk {chunk} holds this rank's own numbers only: it was sent first, and never added to."
    if added == 1:
        return f"chunk {chunk} holds the numbers of one other rank only: they replaced what was there."
    return f"in chunk {chunk}, {missing_ranks(whole, size)}."


_RING = '''\
def ring_reduce_scatter(comm, chunks):
    """Add up all ranks' `chunks`, a list of `size` arrays, round the ring; return chunk `rank`, complete."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(comm.size - 1):
        sent, added = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        incoming = np.zeros_like(chunks[added])
        comm.Sendrecv(chunks[sent], dest=right, recvbuf=incoming, source=left)
        chunks[added] += incoming
    return chunks[comm.rank]
'''
_SENDRECV = "        comm.Sendrecv(chunks[sent], dest=right, recvbuf=incoming, source=left)\n"

RING_HALF = Exercise(
    id="04.3",
    objectives=(3,),
    title="Half a ring, one place further",
    task="After the first half of our ring, rank 0 has chunk *1* complete, as the film shows. "
    "MPI's `Reduce_scatter` leaves chunk 0 on rank 0, chunk 1 on rank 1. Write that half: two"
    " lines are missing, and one line is not right yet.",
    stub='''\
def ring_reduce_scatter(comm, chunks):
    """Add up all ranks' `chunks`, a list of `size` arrays, round the ring; return chunk `rank`, complete."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(comm.size - 1):
        sent, added = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        incoming = np.zeros_like(chunks[added])
    return chunks[comm.rank]
''',
    hints=(
        "First write the two lines that send, receive and add, as in the ring above. Then look at which "
        "chunk is complete on which rank, and which should be.",
        "the ring above:  rank 0 ends with chunk 1, rank 1 with chunk 2, …\n"
        "wanted:          rank 0 ends with chunk 0, rank 1 with chunk 1, …\n"
        "So every rank must send, and add to, the chunk one place lower in every step.",
        "sent, added = (comm.rank - step - …) % comm.size, (comm.rank - step - …) % comm.size",
    ),
    solution=_RING,
    check=_check_ring_half,
    cases=((2, 2, 2, 2), (3, 2, 2, 1), (1, 0, 2, 1), (250_000, 250_000, 250_000, 250_000)),
    describe=lambda lengths: (
        "chunks of " + ", ".join(f"{length:,}" for length in lengths[:2]) + ", … numbers"
    ),
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_RING, ("step - 1)", "step)"), ("step - 2)", "step - 1)")),
            "never added to",
        ),
        WrongAnswer(
            changed(_RING, ("chunks[added] += incoming", "chunks[added][:] = incoming")),
            "they replaced what was there",
        ),
        WrongAnswer(changed(_RING, ("range(comm.size - 1)", "range(comm.size)")), "is counted 2 times"),
        WrongAnswer(
            changed(
                _RING,
                (
                    _SENDRECV,
                    "        comm.Send(chunks[sent], dest=right)\n        comm.Recv(incoming, source=left)\n",
                ),
            ),
            "circle of waiting",
        ),
        WrongAnswer(
            changed(_RING, ("dest=right", "dest=left"), ("source=left", "source=right")),
            "returned the sum of chunk 1",
        ),
    ),
    why="each rank sends n − 1 chunks of 1/n of the array. How much of the array is that for n = 100?",
)

# -------------------------------------------------------------------- 04.4 put the tree together


def _check_tree(answer: SimpleNamespace, comm: Any, length: int) -> None:
    buffer = np.full(length, 10.0**comm.rank)
    answer.tree_broadcast(comm, buffer)
    wrong = {}
    for rank in range(1, comm.size):
        words = "kept its own numbers: no message came."
        if rank != comm.rank:
            words = f"holds the numbers of rank {rank}, which sent before it had received."
        wrong[words] = np.full(length, 10.0**rank)
    expect_array(buffer, np.ones(length), wrong)


TREE = Exercise(
    id="04.4",
    objectives=(3,),
    title="Put in order: a broadcast along a tree",
    task="Two of the seven lines are too many. The function begins:",
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
        "Two of the seven lines are too many. How many ranks have the numbers at the start, and who can send "
        "in the second round?",
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
