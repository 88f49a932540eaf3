"""π on all ranks: one sum of 64-bit counts, streams that add information, and ways to get them wrong."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import course_lib.pi
from course_lib.pi import (
    Estimate,
    arctan_part,
    arctan_pi,
    count_inside,
    estimate_pi,
    midpoint_part,
    midpoint_pi,
    rank_stream,
    share,
    standard_error,
    sum_on_root,
)

RUNS, SAMPLES = 200, 4_000


def with_one_seed_everywhere(comm: MPI.Intracomm, samples: int, *, seed: int) -> Estimate | None:
    """Known to be wrong: every rank throws the darts of rank 0."""
    inside = count_inside(rank_stream(seed, 0, 1), share(samples, comm.rank, comm.size))
    total = comm.reduce(inside)
    return Estimate.from_count(total, samples, comm.size) if comm.rank == 0 else None


def error_in_standard_errors(comm: MPI.Intracomm, estimate: Callable) -> float:
    """The root mean square error of many runs over what theory expects; the same number on all ranks."""
    runs = [estimate(comm, SAMPLES, seed=seed) for seed in range(RUNS)]
    squares = [(run.estimate - math.pi) ** 2 for run in runs] if comm.rank == 0 else [0.0]
    return comm.bcast(math.sqrt(np.mean(squares)) / standard_error(SAMPLES))


@pytest.mark.parametrize("samples", [1, 100_003])
def test_the_estimate_counts_exactly_the_darts_of_all_streams(comm: MPI.Intracomm, samples: int):
    result = estimate_pi(comm, samples, seed=7)
    everyones = [
        count_inside(rank_stream(7, r, comm.size), share(samples, r, comm.size)) for r in range(comm.size)
    ]
    if comm.rank == 0:
        assert result == Estimate.from_count(sum(everyones), samples, comm.size)
    else:
        assert result is None


def test_all_ranks_together_are_as_far_off_as_theory_says(comm: MPI.Intracomm):
    assert error_in_standard_errors(comm, estimate_pi) == pytest.approx(1, abs=0.15)  # 3 sigma of 200 runs


def test_one_seed_everywhere_adds_darts_and_no_information(comm: MPI.Intracomm):
    error = error_in_standard_errors(comm, with_one_seed_everywhere)
    assert error == pytest.approx(math.sqrt(comm.size), rel=0.15)


def test_counts_above_31_bits_arrive_whole(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(course_lib.pi, "count_inside", lambda stream, samples: samples - 1)
    samples = 2**40 + 3
    result = estimate_pi(comm, samples, seed=0)
    assert comm.rank > 0 or result == Estimate.from_count(samples - comm.size, samples, comm.size)


class ReduceOnly:
    """A communicator that can do one thing and writes down how many bytes it sent."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.sent: list[int] = []

    def Reduce(self, inside: np.ndarray, total: np.ndarray) -> None:
        self.sent.append(inside.nbytes)
        self.comm.Reduce(inside, total)


# -------------------------------------------------------------------- terms and strips

Shared = Callable[[MPI.Intracomm, int], float | None]
BOTH = [(arctan_pi, arctan_part), (midpoint_pi, midpoint_part)]


def same_terms_everywhere(comm: MPI.Intracomm, terms: int) -> float | None:
    """Known to be wrong: every rank adds up all terms."""
    return sum_on_root(comm, arctan_part(terms))


def without_the_rest(comm: MPI.Intracomm, terms: int) -> float | None:
    """Known to be wrong: equal shares, and what does not divide is dropped."""
    mine = terms // comm.size
    return sum_on_root(comm, arctan_part((comm.rank + 1) * mine) - arctan_part(comm.rank * mine))


def agrees(comm: MPI.Intracomm, got: float | None, expected: float) -> bool:
    """Whether rank 0 has `expected` up to rounding and the others nothing; the same verdict on all ranks."""
    mine = got == pytest.approx(expected, abs=1e-13) if comm.rank == 0 else got is None
    return comm.allreduce(bool(mine), op=MPI.LAND)


@pytest.mark.parametrize("number", [1, 7, 100_003])
@pytest.mark.parametrize(("shared", "alone"), BOTH)
def test_all_ranks_together_have_the_sum_of_one(
    comm: MPI.Intracomm, shared: Shared, alone: Callable, number: int
):
    assert agrees(comm, shared(comm, number), alone(number))


@pytest.mark.parametrize("wrong", [same_terms_everywhere, without_the_rest])
def test_wrong_ways_to_deal_terms_are_seen(comm: MPI.Intracomm, wrong: Shared):
    assert agrees(comm, wrong(comm, 13), arctan_part(13)) == (comm.size == 1)


@pytest.mark.parametrize("shared", [arctan_pi, midpoint_pi, partial(estimate_pi, seed=0)])
def test_one_reduce_of_eight_bytes_per_rank_is_all_that_is_sent(comm: MPI.Intracomm, shared: Shared):
    counting = ReduceOnly(comm)
    shared(counting, 1000)
    assert counting.sent == [8]
