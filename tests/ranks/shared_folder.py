"""A folder that all ranks of a test share: pytest's `tmp_path` is one of each rank's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI

MEMORY = Path("/dev/shm")  # where `fsync` costs nothing


@pytest.fixture
def shared_folder(comm: MPI.Intracomm) -> Iterator[Path]:
    """A new folder, empty; removed at the end."""
    made = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None) if comm.rank == 0 else ""
    folder = Path(comm.bcast(made))
    yield folder
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
