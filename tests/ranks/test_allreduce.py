"""The all-reduces of one screen against MPI's own, on as many ranks as this session has."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm.allreduce import doubling, in_groups, ring, tree

LENGTHS = (0, 1, 3, 17, 1000)


def factorings(n: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as a product of groups; (1, n) and (n, 1), too."""
    yield from {(n,), (1, n), (n, 1)}
    for first in range(2, n):
        if n % first == 0:
            yield from ((first, *rest) for rest in factorings(n // first))


def agrees(comm: MPI.Comm, allreduce: Callable[[MPI.Comm, np.ndarray], None], length: int) -> bool:
    """Whether it leaves the same sums as MPI's own on every rank; the numbers are whole."""
    array = np.random.default_rng([comm.rank, length]).integers(-99, 99, length).astype(float)
    expected = np.empty_like(array)
    comm.Allreduce(array, expected)
    allreduce(comm, array)
    return comm.allreduce(bool((array == expected).all()), MPI.LAND)


@pytest.mark.parametrize("length", LENGTHS)
def test_rings_doubling_and_trees_are_mpis_sums(comm: MPI.Intracomm, length: int) -> None:
    assert all(agrees(comm, way, length) for way in (ring, doubling, tree))


@pytest.mark.parametrize("length", LENGTHS)
def test_any_groups_are_mpis_sums(comm: MPI.Intracomm, length: int) -> None:
    for groups in factorings(comm.size):
        assert math.prod(groups) == comm.size
        assert agrees(comm, partial(in_groups, groups=groups), length), groups


def test_a_tree_without_the_way_back_is_caught(comm: MPI.Intracomm) -> None:
    def up_only(comm: MPI.Comm, array: np.ndarray) -> None:
        before = array.copy()
        tree(comm, array)
        array[:] = array if comm.rank == 0 else before

    assert agrees(comm, up_only, 17) == (comm.size == 1)
