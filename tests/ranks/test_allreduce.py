"""The all-reduces of one screen against MPI's own, on as many ranks as this session has."""

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm.allreduce import doubling, halving, ring

LENGTHS = (0, 1, 3, 17, 1000)


def agrees(comm: MPI.Comm, allreduce: Callable[[MPI.Comm, np.ndarray], None], length: int) -> bool:
    """Whether it leaves the same sums as MPI's own on every rank; the numbers are whole."""
    array = np.random.default_rng([comm.rank, length]).integers(-99, 99, length).astype(float)
    expected = np.empty_like(array)
    comm.Allreduce(array, expected)
    allreduce(comm, array)
    return comm.allreduce(bool((array == expected).all()), MPI.LAND)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_ring_is_mpis_sum(comm: MPI.Intracomm, length: int) -> None:
    assert agrees(comm, ring, length)


@pytest.mark.parametrize("length", LENGTHS)
def test_doubling_and_halving_are_mpis_sums_on_a_power_of_two(comm: MPI.Intracomm, length: int) -> None:
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))
    if comm.rank == team.rank:
        assert all(agrees(team, way, length) for way in (doubling, halving))
    team.Free()


def test_halving_that_starts_with_far_ranks_only_is_caught(comm: MPI.Intracomm) -> None:
    team = comm.Split(comm.rank < 2 ** (comm.size.bit_length() - 1))
    if comm.rank == team.rank:
        assert agrees(team, lambda team, array: halving(team, array, near=2), 17) == (team.size == 1)
    team.Free()
