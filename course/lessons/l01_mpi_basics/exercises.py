"""Exercises of lesson 01, MPI basics: who sends what to whom, and when may it be used?"""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l01_mpi_basics.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l01_mpi_basics.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, WrongAnswer, changed, expect, expect_array

# -------------------------------------------------------------------- 01.1 shift


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


_SHIFT = '''\
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array that comes from the left."""
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)
    return received
'''

SHIFT = Exercise(
    id="01.1",
    title="Pass it on",
    task="Write the function that gives each rank's array to the right and returns what comes from"
    " the left. It must work for any number of ranks, for a million numbers, and for none.",
    objectives=(2, 4),
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
    solution=_SHIFT,
    check=_check_shift,
    cases=(1, 0, 3, 1_000_000),
    sizes=(2, 3, 4, 1),  # alone, a mistake looks odd: everyone is one's own neighbour
    describe=lambda length: f"{length:,} element{'s' * (length != 1)}",
    wrong=(
        WrongAnswer(
            changed(_SHIFT, ("dest=right", "dest=left"), ("source=left", "source=right")),
            "its right neighbour",
        ),
        WrongAnswer(
            changed(
                _SHIFT,
                (
                    "    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)\n",
                    "    comm.Send(value, dest=right)\n    comm.Recv(received, source=left)\n",
                ),
            ),
            "circle of waiting",
        ),
        WrongAnswer(
            changed(
                _SHIFT,
                (
                    "    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)\n",
                    "    comm.Recv(received, source=left)\n    comm.Send(value, dest=right)\n",
                ),
            ),
            "send only after its own receive",
        ),
        WrongAnswer(
            changed(
                _SHIFT,
                (
                    "    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)\n",
                    "    comm.Isend(value, dest=right)\n",
                ),
                ("return received", "return value"),
            ),
            "own value",
        ),
    ),
    why="why does Send followed by Recv pass every test with small arrays, and hang with a million numbers?",
)

# -------------------------------------------------------------------- 01.2 calls that do not wait


def _check_add_left(answer: SimpleNamespace, comm: Any, length: int) -> None:
    mine = np.full(length, 10.0**comm.rank)
    left = 10.0 ** ((comm.rank - 1) % comm.size)
    time.sleep(0.02 * comm.rank)  # the message to rank 0 comes late
    got = answer.add_left(comm, mine)
    expect_array(
        got,
        np.full(length, 10.0**comm.rank + left),
        {
            "added too early: nothing had come yet from the left, and zeros were added.": mine,
            "added the own numbers twice.": 2 * mine,
        },
    )


ADD_LEFT = Exercise(
    id="01.2",
    title="Put in order: calls that do not wait",
    task="These lines belong below the opening, but not in this order, and one is too many. Write "
    'the letters of the others between the quotes, for instance `order("C A D")`.',
    objectives=(4,),
    stub='order("")\n',
    opening='''\
def add_left(comm, mine):
    """Return the sum of `mine` and the array `mine` of the left neighbour."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    theirs = np.zeros_like(mine)''',
    blocks={
        "A": "    total = mine + theirs",
        "B": "    MPI.Request.Waitall(requests)",
        "C": "    return total",
        "D": "    requests = [comm.Irecv(theirs, source=left), comm.Isend(mine, dest=right)]",
        "E": "    comm.Send(mine, dest=right)",
    },
    hints=(
        "One of the five lines is too many. Which calls only begin something, and when is it complete?",
        "Irecv and Isend begin  ──  here `theirs` belongs to MPI  ──  Waitall  ──  here it is yours",
        'order("D … … C")',
    ),
    solution='order("D B A C")\n',
    check=_check_add_left,
    cases=(1, 3, 1_000_000),
    sizes=(2, 3, 4, 1),
    describe=lambda length: f"{length:,} element{'s' * (length != 1)}",
    wrong=(
        WrongAnswer('order("D A B C")', "added too early"),
        WrongAnswer('order("D E B A C")', "that it never received"),
        WrongAnswer('order("D B A")', "returned None"),
        WrongAnswer('order("B D A C")', "UnboundLocalError"),
        WrongAnswer('order("E B A C")', "name 'requests' is not defined"),
    ),
    why="what could a rank do between Irecv and Waitall that it cannot do while it waits in Recv?",
)

# -------------------------------------------------------------------- 01.3 two kinds of messages


def _check_counts_and_seconds(answer: SimpleNamespace, comm: Any, case: None) -> None:
    if comm.rank > 0:
        time.sleep(0.02 * (comm.size - comm.rank))  # so the messages come last rank first
    got = answer.counts_and_seconds(comm, 10**comm.rank, comm.rank + 0.5)
    if comm.rank > 0:
        expect(got is None, f"returned {got!r}; only rank 0 has the lists, the others return None.")
        return
    expect(isinstance(got, list | tuple) and len(got) == 2, f"returned {got!r}, expected two lists.")
    ranks = range(comm.size)
    _expect_list("counts", list(got[0]), [10**rank for rank in ranks], [rank + 0.5 for rank in ranks])
    _expect_list("seconds", list(got[1]), [rank + 0.5 for rank in ranks], [10**rank for rank in ranks])


def _expect_list(name: str, got: list[Any], expected: list[Any], other: list[Any]) -> None:
    """Raise Wrong unless `got` is `expected`; `other` is what belongs into the other list."""
    if got == expected:
        return
    strangers = [value for value in other if value in got]
    expect(not strangers, f"got among the {name} what is no such number: {got}. Which message came first?")
    expect(sorted(got) != sorted(expected), f"got all {name}, but as they arrived, not by rank: {got}.")
    missing = [rank for rank, value in enumerate(expected) if value not in got]
    expect(not missing, f"got no {name} of {' and '.join(f'rank {rank}' for rank in missing)}: {got}.")
    expect(False, f"got {len(got)} {name} of {len(expected)} ranks: {got}.")


_COUNTS = '''\
def counts_and_seconds(comm, count, seconds):
    """On rank 0: the list of all counts and the list of all seconds, by rank. None on the others."""
    if comm.rank > 0:
        comm.send(seconds, dest=0, tag=2)
        comm.send(count, dest=0, tag=1)
        return None
    counts, times = [count], [seconds]
    for source in range(1, comm.size):
        counts.append(comm.recv(source=source, tag=1))
        times.append(comm.recv(source=source, tag=2))
    return counts, times
'''

COUNTS_AND_SECONDS = Exercise(
    id="01.3",
    title="Spot the bug: two kinds of messages",
    task="Every rank sends rank 0 two numbers, a count and a time. Rank 0 collects them, and its "
    "lists are wrong. The senders are right: leave them as they are.",
    objectives=(1, 2),
    targets=("tags-sort-themselves",),
    stub='''\
def counts_and_seconds(comm, count, seconds):
    """On rank 0: the list of all counts and the list of all seconds, by rank. None on the others."""
    if comm.rank > 0:
        comm.send(seconds, dest=0, tag=2)
        comm.send(count, dest=0, tag=1)
        return None
    counts, times = [count], [seconds]
    for source in range(1, comm.size):
        counts.append(comm.recv(source=source))
        times.append(comm.recv(source=source))
    return counts, times
''',
    hints=(
        "The senders write on every message which kind it is. Who reads it?",
        "rank 1 sends   seconds (tag 2), then count (tag 1)\n"
        "rank 0 takes   the first message that comes, as a count",
        "counts.append(comm.recv(source=source, tag=…))",
    ),
    solution=_COUNTS,
    check=_check_counts_and_seconds,
    cases=(None,),
    wrong=(
        WrongAnswer(
            changed(
                _COUNTS,
                ("source, tag=1", "source, tag=0"),
                ("source, tag=2", "source, tag=1"),
                ("source, tag=0", "source, tag=2"),
            ),
            "among the counts what is no such number",
        ),
        WrongAnswer(changed(_COUNTS, ("source=source, ", "")), "as they arrived, not by rank"),
        WrongAnswer(
            changed(_COUNTS, ("source, tag=2", "source, tag=1")), "waiting in recv from rank 1, tag 1"
        ),
        WrongAnswer(changed(_COUNTS, ("comm.size)", "comm.size - 1)")), "got no counts of rank 1"),
    ),
    why="without tags, you could also exchange the two sends. Why would you rather not rely on that?",
)

EXERCISES = (SHIFT, *QUESTIONS, ADD_LEFT, COUNTS_AND_SECONDS)
