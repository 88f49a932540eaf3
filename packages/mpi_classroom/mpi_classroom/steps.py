"""Whether the ranks are in step: after a cell, all must have made the same number of collective calls.

A broadcast's root and the leaves of a reduction do not wait. So a call that some rank skipped can end
without a hang, and its message, never received, is taken for a part of the next such call: a wrong
number, cells later. Counting the calls shows it.
"""

from collections.abc import Mapping, Sequence

from mpi_classroom.recording.calls import Counts
from mpi_classroom.snapshot import RankState


def out_of_step(before: Mapping[int, Counts], after: Mapping[int, Counts]) -> bool:
    """Whether some ranks have made more collective calls than others since `before`."""
    return len({after[rank].collectives - before[rank].collectives for rank in before}) > 1


def report(states: Sequence[RankState], before: Mapping[int, Counts], after: Mapping[int, Counts]) -> str:
    """One line per rank, with the number of its collective calls, and what that means."""
    width = max(len(state.what()) for state in states)
    made = {rank: count.collectives - before[rank].collectives for rank, count in after.items()}
    rows = [f"rank {state.rank}  {state.what():<{width}}  {_calls(made[state.rank])}" for state in states]
    meaning = (
        "The ranks are out of step: every rank must make the same collective calls in the same order. "
        "A later call would take what was sent for its own, and give wrong numbers."
    )
    return "\n".join(["Some ranks made a collective call that others did not.", "", *rows, "", meaning])


def _calls(count: int) -> str:
    return f"after {count} collective call{'s' * (count != 1)}"
