"""Whether the ranks are in step: in a cell, all must make the same collective calls in the same order.

A broadcast's root and the leaves of a reduction do not wait. So a call that some rank skipped, or made with
another root, can end without a hang, and its message, never received, is taken for a part of the next such
call: a wrong number, cells later. Counting the calls shows the first, comparing their names and roots the
second. Ranks that reduce with different operators stay in step, but their result is wrong.

This holds for the members of each communicator, which `Split`, `Dup`, `Create_group`, `Create_cart` and their
like make. Communicators with the same members are compared together. Not compared are intercommunicators, the
calls of threads, the communicators of one rank, and what the small file of a rank has no room for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpi_classroom.recording.calls import EVERYONE, Collectives, Counts
from mpi_classroom.sentences import listed
from mpi_classroom.snapshot import RankState

CountsByRank = Mapping[int, Counts]


def out_of_step(before: CountsByRank, after: CountsByRank, everyone: bool = True) -> bool:
    """Whether members of one communicator made more calls since `before` than others, or different ones.

    `everyone`: all ranks of the world ran the cell. After a cell with `--targets` only the communicators are
    compared whose members all ran it.
    """
    return any(group.out_of_step for group in _compared(before, after, everyone))


def operators_differ(before: CountsByRank, after: CountsByRank, everyone: bool = True) -> bool:
    """Whether ranks that made the same calls since `before` reduced with different operators."""
    groups = list(_compared(before, after, everyone))
    return not any(group.out_of_step for group in groups) and any(group.operators_differ for group in groups)


def report(
    states: Sequence[RankState], before: CountsByRank, after: CountsByRank, everyone: bool = True
) -> str:
    """One line per rank with its calls on the first communicator that differs, and what that means."""
    groups = list(_compared(before, after, everyone))
    differing = [group for group in groups if group.out_of_step]
    differing = differing or [group for group in groups if group.operators_differ]
    group, others = differing[0], differing[1:]
    calls = {rank: group.calls(rank) for rank in group.before}
    title, meaning = _title_and_meaning(group)
    if len(set(calls.values())) == 1:
        title += " They differ before the last one."
    if not group.everyone and any("root=" in words for words in calls.values()):
        meaning += " Roots are numbered as in COMM_WORLD."
    if others:
        them = "; ".join(listed(other.before) for other in others)
        meaning += f" The calls on the communicator{'s' * (len(others) > 1)} of ranks {them} differ too."
    width = max(len(state.what()) for state in states)
    rows = [
        f"rank {state.rank}  {state.what():<{width}}  {calls.get(state.rank, 'not a member')}"
        for state in states
    ]
    return "\n".join([title, "", *rows, "", meaning])


def _title_and_meaning(group: "_Group") -> tuple[str, str]:
    on = "" if group.everyone else f" on the communicator of ranks {listed(group.before)}"
    every_rank = "every rank" if group.everyone else "every rank of that communicator"
    wrong_later = "A later call would take what was sent for its own, and give wrong numbers."
    if group.numbers_differ:
        return (
            f"Some ranks made a collective call{on} that others did not.",
            f"The ranks are out of step: {every_rank} must make the same collective calls in the same order. "
            f"{wrong_later}",
        )
    if group.out_of_step:
        return (
            f"The ranks made different collective calls{on}.",
            f"The ranks are out of step: {every_rank} must make the same collective calls with the same "
            f"root. {wrong_later}",
        )
    return (
        f"The ranks reduced with different operators{on}.",
        "The result is wrong on some ranks or on all: pass the same operator, such as MPI.SUM, on "
        f"{every_rank}.",
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """What the members of a communicator had called before the cell, and after it, by rank."""

    everyone: bool
    before: Mapping[int, Collectives]
    after: Mapping[int, Collectives]

    @property
    def numbers_differ(self) -> bool:
        return len({self._made(rank) for rank in self.before}) > 1

    @property
    def out_of_step(self) -> bool:
        return self.numbers_differ or self._differ(lambda made: made.digest)

    @property
    def operators_differ(self) -> bool:
        return self._differ(lambda made: made.operators)

    def calls(self, rank: int) -> str:
        """How many calls `rank` made in the cell, and the last one."""
        made, last = self._made(rank), self.after[rank].last
        last = f", the last {last}" if made and last else ""
        return f"after {made} collective call{'s' * (made != 1)}{last}"

    def _made(self, rank: int) -> int:
        return self.after[rank].calls - self.before[rank].calls

    def _differ(self, digest: Callable[[Collectives], int]) -> bool:
        """Whether a digest grew differently; unknown, so False, if the ranks were out of step before."""
        if len({(made.calls, made.digest) for made in self.before.values()}) > 1:
            return False
        return (
            len({(digest(self.after[rank]) - digest(self.before[rank])) % 2**32 for rank in self.before}) > 1
        )


def _compared(before: CountsByRank, after: CountsByRank, everyone: bool) -> Iterator[_Group]:
    """All communicators of which the calls of every member are known: the world first."""
    for members in sorted({members for counts in after.values() for members in counts.collectives}):
        if members == EVERYONE and not everyone:
            continue
        ranks = members or tuple(before)
        then = {rank: before[rank].on(members) if rank in before else None for rank in ranks}
        now = {rank: after[rank].on(members) if rank in after else None for rank in ranks}
        begun = {rank: made for rank, made in then.items() if made is not None}
        ended = {rank: made for rank, made in now.items() if made is not None}
        if begun.keys() == ended.keys() == set(ranks):
            yield _Group(members == EVERYONE, begun, ended)
