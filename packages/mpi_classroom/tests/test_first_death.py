"""Which rank of several hosts died: words of mpiexec as recorded, ends as hosts report them, who is named."""

import pytest

from mpi_classroom.first_death import UNKNOWN, ended_first, find_deaths

RANK_2_KILLED = "prterun noticed that process rank 2 with PID 47 on node n3 exited on\nsignal 9 (Killed)."
RANK_0_LOST_ITS_CONNECTION = """[n1:00000] *** An error occurred in Socket closed
[n1:00000] *** reported by process [682885121,0]
[n1:00000] *** on a NULL communicator
[n1:00000] *** Unknown error
[n1:05381] Delaying for 1 seconds before aborting
"""
RANK_0_FAILED = RANK_0_LOST_ITS_CONNECTION.replace("Socket closed", "MPI_Send")
RANK_0_CALLED_ABORT = """MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0
  Proc: [[31415,1],0]
  Errorcode: 3
"""
RANK_0_ABORTED = """prterun has exited due to process rank 0 with PID 12228 on node n1 calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""
# By rank: it ended after the first time and before the second.
RANK_2_FIRST = {0: (5.4, 5.402), 1: (5.5, 5.501), 2: (5.0, 5.001), 3: (5.6, 5.61)}
RANK_0_FIRST = RANK_2_FIRST | {0: (4.0, 4.001)}
RANKS_0_AND_2_TOGETHER = RANK_2_FIRST | {0: (5.001, 5.004)}
ANY = None  # the hosts must not be asked

KILLED = "rank 2 was killed (signal 9: by hand, or because memory ran out)"
CALLED = "rank 0 called Abort"
FIRST = "died first (killed, crashed, or left Python: mpiexec does not say)"
CASES = {
    "mpiexec names the rank that was killed": (RANK_2_KILLED, ANY, [KILLED]),
    "it does so, although another rank noticed": (RANK_0_LOST_ITS_CONNECTION + RANK_2_KILLED, ANY, [KILLED]),
    "a rank called Abort": (RANK_0_CALLED_ABORT + RANK_0_ABORTED, ANY, [CALLED]),
    "a call of a rank failed, and ended the job": (RANK_0_FAILED + RANK_0_ABORTED, ANY, [CALLED]),
    "a rank lost its connection": (
        RANK_0_LOST_ITS_CONNECTION + RANK_0_ABORTED,
        RANKS_0_AND_2_TOGETHER,
        [f"rank 2 {FIRST}"],
    ),
    "its words are lost": (RANK_0_ABORTED, RANK_2_FIRST, [f"rank 2 {FIRST}"]),
    "its words are lost, and two ends too close": (
        RANK_0_ABORTED,
        RANKS_0_AND_2_TOGETHER,
        [f"rank 0 perhaps {FIRST}", f"rank 2 perhaps {FIRST}"],
    ),
    "a rank aborted, and no other ended before it": (RANK_0_ABORTED, RANK_0_FIRST, [CALLED]),
    "a host does not answer": (RANK_0_ABORTED, {}, []),
    "something else has ended the job": (RANK_0_LOST_ITS_CONNECTION, ANY, []),
    "nobody died": ("all is well on rank 3", ANY, []),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_died_is_named_and_not_its_neighbour(case):
    output, ends, sentences = CASES[case]

    def ask_ends():
        assert ends is not ANY, "mpiexec says who died"
        return ends or None

    assert [f"rank {death.rank} {death.words}" for death in find_deaths(output, ask_ends)] == sentences


def test_only_ends_that_are_clearly_apart_are_told_apart():
    ends = {0: (1.0, 1.02), 1: (1.11, 1.12), 2: (1.13, 1.2)}
    assert ended_first(ends, ()) == [0, 1]
    assert ended_first(ends, {1}) == [0]
    assert ended_first(ends, {0}) == [1, 2]
    assert ended_first(ends | {7: UNKNOWN}, ()) == [0, 1, 7]
    assert ended_first(ends, {0, 1, 2}) == ended_first({}, ()) == []
