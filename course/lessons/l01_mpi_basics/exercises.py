"""Exercises of lesson 01, MPI basics: who waits for whom, and when may an array be used?"""

import time
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

# -------------------------------------------------------------------- 01.1 shift


def _check_shift(answer: SimpleNamespace, comm: Any, length: int) -> None:
    value = np.full(length, 10.0**comm.rank)
    mine = value.copy()
    got = answer.shift(comm, mine)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    lookalikes = {}
    if comm.size > 1:
        lookalikes["returned its own value: nothing was received into `received`."] = value
        lookalikes["returned zeros: nothing was received into `received`."] = np.zeros(length)
    if comm.size > 2:
        from_right = np.full(length, 10.0**right)
        lookalikes[
            f"got the value of rank {right}, its right neighbour. Which rank should it receive from?"
        ] = from_right
    expect_array(got, np.full(length, 10.0**left), lookalikes)
    expect(np.array_equal(mine, value), "changed `value`, which belongs to the caller.")
    expect(comm.size == 1 or got is not mine, "returned the very array it was given.")


_SHIFT = '''\
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array of the left neighbour."""
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)
    return received
'''

SHIFT = Exercise(
    id="01.1",
    title="Pass it on",
    task="Our second repair is one call that sends and receives at the same time. Write `shift` with "
    "`comm.Sendrecv(to_send, dest=…, recvbuf=to_fill, source=…)`, for any number of ranks.",
    objectives=(1, 3),
    targets=("small-works-large-works",),
    stub='''\
def shift(comm, value):
    """Send the array `value` to the right neighbour; return the array of the left neighbour."""
    received = np.zeros_like(value)
    return received
''',
    hints=(
        "The docstring says to whom you send. From whom do you receive, and which call does both?",
        "0 → 1 → 2 → 3 → 0: every rank sends to its right, so every rank receives from its left. `Send`, "
        "then `Recv` works only while messages are small, but `Sendrecv` works at any size.",
        "comm.Sendrecv(value, dest=right, recvbuf=received, source=…)",
    ),
    solution=_SHIFT,
    check=_check_shift,
    cases=(1, 0, 3, 1_000_000),
    sizes=(2, 3, 4, 1),  # alone last: a rank is then its own neighbour, and mistakes look odd
    describe=lambda length: f"{length:,} element{'s' * (length != 1)}",
    save="01_ring.py",
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
            "that the next has not sent yet",
        ),
        WrongAnswer(
            changed(
                _SHIFT,
                (
                    "    comm.Sendrecv(value, dest=right, recvbuf=received, source=left)\n",
                    "    if comm.rank % 2 == 0:\n        comm.Send(value, dest=right)\n"
                    "    comm.Recv(received, source=left)\n"
                    "    if comm.rank % 2 == 1:\n        comm.Send(value, dest=right)\n",
                ),
            ),
            "waits for itself",
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
    why="why would Send followed by Recv pass a test with small arrays and hang with a million numbers?",
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
            "added too early: nothing had arrived from the left yet, so zeros were added.": mine,
            "added its own numbers twice.": 2 * mine,
        },
    )


ADD_LEFT = Exercise(
    id="01.2",
    title="Put in order: send and receive without blocking",
    task="Four of the lines A to E complete this function, and one is not needed. Write their letters "
    'in the right order, for example `order("C A D E")`. (`Waitall` is `Wait` for a list of requests.)',
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
        "Which line only starts the messages? Which line waits until they are complete?",
        "Irecv and Isend start  ──  `theirs` belongs to MPI  ──  Waitall  ──  `theirs` is yours again",
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
    why="what can a rank do between Irecv and Waitall that it cannot do inside Recv?",
)

# -------------------------------------------------------------------- 01.3 two kinds of messages


def _check_counts_and_seconds(answer: SimpleNamespace, comm: Any, case: None) -> None:
    if comm.rank > 0:
        time.sleep(0.02 * (comm.size - comm.rank))  # the messages of the last rank come first
    got = answer.counts_and_seconds(comm, 10**comm.rank, comm.rank + 0.5)
    if comm.rank > 0:
        expect(got is None, f"returned {got!r}, expected None: only rank 0 returns the lists.")
        return
    expect(isinstance(got, list | tuple) and len(got) == 2, f"returned {got!r}, expected two lists.")
    ranks = range(comm.size)
    _expect_list("counts", list(got[0]), [10**rank for rank in ranks], [rank + 0.5 for rank in ranks])
    _expect_list("seconds", list(got[1]), [rank + 0.5 for rank in ranks], [10**rank for rank in ranks])


def _expect_list(name: str, got: list[Any], expected: list[Any], other: list[Any]) -> None:
    """Raise Wrong unless `got` is `expected`; `other` is what belongs in the other list."""
    if got == expected:
        return
    strangers = [value for value in other if value in got]
    expect(not strangers, f"got other numbers among the {name}: {got}. Which of the two messages came first?")
    expect(
        sorted(got) != sorted(expected), f"got all {name}, but in the order of arrival, not by rank: {got}."
    )
    missing = [rank for rank, value in enumerate(expected) if value not in got]
    expect(not missing, f"got no {name} of {' and '.join(f'rank {rank}' for rank in missing)}: {got}.")
    expect(False, f"got {len(got)} {name} of {len(expected)} ranks: {got}.")


_COUNTS = '''\
def counts_and_seconds(comm, count, seconds):
    """Return the list of all counts and the list of all seconds, by rank, on rank 0; None elsewhere."""
    if comm.rank > 0:
        requests = [comm.isend(seconds, dest=0, tag=2), comm.isend(count, dest=0, tag=1)]
        MPI.Request.waitall(requests)
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
    task="Every rank has a count and a time, and sends both to rank 0. Rank 0 should make a list of all "
    "counts and a list of all times, each in the order of the ranks. Instead, its lists mix counts and "
    "times. The senders are right, so leave their lines as they are. (`isend` and `waitall` are `Isend` and "
    "`Waitall` for objects.)",
    objectives=(5,),
    targets=("tags-sort-themselves",),
    stub='''\
def counts_and_seconds(comm, count, seconds):
    """Return the list of all counts and the list of all seconds, by rank, on rank 0; None elsewhere."""
    if comm.rank > 0:
        requests = [comm.isend(seconds, dest=0, tag=2), comm.isend(count, dest=0, tag=1)]
        MPI.Request.waitall(requests)
        return None
    counts, times = [count], [seconds]
    for source in range(1, comm.size):
        counts.append(comm.recv(source=source))
        times.append(comm.recv(source=source))
    return counts, times
''',
    hints=(
        "The senders mark each message with a tag that says what it holds. Does rank 0 look at the tags?",
        "rank 1 sends      seconds (tag 2), then count (tag 1)\n"
        "rank 0 receives   the first of the two, and takes it for a count",
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
            "got other numbers among the counts",
        ),
        WrongAnswer(changed(_COUNTS, ("source=source, ", "")), "in the order of arrival, not by rank"),
        WrongAnswer(
            changed(_COUNTS, ("source, tag=2", "source, tag=1")), "waiting in recv from rank 1, tag 1"
        ),
        WrongAnswer(changed(_COUNTS, ("comm.size)", "comm.size - 1)")), "got no counts of rank 1"),
    ),
    why="exchanging the two sends would repair it as well. Why are tags the safer repair?",
)

# -------------------------------------------------------------------- questions

ROWS_UP = Question(
    id="01.q4",
    question="An image is cut into four strips, one per rank, with rank 0's on top. Each rank sends its top "
    "row of pixels up with `Send`, then receives a row from below with `Recv`. Rank 0 has nobody above and "
    "skips the Send; rank 3 has nobody below and skips the Recv. A row has 1 MB. What happens?",
    options=(
        Option(
            "It hangs, as all Sends wait for one another",
            reply="That would mean that the ranks wait in a circle. They do not: rank 0 skips the Send, so "
            "it receives at once, and that ends the Send of rank 1.",
            belief="first-senders-always-hang",
        ),
        Option(
            "It ends, as MPI buffers all of the rows",
            reply="Then our ring would have ended with 1 MB, too. MPI buffers only small messages. Above its "
            "limit, each Send waits for its Recv.",
            belief="mpi-keeps-copies",
        ),
        Option(
            "It ends, as one row after another arrives",
            reply="Rank 0 receives at once, so rank 1's Send ends and rank 1 can receive, and then rank 2. "
            "It ends, but slowly: on 64 ranks, the last row waits for 62 others. With Sendrecv, all rows "
            "travel at the same time.",
            right=True,
        ),
    ),
    objectives=(2, 3),
)

WAITED = Question(
    id="01.q5",
    question="Rank 0 calls `request = comm.Isend(numbers, dest=1)` and computes. Then it calls "
    "`request.Wait()`. When `Wait` has returned, which of these is certain?",
    options=(
        Option(
            "Rank 0 may change the numbers",
            reply="MPI no longer needs rank 0's array, because it has sent the numbers or keeps a copy of "
            "them. Until Wait returned, it could still read them there.",
            right=True,
        ),
        Option(
            "Rank 1 has received the numbers",
            reply="Isend and Wait together are a Send, and after a Send you know nothing about the receiver. "
            "A small message may still lie in a buffer and wait for rank 1.",
            belief="returned-is-received",
        ),
        Option(
            "Rank 1 has called Recv or Irecv",
            reply="That would be so if every message waited for its receiver, as our 1 MB did. MPI may "
            "buffer a small message, and then Wait returns before rank 1 calls anything.",
            belief="send-always-waits",
        ),
    ),
    objectives=(4,),
)

CERTAIN = Question(
    id="01.q6",
    question="Rank 0 runs `x = 5` and `comm.send(x, dest=1)`. Rank 1 runs `y = comm.recv(source=0)`. Then "
    "both print, and in the notebook the line of rank 0 stands above that of rank 1. Which of these is "
    "certain?",
    options=(
        Option(
            "Rank 0 printed before rank 1 did",
            reply="That would mean that the page sorts its lines by time. It sorts them by rank: rank 3 was "
            "the first to have the token, and yet its line came last.",
            belief="print-order-is-time-order",
        ),
        Option(
            "Rank 1 has a variable `x` as well",
            reply="That would mean that a message carries the name of a variable. It carries only the value, "
            "which rank 1 stored in its own variable `y`. Rank 1 has no `x`.",
            belief="set-on-one-is-set-on-all",
        ),
        Option(
            "Rank 1 printed after rank 0 set `x`",
            reply="Rank 0 set x before it sent the message, and rank 1 printed after it had received the "
            "message. That is how a message puts events of two ranks in order.",
            right=True,
        ),
    ),
    objectives=(5,),
)

EXERCISES = (SHIFT, ROWS_UP, ADD_LEFT, WAITED, COUNTS_AND_SECONDS, CERTAIN)

PREDICTIONS = (
    Prediction(
        id="01.p2",
        question="Largest array that still gets around the ring, in bytes?",
        objectives=(2,),
        targets=("mpi-keeps-copies",),
    ),
)
