"""DeepSpeed's ZeRO over "mpi4py", on CPUs, equals training in one process.

DeepSpeed keeps its world in module globals, so all stages share one process group. It trains in float32.
"""

import os
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from torch.optim import SGD

import torch_mpi4py
from tests.ranks import with_deepspeed
from tests.ranks.one_process import STEPS, Tensors, assert_same, batches, loss_of, model, weights_of
from tests.ranks.with_deepspeed import gathered_weights, settings

deepspeed = with_deepspeed.deepspeed  # the fixture

RATE = 0.5
STAGES = (0, 1, 2, 3)


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


def trained(deepspeed: ModuleType, stage: int, factor: float = 1.0) -> tuple[list[float], Tensors]:
    net = model().float()
    optimizer = SGD(net.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings(stage))
    losses = train(engine, factor)
    weights = gathered_weights(deepspeed, engine, stage)
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
