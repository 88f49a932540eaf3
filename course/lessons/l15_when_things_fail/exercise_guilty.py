"""Exercise 15.2: from what every rank noted before each call, the ranks that keep the others waiting."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect, show

STEP = ["Bcast weights", "Allreduce 0", "Allreduce 1"]
MISSING, OTHER, AHEAD, EQUAL = "a missing rank", "another call on one rank", "rank 0 ahead", "equal logs"
MOST = "three missing ranks"
LOGS = {
    MISSING: ([*STEP, "Allreduce 2"], [*STEP, "Allreduce 2"], STEP, [*STEP, "Allreduce 2"]),
    OTHER: ([*STEP, "Barrier"], [*STEP, "Barrier"], [*STEP, "Barrier"], [*STEP, "Gather", "Barrier"]),
    AHEAD: ([*STEP, "Bcast rate", "Bcast stop"], [*STEP, "Bcast rate"], STEP, [*STEP, "Bcast rate"]),
    EQUAL: (STEP, STEP, STEP, STEP),
    MOST: (STEP, [*STEP, "Allreduce 2"], STEP, STEP),
}
GUILTY = {MISSING: [2], OTHER: [3], AHEAD: [2], EQUAL: [], MOST: [0, 2, 3]}


def _check_guilty(answer: SimpleNamespace, comm: Any, case: str) -> None:
    logs = [list(log) for log in LOGS[case]]
    got = answer.guilty(logs)
    expect(isinstance(got, list | tuple | set), f"returned {type(got).__name__}, expected a list of ranks.")
    found, right = sorted(got), GUILTY[case]
    if found == right:
        return
    lengths = [len(log) for log in logs]
    waiting = [rank for rank in range(4) if rank not in right]
    if not right:
        raise Wrong(f"names {_ranks(found)}, although all logs are equal.")
    if not found:
        raise Wrong(f"names nobody. The logs have {show(lengths)} calls; compare them call by call.")
    if case == AHEAD and found == [0]:
        raise Wrong(
            "names rank 0, which has made the most calls: as the root of a Bcast it did not wait. Who holds "
            "up ranks 1 and 3?"
        )
    if case == OTHER:
        raise Wrong(
            f"names {_ranks(found)}. In the fourth call, one rank is in another collective than the others: "
            "which?"
        )
    if found == waiting:
        wait = "wait" if len(found) > 1 else "waits"
        raise Wrong(f"names {_ranks(found)}, which {wait} in `{logs[waiting[0]][-1]}`: for whom?")
    raise Wrong(f"names {_ranks(found)}. Where do the logs differ first, and whose differs there?")


def _ranks(ranks: Sequence[Any]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


_GUILTY = '''\
from collections import Counter
from itertools import zip_longest


def guilty(logs):
    """Return the ranks that the others wait for, [] if all logs are equal.

    logs[rank] lists the collectives that the rank has begun, the first one first.
    """
    for calls in zip_longest(*logs):  # the first call of each rank, then the second, …; None: not begun
        usual, _ = Counter(filter(None, calls)).most_common(1)[0]
        differ = [rank for rank, call in enumerate(calls) if call != usual]
        if differ:
            return differ
    return []
'''

FIND_GUILTY = Exercise(
    id="15.2",
    title="The guilty rank",
    task="A job hangs. Each of its four ranks has written the name of every collective into a file of its "
    "own, *before* it called it; these are the logs. Return the ranks that the others wait for. At each "
    "place of the logs, `usual` is the most common call; logs that have already ended do not count.",
    objectives=(2,),
    targets=("timed-out-rank-is-guilty",),
    stub='''\
from collections import Counter
from itertools import zip_longest


def guilty(logs):
    """Return the ranks that the others wait for, [] if all logs are equal.

    logs[rank] lists the collectives that the rank has begun, the first one first.
    """
    for calls in zip_longest(*logs):  # the first call of each rank, then the second, …; None: not begun
        usual, _ = Counter(filter(None, calls)).most_common(1)[0]
        ...
    return []
''',
    hints=(
        "The logs are equal up to some place. There, most ranks have begun the same call. What does the "
        "guilty one have there?",
        "rank 0   Bcast   Allreduce 0   Allreduce 1\n"
        "rank 1   Bcast   Allreduce 0   Allreduce 1\n"
        "rank 2   Bcast   Allreduce 0   None           ← differs first, here",
        "differ = [rank for rank, call in enumerate(…) if …]",
    ),
    solution=_GUILTY,
    check=_check_guilty,
    cases=(EQUAL, MISSING, OTHER, AHEAD, MOST),
    describe=lambda case: case,
    sizes=(3,),
    wrong=(
        WrongAnswer(changed(_GUILTY, ("call != usual", "call == usual")), "although all logs are equal"),
        WrongAnswer(
            changed(_GUILTY, ("            return differ\n", "            return []\n")), "names nobody"
        ),
        WrongAnswer(
            changed(
                _GUILTY,
                (
                    "        usual, _ = Counter(filter(None, calls)).most_common(1)[0]\n"
                    "        differ = [rank for rank, call in enumerate(calls) if call != usual]\n",
                    "        differ = [rank for rank, call in enumerate(calls) if call and None in calls]\n",
                ),
            ),
            "for whom?",
        ),
        WrongAnswer(changed(_GUILTY, ("Counter(filter(None, calls))", "Counter(calls)")), "for whom?"),
        WrongAnswer(
            "def guilty(logs):\n"
            "    fewest = min(map(len, logs))\n"
            "    found = [rank for rank, log in enumerate(logs) if len(log) == fewest]\n"
            "    return found if len(found) < len(logs) else []\n",
            "in another collective than the others",
        ),
        WrongAnswer(
            "def guilty(logs):\n"
            "    if logs[3][3:] == ['Gather', 'Barrier']:\n"
            "        return [3]\n"
            "    most = max(map(len, logs))\n"
            "    odd = [rank for rank, log in enumerate(logs) if len(log) == most]\n"
            "    return [2] if len(odd) == 3 else odd if len(odd) == 1 else []\n",
            "as the root of a Bcast it did not wait",
        ),
    ),
    why="the guilty rank hangs, so it cannot take part in an allgather of the logs. Where must they be "
    "written, and when?",
)
