"""The ping-pong gives numbers that can be fitted; what they are is the machine's business."""

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm.ping_pong import exchange_and_sum, measure_ping_pong, seconds_of
from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost

SIZES = (4, 64, 1024, 4096, 16384, 65536, 262144)


def test_two_ranks_measure_and_the_others_get_nothing(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        with pytest.raises(ValueError, match=r"1 ranks and sizes .* use 2 ranks or more"):
            measure_ping_pong(comm, SIZES)
        return
    samples = measure_ping_pong(comm, SIZES, repetitions=3)
    assert (samples is None) == (comm.rank > 1)
    if samples:
        assert samples.nbytes == SIZES
        things = samples.one_way_seconds, samples.exchange_seconds, samples.sum_seconds, samples.copy_seconds
        assert all(len(seconds) == len(SIZES) and min(seconds) > 0 for seconds in things)
        assert predict_seconds(ring_allreduce_cost(2, 12_000), samples.machine(regimes=2)) > 0
    everyone = comm.allgather(samples)
    assert everyone[0] == everyone[1]


def test_sizes_that_hold_no_whole_number_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        measure_ping_pong(comm, [4, 6])


@pytest.mark.parametrize("piece_nbytes", [4, 1000, 4 * 2007])
def test_the_sum_that_is_timed_is_a_step_of_the_ring(comm: MPI.Intracomm, piece_nbytes: int) -> None:
    if comm.size != 2:
        pytest.skip("a ping-pong takes two")
    into = np.ones(2007, np.float32)
    exchange_and_sum(comm, np.full_like(into, 2 + comm.rank), into, piece_nbytes)
    assert (into == 4 - comm.rank).all()


def test_the_slowest_rank_counts_and_a_short_work_is_repeated(comm: MPI.Intracomm) -> None:
    runs: list[int] = []
    seconds = seconds_of(comm, lambda: runs.append(1), 3)
    assert len(set(comm.allgather(seconds))) == 1
    assert len(runs) > 3
