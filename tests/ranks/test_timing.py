"""Timing over ranks: who takes part, and that the slowest rank counts."""

import time

from mpi4py import MPI

from course_lib.comm.timing import one_rank_per_core, seconds_of_each


def test_a_team_is_the_first_ranks_and_no_more_than_the_cores(comm: MPI.Intracomm):
    team = one_rank_per_core(comm, cores=2)
    if comm.rank < 2:
        assert (team.rank, team.size) == (comm.rank, min(2, comm.size))
        team.Free()
    else:
        assert team == MPI.COMM_NULL


def test_every_rank_learns_the_times_of_the_slowest(comm: MPI.Intracomm):
    pause = 0.05 if comm.rank == comm.size - 1 else 0.0
    seconds = seconds_of_each(comm, lambda: time.sleep(pause), 3)
    assert len(seconds) == 3 and min(seconds) >= 0.05  # sleep never returns early
    assert comm.allgather(seconds) == [seconds] * comm.size
