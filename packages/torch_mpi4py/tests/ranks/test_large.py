"""More elements than MPI counts with 32 bits, for real: 13 GiB and minutes.

python -m mpi_classroom.launch 2 -m pytest -q -m release packages/torch_mpi4py/tests/ranks/test_large.py
"""

from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from torch_mpi4py.channel import Channel

MANY = 2**31 + 1003  # bytes
NEEDED = 14 * 2**30  # bytes, both ranks together

pytestmark = [pytest.mark.release, pytest.mark.deadline(240)]


@pytest.fixture(autouse=True)
def world(comm: MPI.Intracomm) -> Iterator[None]:
    if comm.size != 2:
        pytest.skip("for 2 ranks: each holds up to 6 GiB")
    if comm.bcast(psutil.virtual_memory().available) < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free memory")
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=200))
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("through", ["memory that all see", "MPI"])
def test_all_reduce(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    if through != "memory that all see":
        monkeypatch.setattr(Channel, "find_rows", lambda channel: None)
    tensor = torch.full((MANY,), comm.rank + 1, dtype=torch.uint8)
    tensor[-1] = 100 + comm.rank
    dist.all_reduce(tensor)
    assert (tensor[:-1] == 3).all()
    assert tensor[-1] == 201


def test_broadcast_and_messages(comm: MPI.Intracomm) -> None:
    tensor = torch.full((MANY,), comm.rank + 1, dtype=torch.uint8)
    dist.broadcast(tensor, 1)
    assert (tensor == 2).all()
    if comm.rank == 0:
        tensor[-1] = 77
        dist.send(tensor, 1)
    else:
        dist.recv(tensor.zero_(), 0)
        assert (tensor[:-1] == 2).all()
        assert tensor[-1] == 77
