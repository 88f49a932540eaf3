"""DeepSpeed's ZeRO over "mpi4py", on CPUs, equals training in one process.

DeepSpeed keeps its world in module globals, so all stages share one process group. It trains in float32.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
import torch_mpi4py
from mpi4py import MPI
from torch.optim import SGD

from tests.ranks.one_process import STEPS, Tensors, assert_same, batches, loss_of, model, weights_of

RATE = 0.5
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def deepspeed() -> Iterator[ModuleType]:
    """DeepSpeed on CPUs, its world the ranks of this job; nothing is compiled."""
    comm = MPI.COMM_WORLD.Dup()
    size = str(comm.size)
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")  # it compares; not always the rank
    told = {"DS_ACCELERATOR": "cpu", "RANK": str(comm.rank), "WORLD_SIZE": size}
    told |= {"LOCAL_RANK": local_rank, "LOCAL_SIZE": size}
    # It asks for an address, and does not use it: the process group is there already.
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "DS_DISABLE_LOGS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        import deepspeed as module

        module.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
        module.init_distributed("mpi4py", auto_mpi_discovery=False, verbose=False)
        yield module
        dist.destroy_process_group()
        module.comm.comm.cdb = None
        module.utils.groups._WORLD_GROUP = None
    comm.Free()


def settings(stage: int) -> dict[str, Any]:
    size = dist.get_world_size()
    return {
        "train_batch_size": 12,
        "train_micro_batch_size_per_gpu": 12 // size,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "gradient_clipping": 0.0,  # clips to a norm of 1 unless told not to
        "steps_per_print": 10**9,
    }


def train(engine: Any, factor: float = 1.0) -> list[float]:
    """Three steps, each rank on its rows; the mean loss of each."""
    losses = []
    for tokens in batches():
        loss = loss_of(engine, tokens[dist.get_rank() :: dist.get_world_size()])
        engine.backward(loss * factor)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total.item())
    return losses


def whole_weights(deepspeed: ModuleType, engine: Any, stage: int) -> Tensors:
    parameters = list(engine.module.parameters())
    gathered = deepspeed.zero.GatheredParameters(parameters) if stage == 3 else contextlib.nullcontext()
    with gathered:
        return weights_of(engine.module)


def trained(deepspeed: ModuleType, stage: int, factor: float = 1.0) -> tuple[list[float], Tensors]:
    net = model().float()
    optimizer = SGD(net.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings(stage))
    losses = train(engine, factor)
    weights = whole_weights(deepspeed, engine, stage)
    engine.destroy()
    return losses, weights


def trained_alone() -> tuple[list[float], Tensors]:
    net = model().float()
    optimizer = SGD(net.parameters(), lr=RATE)
    losses = []
    for tokens in batches():
        optimizer.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights_of(net)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("stage", STAGES)
def test_zero_equals_one_process(deepspeed: ModuleType, stage: int) -> None:
    losses, weights = trained(deepspeed, stage)
    expected_losses, expected = trained_alone()
    assert len(losses) == STEPS and losses == pytest.approx(expected_losses, abs=1e-5)
    assert_same(weights, expected, 1e-5)


def test_gradients_that_are_too_large_are_caught(deepspeed: ModuleType) -> None:
    """Known-wrong: a sum over two ranks where a mean is due."""
    _, wrong = trained(deepspeed, stage=2, factor=2.0)
    with pytest.raises(AssertionError):
        assert_same(wrong, trained_alone()[1], 1e-5)


def test_deepspeed_talks_over_mpi4py(deepspeed: ModuleType) -> None:
    assert deepspeed.comm.get_world_size() == dist.get_world_size()
    assert isinstance(dist.group.WORLD, torch_mpi4py.MPIGroup)
    assert "DS_ACCELERATOR" in os.environ
