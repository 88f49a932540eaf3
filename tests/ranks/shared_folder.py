"""A folder that all ranks of a test share: pytest's `tmp_path` is one of each rank's own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI


@pytest.fixture
def shared_folder(comm: MPI.Intracomm, tmp_path: Path) -> Iterator[Path]:
    """Rank 0's `tmp_path`, empty; removed at the end."""
    folder = comm.bcast(tmp_path, root=0)
    yield folder
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
