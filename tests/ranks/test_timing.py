"""Timing over ranks: who takes part."""

from mpi4py import MPI

from course_lib.comm.timing import one_rank_per_core


def test_a_team_is_the_first_ranks_and_no_more_than_the_cores(comm: MPI.Intracomm):
    team = one_rank_per_core(comm, cores=2)
    if comm.rank < 2:
        assert (team.rank, team.size) == (comm.rank, min(2, comm.size))
        team.Free()
    else:
        assert team == MPI.COMM_NULL
