"""What the tests on ranks use."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py


@pytest.fixture
def world(comm: MPI.Intracomm) -> Iterator[None]:
    """torch's default group over "mpi4py", of all ranks."""
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
