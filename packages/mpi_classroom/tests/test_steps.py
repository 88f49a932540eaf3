"""Ranks are in step when all made the same number of collective calls."""

from mpi_classroom import steps
from mpi_classroom.recording.calls import Counts
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
