"""Reductions through shared memory against MPI's own, and where there is no shared memory."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from torch_mpi4py import channel, shared
from torch_mpi4py.shared import SharedRows, Wait, shared_rows
from torch_mpi4py.waiting import wait_until

ROW = 4096  # bytes, so that a few thousand values are several pieces
COUNTS = [1, 2, 3, 511, 512, 513, 1024, 5000]
TYPES = [(np.float32, MPI.FLOAT), (np.float64, MPI.DOUBLE), (np.int8, MPI.INT8_T)]


@pytest.fixture
def rows(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedRows]:
    monkeypatch.setattr(shared, "ROW_BYTES", ROW)
    monkeypatch.setattr(shared, "DIRECT_BYTES", ROW // 4)
    found = shared_rows(comm, wait_for)
    if found is None:
        pytest.skip("one rank shares with nobody")
    yield found
    assert found.close(30.0)


def wait_for(test: Callable[[], bool]) -> None:
    assert wait_until(test, 30.0)


def values(comm: MPI.Intracomm, count: int, kind: type[np.generic]) -> np.ndarray:
    """Of every rank others; some are not numbers where the type has that."""
    made = np.random.default_rng([comm.rank, count]).integers(-9, 9, count).astype(kind)
    if np.issubdtype(kind, np.floating) and count > 9:
        made[comm.rank :: 7] = np.nan
    return made


@pytest.mark.parametrize(("kind", "datatype"), TYPES)
def test_all_reduce_is_mpis(
    comm: MPI.Intracomm, rows: SharedRows, kind: type[np.generic], datatype: MPI.Datatype
) -> None:
    for op, count in product([MPI.SUM, MPI.PROD, MPI.MAX], COUNTS):
        mine = values(comm, count, kind)
        everyone = np.array(comm.allgather(mine))
        rows.all_reduce(mine.ctypes.data, count, datatype, op)
        assert len(set(comm.allgather(mine.tobytes()))) == 1  # the same bits, also of what is not a number
        if op == MPI.SUM or not np.isnan(everyone.astype(float)).any():
            expected = everyone[0].copy()
            for other in everyone[1:]:
                op.Reduce_local(other, expected)
            np.testing.assert_array_equal(mine, expected)


def test_reduce_scatter_of_uneven_parts(comm: MPI.Intracomm, rows: SharedRows) -> None:
    for count in COUNTS:
        part = count // (comm.size + 1)
        counts = [part] * (comm.size - 1) + [count - part * (comm.size - 1)]  # the last rank's part is larger
        mine = values(comm, count, np.float64)
        expected = np.sum(comm.allgather(mine), axis=0)
        start = sum(counts[: comm.rank])
        output = np.empty(counts[comm.rank])
        rows.reduce_scatter(output.ctypes.data, mine.ctypes.data, counts, MPI.DOUBLE, MPI.SUM)
        np.testing.assert_array_equal(output, expected[start : start + counts[comm.rank]])


@pytest.mark.parametrize("who", [0, -1])
def test_without_room_mpi_does_it(
    comm: MPI.Intracomm, world: None, monkeypatch: pytest.MonkeyPatch, who: int
) -> None:
    if comm.rank == who % comm.size:
        monkeypatch.setattr(shared, "has_room", lambda nbytes: False)
    tensor = torch.full((5000,), float(comm.rank + 1))
    dist.all_reduce(tensor)
    assert (tensor == sum(range(1, comm.size + 1))).all()
    group: Any = dist.distributed_c10d._get_default_group()
    assert group.channel.rows is None
    part = torch.empty(1024)
    dist.reduce_scatter_tensor(part, torch.ones(1024 * comm.size))
    assert (part == comm.size).all()


def test_a_full_device_is_left_alone() -> None:
    assert shared.has_room(1)
    assert not shared.has_room(2**60)


def test_nothing_stays_in_the_folder_of_shared_memory(comm: MPI.Intracomm) -> None:
    folder = Path(os.environ.get("OMPI_MCA_btl_sm_backing_directory", "/dev/shm"))  # noqa: SIM112
    if comm.size == 1 or not folder.is_dir():
        pytest.skip("nothing is shared here")
    comm.Barrier()
    before = comm.bcast(sorted(os.listdir(folder)))
    comm.Barrier()
    found = shared_rows(comm, wait_for)
    assert found is not None
    comm.Barrier()
    assert comm.bcast(sorted(os.listdir(folder))) == before  # its name goes as soon as all have it
    assert found.close(30.0)


def test_whoever_waits_for_the_memory_of_others_lets_its_threads_work(
    comm: MPI.Intracomm, world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups may make their memory in two threads at once, in another order on each rank."""
    if comm.size == 1:
        pytest.skip("one rank shares with nobody")
    inside = threading.Event()

    def after_a_message(of: MPI.Intracomm, wait: Wait) -> SharedRows | None:
        inside.set()
        if comm.rank == 1:
            comm.recv(source=0)
        return shared_rows(of, wait)

    monkeypatch.setattr(channel, "shared_rows", after_a_message)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if comm.rank == 0:
        inside.wait()
        time.sleep(0.2)  # its other thread waits for rank 1, and rank 1 for this thread
        comm.send(None, dest=1)
    work.wait()


def test_small_and_large_in_turn(comm: MPI.Intracomm, world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown before the gate must not meet what is still read, and only a piece is shown."""
    monkeypatch.setattr(shared, "ROW_BYTES", ROW)
    total = sum(range(1, comm.size + 1))
    for turn in range(100):
        for count in [1, ROW // 4, 0, ROW // 4 + 1, 3 * ROW // 4]:
            if (turn + comm.rank) % 25 == 0:
                time.sleep(0.001)  # now and then one is late
            tensor = torch.full((count,), float(turn * (comm.rank + 1)))
            dist.all_reduce(tensor)
            assert (tensor == turn * total).all(), (turn, count)
            if turn % 3 == 0:
                average = torch.full((count,), float(comm.rank + 1), dtype=torch.float64)
                dist.all_reduce(average, dist.ReduceOp.AVG)
                assert (average == total / comm.size).all(), (turn, count)


def test_after_a_mismatch_what_was_shown_is_forgotten(comm: MPI.Intracomm, world: None) -> None:
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    dist.all_reduce(torch.ones(1))
    with pytest.raises(torch_mpi4py.MismatchError):
        dist.all_reduce(torch.full((4 + comm.rank,), 9.0))
    parts = [torch.zeros(3), torch.ones(2)]
    dist.all_reduce_coalesced(parts)  # nothing is shown before its gate
    assert torch.cat(parts).tolist() == [0.0] * 3 + [float(comm.size)] * 2


def test_memory_that_one_rank_does_not_close_is_kept_by_all(comm: MPI.Intracomm) -> None:
    """Freeing waits for all ranks, for ever: so all must come to one verdict, also at the last moment."""
    if comm.size == 1:
        pytest.skip("nothing is shared here")
    for turn in range(12):
        found = shared_rows(comm, wait_for)
        assert found is not None
        if comm.rank == 0:
            time.sleep(0.1 * (turn % 4 == 0) + 0.05 - 0.002 + 0.0005 * turn)  # about when the others give up
        verdict = found.close(0.05)
        assert len(set(comm.allgather(verdict))) == 1
        comm.Barrier()
