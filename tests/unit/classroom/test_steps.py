"""Ranks are in step when all made the same number of collective calls."""

from course_lib.classroom import steps
from course_lib.classroom.hang import RankState
from course_lib.comm import calls
from course_lib.comm.calls import call_file


def write_count(folder, rank, count):
    record = bytearray(calls.SIZE)
    calls.NOW.pack_into(record, 0, 0, 0, 0, 99, count, 0, 0, 0, 0)
    call_file(folder, rank).write_bytes(record)


def test_the_counts_are_those_that_the_ranks_wrote(tmp_path):
    for rank, count in enumerate((5, 7, 5)):
        write_count(tmp_path, rank, count)
    assert steps.collectives_begun(tmp_path, range(3)) == {0: 5, 1: 7, 2: 5}


def test_a_rank_without_a_file_has_made_none(tmp_path):
    assert steps.collectives_begun(tmp_path, [0, 1]) == {0: 0, 1: 0}


def test_equal_numbers_since_the_start_of_the_cell_are_in_step_whatever_came_before():
    assert not steps.out_of_step({0: 5, 1: 9}, {0: 7, 1: 11})
    assert steps.out_of_step({0: 5, 1: 5}, {0: 5, 1: 6})
    assert steps.out_of_step({0: 5, 1: 6, 2: 6}, {0: 7, 1: 7, 2: 8})


def test_ranks_that_are_not_compared_are_in_step():
    assert not steps.out_of_step({}, {})
    assert not steps.out_of_step({0: 1}, {0: 3})


def test_the_report_counts_for_every_rank_and_says_what_would_happen():
    states = [RankState(0, "raised", error="raised ValueError: boom"), RankState(1, "finished")]
    lines = steps.report(states, {0: 4, 1: 4}, {0: 4, 1: 5}).splitlines()
    assert lines[0] == "Some ranks made a collective call that others did not."
    assert lines[2] == "rank 0  raised ValueError: boom  after 0 collective calls"
    assert lines[3] == "rank 1  finished                 after 1 collective call"
    assert "out of step" in lines[5] and "wrong numbers" in lines[5]
