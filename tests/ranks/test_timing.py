"""Timing over ranks: who takes part, how often the work runs, and that the slowest rank counts."""

import time

from mpi4py import MPI

from course_lib.comm.timing import one_rank_per_core, seconds_on


def test_a_team_is_the_first_ranks_and_no_more_than_the_cores(comm: MPI.Intracomm):
    team = one_rank_per_core(comm, cores=2)
    if comm.rank < 2:
        assert (team.rank, team.size) == (comm.rank, min(2, comm.size))
        team.Free()
    else:
        assert team == MPI.COMM_NULL


def test_the_work_runs_once_to_warm_up_and_then_as_often_as_asked(comm: MPI.Intracomm):
    calls: list[int] = []
    seconds_on(comm, lambda: calls.append(1), repetitions=3)
    assert len(calls) == 4


def test_every_rank_learns_the_time_of_the_slowest(comm: MPI.Intracomm):
    pause = 0.05 if comm.rank == comm.size - 1 else 0.0
    seconds = seconds_on(comm, lambda: time.sleep(pause), repetitions=3)
    assert seconds >= 0.05  # sleep never returns early
    assert comm.allgather(seconds) == [seconds] * comm.size


def test_ranks_outside_the_communicator_do_not_work():
    assert seconds_on(MPI.COMM_NULL, lambda: 1 / 0) is None
