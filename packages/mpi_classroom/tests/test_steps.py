"""Ranks are in step when all made the same number of collective calls."""

from mpi_classroom import steps
from mpi_classroom.recording.calls import Counts, Done
from mpi_classroom.snapshot import RankState


def made(**calls):
    """So many collectives of each rank: made(r0=5, r1=9)."""
    return {int(name[1:]): Counts(collectives=count) for name, count in calls.items()}


def test_equal_numbers_since_the_start_of_the_cell_are_in_step_whatever_came_before():
    assert not steps.out_of_step(made(r0=5, r1=9), made(r0=7, r1=11))
    assert steps.out_of_step(made(r0=5, r1=5), made(r0=5, r1=6))
    assert steps.out_of_step(made(r0=5, r1=6, r2=6), made(r0=7, r1=7, r2=8))


def test_ranks_that_are_not_compared_are_in_step():
    assert not steps.out_of_step({}, {})
    assert not steps.out_of_step(made(r0=1), made(r0=3))


def test_the_report_counts_for_every_rank_and_says_what_would_happen():
    states = [RankState(0, "raised", error="raised ValueError: boom"), RankState(1, "finished")]
    lines = steps.report(states, made(r0=4, r1=4), made(r0=4, r1=5)).splitlines()
    assert lines[0] == "Some ranks made a collective call that others did not."
    assert lines[2] == "rank 0  raised ValueError: boom  after 0 collective calls"
    assert lines[3] == "rank 1  finished                 after 1 collective call"
    assert "out of step" in lines[5] and "wrong numbers" in lines[5]


def called(*digests, operators=None):
    """Ranks that made one collective call each, with these digests."""
    operators = operators or [0] * len(digests)
    return {rank: Counts(1, digest=digest, operators=operators[rank]) for rank, digest in enumerate(digests)}


def test_as_many_calls_with_other_names_or_roots_are_out_of_step():
    before = {0: Counts(), 1: Counts()}
    assert steps.out_of_step(before, called(3, 4)) and not steps.out_of_step(before, called(3, 3))
    states = [RankState(rank, "finished", done=Done("bcast", 0, root=rank)) for rank in (0, 1)]
    lines = steps.report(states, before, called(3, 4)).splitlines()
    assert lines[0] == "The ranks made different collective calls."
    assert lines[3] == "rank 1  finished  after 1 collective call, the last bcast(root=1)"
    states = [RankState(rank, "finished", done=Done("bcast", 1, root=0)) for rank in (0, 1)]
    assert "They differ before the last one." in steps.report(states, before, called(3, 4))


def test_only_what_this_cell_adds_is_compared_and_only_between_ranks_that_began_with_equal_numbers():
    before = called(3, 4)
    assert not steps.out_of_step(before, {rank: Counts(2, digest=9 + rank) for rank in (0, 1)})
    assert steps.out_of_step(before, {rank: Counts(2, digest=9) for rank in (0, 1)})
    assert not steps.out_of_step(
        {0: Counts(4), 1: Counts(5)}, {0: Counts(5, digest=8), 1: Counts(6, digest=9)}
    )


def test_different_operators_are_no_reason_to_restart_but_are_told():
    before, after = {0: Counts(), 1: Counts()}, called(3, 3, operators=[1, 2])
    assert not steps.out_of_step(before, after) and steps.operators_differ(before, after)
    states = [
        RankState(rank, "finished", done=Done("Allreduce", 0, operator=name))
        for rank, name in enumerate(("SUM", "MAX"))
    ]
    lines = steps.report(states, before, after).splitlines()
    assert lines[0] == "The ranks reduced with different operators."
    assert lines[2].endswith("the last Allreduce(op=SUM)") and lines[3].endswith("the last Allreduce(op=MAX)")
