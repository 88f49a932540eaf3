"""A grid's axes are the rows and columns of the drawn one, on as many ranks as this session has."""

import pytest
from mpi4py import MPI

from course_lib.comm.grid import make_grid


def test_the_last_axis_has_neighbouring_ranks(comm: MPI.Intracomm) -> None:
    tensor = 2 if comm.size % 2 == 0 else 1
    grid = make_grid(comm, data=comm.size // tensor, tensor=tensor)
    assert (grid["data"].rank, grid["tensor"].rank) == divmod(comm.rank, tensor)
    assert grid["tensor"].allgather(comm.rank) == [
        r for r in range(comm.size) if r // tensor == comm.rank // tensor
    ]
    assert grid["data"].allgather(comm.rank) == [
        r for r in range(comm.size) if r % tensor == comm.rank % tensor
    ]
    grid.free()


def test_an_axis_of_one_is_a_rank_by_itself(comm: MPI.Intracomm) -> None:
    grid = make_grid(comm, data=1, pipeline=comm.size, tensor=1)
    assert [grid[axis].size for axis in ("data", "pipeline", "tensor")] == [1, comm.size, 1]
    grid.free()


def test_sizes_that_do_not_make_the_communicator_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(
        ValueError, match=f"2 data × {comm.size} tensor make {2 * comm.size} ranks, and there are"
    ):
        make_grid(comm, data=2, tensor=comm.size)


def test_an_axis_that_is_not_there_is_named(comm: MPI.Intracomm) -> None:
    grid = make_grid(comm, data=comm.size)
    with pytest.raises(KeyError, match="no axis 'tensor'; the grid has data"):
        grid["tensor"]
    grid.free()
