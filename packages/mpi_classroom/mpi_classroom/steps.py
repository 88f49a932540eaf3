"""Whether the ranks are in step: in a cell, all must make the same collective calls in the same order.

A broadcast's root and the leaves of a reduction do not wait. So a call that some rank skipped, or made with
another root, can end without a hang, and its message, never received, is taken for a part of the next such
call: a wrong number, cells later. Counting the calls shows the first, comparing their names and roots the
second. Ranks that reduce with different operators stay in step, but their result is wrong.
"""

from collections.abc import Callable, Mapping, Sequence

from mpi_classroom.recording.calls import Counts
from mpi_classroom.snapshot import RankState

CountsByRank = Mapping[int, Counts]


def out_of_step(before: CountsByRank, after: CountsByRank) -> bool:
    """Whether some ranks have made more collective calls than others since `before`, or different ones."""
    return _numbers_differ(before, after) or _differ(before, after, lambda counts: counts.digest)


def operators_differ(before: CountsByRank, after: CountsByRank) -> bool:
    """Whether ranks that made the same calls since `before` reduced with different operators."""
    return not out_of_step(before, after) and _differ(before, after, lambda counts: counts.operators)


def report(states: Sequence[RankState], before: CountsByRank, after: CountsByRank) -> str:
    """One line per rank with its collective calls, and what it means that they differ."""
    made = {rank: count.collectives - before[rank].collectives for rank, count in after.items()}
    if _numbers_differ(before, after):
        title = "Some ranks made a collective call that others did not."
        meaning = (
            "The ranks are out of step: every rank must make the same collective calls in the same order. "
            "A later call would take what was sent for its own, and give wrong numbers."
        )
        calls = {state.rank: _calls(made[state.rank]) for state in states}
    else:
        last = {state.rank: f", the last {state.done}" if state.done else "" for state in states}
        calls = {state.rank: _calls(made[state.rank]) + last[state.rank] for state in states}
        where = "" if len(set(calls.values())) > 1 else " They differ before the last one."
        if operators_differ(before, after):
            title = f"The ranks reduced with different operators.{where}"
            meaning = (
                "The result is wrong on some ranks or on all: pass the same operator, such as MPI.SUM, on "
                "every rank."
            )
        else:
            title = f"The ranks made different collective calls.{where}"
            meaning = (
                "The ranks are out of step: every rank must make the same collective calls with the same "
                "root. A later call would take what was sent for its own, and give wrong numbers."
            )
    width = max(len(state.what()) for state in states)
    rows = [f"rank {state.rank}  {state.what():<{width}}  {calls[state.rank]}" for state in states]
    return "\n".join([title, "", *rows, "", meaning])


def _numbers_differ(before: CountsByRank, after: CountsByRank) -> bool:
    return len({after[rank].collectives - before[rank].collectives for rank in before}) > 1


def _differ(before: CountsByRank, after: CountsByRank, digest: Callable[[Counts], int]) -> bool:
    """Whether a digest grew differently; unknown, so False, if the ranks did not begin with equal numbers."""
    if len({before[rank].collectives for rank in before}) != 1:
        return False
    return len({(digest(after[rank]) - digest(before[rank])) % 2**32 for rank in before}) > 1


def _calls(count: int) -> str:
    return f"after {count} collective call{'s' * (count != 1)}"
