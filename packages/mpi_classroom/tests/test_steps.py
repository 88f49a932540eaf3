"""Ranks are in step when the members of each communicator made the same collective calls."""

import pytest

from mpi_classroom import steps
from mpi_classroom.recording.calls import EVERYONE, TALLIES, Collectives, Counts
from mpi_classroom.snapshot import RankState

ROW = (0, 2)


def made(**calls):
    """So many collectives of each rank on the world: made(r0=5, r1=9)."""
    return {int(name[1:]): Counts({EVERYONE: Collectives(count)}) for name, count in calls.items()}


def on(members, *collectives):
    """Four ranks, of which `members` have these collectives; on the world all have the same."""
    counts = {rank: Counts({EVERYONE: Collectives(1, 7, 0, "Split")}) for rank in range(4)}
    for rank, each in zip(members or range(4), collectives, strict=True):
        counts[rank].collectives[members] = each
    return counts


def finished(n=4):
    return [RankState(rank, "finished") for rank in range(n)]


def lines_of(before, after):
    return steps.report(finished(len(after)), before, after).splitlines()


def test_after_a_cell_for_some_ranks_only_communicators_among_them_are_compared():
    """The ranks that did not run it may make their call in the next cell."""
    before = {
        rank: counts for rank, counts in on(ROW, Collectives(2, 9), Collectives(2, 9)).items() if rank != 1
    }
    world = {rank: Counts({EVERYONE: Collectives(1 + rank)}) for rank in (0, 2, 3)}
    assert steps.out_of_step(before, world) and not steps.out_of_step(before, world, everyone=False)
    skipped = {
        rank: counts for rank, counts in on(ROW, Collectives(3, 9), Collectives(2, 9)).items() if rank != 1
    }
    assert steps.out_of_step(before, skipped, everyone=False)
    lines = steps.report(
        [finished(4)[rank] for rank in (0, 2, 3)], before, skipped, everyone=False
    ).splitlines()
    assert (
        lines[0]
        == "Some ranks made a collective call on the communicator of ranks 0 and 2 that others did not."
    )
    assert lines[2] == "rank 0  finished  after 1 collective call" and lines[4].endswith("not a member")
    without = {rank: before[rank] for rank in (0, 3)}
    assert not steps.out_of_step(without, skipped, everyone=False), "rank 2 did not run the cell"


# -------------------------------------------------------------------- other names, roots or operators


@pytest.mark.parametrize("members", [EVERYONE, ROW])
def test_as_many_calls_with_other_names_or_roots_are_out_of_step(members):
    ranks = members or range(4)
    before = on(members, *[Collectives(2, 9)] * len(ranks))
    same = on(members, *[Collectives(3, 11)] * len(ranks))
    other = on(members, *[Collectives(3, 11 + rank, 0, f"bcast(root={rank})") for rank in ranks])
    assert not steps.out_of_step(before, same) and steps.out_of_step(before, other)
    among = " on the communicator of ranks 0 and 2" if members else ""
    lines = lines_of(before, other)
    assert lines[0] == f"The ranks made different collective calls{among}."
    assert lines[4] == "rank 2  finished  after 1 collective call, the last bcast(root=2)"
    assert lines[-1].endswith("Roots are numbered as in COMM_WORLD.") is bool(members)
    earlier = on(members, *[Collectives(4, 11 + rank, 0, "bcast(root=0)") for rank in ranks])
    assert lines_of(before, earlier)[0].endswith(". They differ before the last one.")


@pytest.mark.parametrize("members", [EVERYONE, ROW])
def test_only_what_this_cell_adds_is_compared_and_only_between_ranks_that_were_in_step_before(members):
    def counts(*collectives):
        return on(members, *collectives, *[collectives[-1]] * (2 * (not members)))

    other_operators = counts(Collectives(1, 3, 1), Collectives(1, 3, 2))
    assert not steps.operators_differ(other_operators, counts(Collectives(2, 9, 6), Collectives(2, 9, 7)))
    assert steps.operators_differ(other_operators, counts(Collectives(2, 9, 6), Collectives(2, 9, 8)))
    assert steps.out_of_step(other_operators, counts(Collectives(2, 8), Collectives(2, 9)))
    for one, other in (((4, 3), (5, 3)), ((4, 3), (4, 6))):  # calls and digest before the cell
        before = counts(Collectives(*one), Collectives(*other))
        after = counts(Collectives(one[0] + 1, 50, 1), Collectives(other[0] + 1, 90, 2))
        assert not steps.out_of_step(before, after) and not steps.operators_differ(before, after)


# -------------------------------------------------------------------- communicators of some ranks


def test_a_communicator_for_which_the_file_of_a_member_has_no_room_is_not_compared():
    before = on(ROW, Collectives(), Collectives())
    after = on(ROW, Collectives(1, 5), Collectives())
    full = {(2, n): Collectives() for n in range(3, TALLIES + 2)}
    assert steps.out_of_step(before, after)
    after[2] = Counts({EVERYONE: after[2].collectives[EVERYONE]} | full)
    assert len(full) == TALLIES - 1 and not steps.out_of_step(before, after)
