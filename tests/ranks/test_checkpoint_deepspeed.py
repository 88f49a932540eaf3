"""DeepSpeed's checkpoints in a folder that is whole or not there: training goes on to the bit."""

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.optim import AdamW

from course_lib.parallel.checkpoint import MANIFEST, CheckpointError, Writer, as_text, find, read_manifest
from course_lib.parallel.deepspeed_checkpoint import load_deepspeed, save_deepspeed
from tests.ranks import shared_folder as folders
from tests.ranks import with_deepspeed
from tests.ranks.one_process import batches, loss_of, model
from tests.ranks.with_deepspeed import settings

deepspeed = with_deepspeed.deepspeed  # fixtures
shared_folder = folders.shared_folder
STAGES = (1, 2, 3)


def start(module: ModuleType, stage: int) -> Any:
    net = model().float()
    optimizer = AdamW(net.parameters(), lr=0.01, foreach=False)
    engine, *_ = module.initialize(model=net, optimizer=optimizer, config=settings(stage))
    return engine


def step(engine: Any, tokens: torch.Tensor) -> float:
    loss = loss_of(engine, tokens[dist.get_rank() :: dist.get_world_size()])
    engine.backward(loss)
    engine.step()
    return loss.item()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_to_the_bit(
    comm: MPI.Intracomm,
    deepspeed: ModuleType,
    shared_folder: Path,
    stage: int,
) -> None:
    tokens = batches(4)
    engine = start(deepspeed, stage)
    assert load_deepspeed(comm, shared_folder, engine) is None
    for each in tokens[:2]:
        step(engine, each)
    path = save_deepspeed(comm, shared_folder, engine, progress={"batch": 2})
    rng = torch.rand(3)
    expected = [step(engine, each) for each in tokens[2:]]
    engine.destroy()
    engine = start(deepspeed, stage)
    found = load_deepspeed(comm, shared_folder, engine)
    assert found is not None and (found.path, found.step, found.progress) == (path, 2, {"batch": 2})
    assert torch.equal(torch.rand(3), rng)
    assert [step(engine, each) for each in tokens[2:]] == expected
    engine.destroy()


def test_it_is_loaded_by_as_many_ranks_as_wrote_it(
    comm: MPI.Intracomm,
    deepspeed: ModuleType,
    shared_folder: Path,
) -> None:
    engine = start(deepspeed, 2)
    path = save_deepspeed(comm, shared_folder, engine)
    if comm.rank == 0:
        about = read_manifest(path) | {"ranks": comm.size + 1}
        (path / f"rank{comm.size}.pt").write_bytes((path / "rank0.pt").read_bytes())
        about["files"][f"rank{comm.size}.pt"] = about["files"]["rank0.pt"]
        (path / MANIFEST).write_text(as_text(about))
    comm.Barrier()
    with pytest.raises(CheckpointError, match=f"not on {comm.size}; start {comm.size + 1} ranks"):
        load_deepspeed(comm, shared_folder, engine)
    engine.destroy()


@pytest.mark.parametrize("damaged", ["deepspeed/mp_rank_00_model_states.pt", "rank0.pt"])
def test_a_damaged_one_is_refused(
    comm: MPI.Intracomm,
    deepspeed: ModuleType,
    shared_folder: Path,
    damaged: str,
) -> None:
    engine = start(deepspeed, 2)
    first, second = (save_deepspeed(comm, shared_folder, engine) for _ in range(2))
    if comm.rank == 0:
        os.truncate(second / damaged, 100)
    comm.Barrier()
    found = load_deepspeed(comm, shared_folder, engine)
    assert found is not None and found.path == first
    assert f"{second / damaged} has 100 bytes" in found.refused[0]
    engine.destroy()


def test_a_full_disk_on_one_rank_ends_no_rank_in_a_barrier(
    comm: MPI.Intracomm,
    deepspeed: ModuleType,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(deepspeed, 2)
    path = save_deepspeed(comm, shared_folder, engine)

    def full(self: Writer, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(Writer, "write_some", full)
        with pytest.raises(CheckpointError, match=r"no space is left .* the one before is untouched"):
            save_deepspeed(comm, shared_folder, engine)
    found = find(comm, shared_folder)
    assert found is not None and found.path == path
    engine.destroy()
