"""Models that are cut, over "mpi4py": tensor parallelism by DTensor, pipelining, distributed checkpoints."""

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from mpi4py import MPI
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import Optimizer

from mpi_classroom.launch import job_folder
from tests.ranks.one_process import (
    STEPS,
    Tensors,
    Trained,
    alone,
    assert_same,
    assert_trained_alike,
    batches,
    gradients_of,
    loss_of,
    mean_loss,
    model,
    sgd,
    train,
    weights_of,
)

CPU = torch.device("cpu")
MICROBATCHES = 4


pytestmark = pytest.mark.usefixtures("world")


@pytest.fixture
def folder(comm: MPI.Intracomm) -> Iterator[str]:
    """One empty folder for all ranks."""
    path = comm.bcast(tempfile.mkdtemp(prefix="ranks-", dir=job_folder()) if comm.rank == 0 else None)
    yield path
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def everyone() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def whole(tensors: Tensors) -> Tensors:
    """Distributed tensors put together, others as they are."""
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}


# ------------------------------------------------------------------------------ tensor parallelism


def test_a_distributed_tensor_changes_its_layout_and_stays_the_same() -> None:
    mesh = everyone()
    tensor = torch.arange(30.0, dtype=torch.float64).view(5, 6)
    for first in (Shard(0), Shard(1), Replicate()):
        for then in (Shard(0), Shard(1), Replicate()):
            moved = distribute_tensor(tensor, mesh, [first]).redistribute(placements=[then])
            assert torch.equal(moved.full_tensor(), tensor), (first, then)
    for then in (Shard(0), Shard(1), Replicate()):
        summed = DTensor.from_local(tensor, mesh, [Partial()]).redistribute(placements=[then])
        assert torch.equal(summed.full_tensor(), tensor * dist.get_world_size()), then


PLAN = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "attention.project": RowwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}


def tensor_parallel(mesh: DeviceMesh, plan: dict[str, Any] = PLAN) -> nn.Module:
    """Whole heads and parts of the feed-forward width on each rank; the rest on all."""
    net = model()
    for block in net.blocks:
        parallelize_module(block, mesh, dict(plan))
    return net


def trained_whole(net: nn.Module) -> Trained:
    trained = train(net, sgd(net.parameters()))
    return Trained(trained.losses, whole(trained.gradients), whole(trained.weights))


def test_tensor_parallelism_equals_one_process() -> None:
    got, expected = trained_whole(tensor_parallel(everyone())), alone()
    assert_trained_alike(got, expected)
    assert got.losses == pytest.approx(expected.losses, abs=1e-12)


class NeverSummed(RowwiseParallel):
    """A row-wise layer that takes each rank's part of the sum for the sum."""

    @staticmethod
    def _prepare_output_fn(output_layouts: Any, use_local: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local()


def test_a_row_wise_layer_that_does_not_sum_is_caught() -> None:
    """Known-wrong: the outputs are the parts of a sum."""
    if dist.get_world_size() == 1:
        return
    wrong = trained_whole(tensor_parallel(everyone(), PLAN | {"mlp.down": NeverSummed()}))
    with pytest.raises(AssertionError):
        assert_same(wrong.weights, alone().weights)


def test_tensor_parallelism_inside_data_parallelism_equals_one_process() -> None:
    """Two by two ranks: groups that overlap. Fewer ranks make a mesh of one row."""
    size = dist.get_world_size()
    rows = 2 if size == 4 else 1
    mesh = init_device_mesh("cpu", (rows, size // rows), mesh_dim_names=("data", "tensor"))
    net = tensor_parallel(mesh["tensor"])
    for block in net.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    mine = mesh["data"].get_local_rank()

    def backward(tokens: torch.Tensor) -> float:
        loss = loss_of(net, tokens[mine::rows])
        loss.backward()
        return loss.item()

    trained = train(net, sgd(net.parameters()), backward)
    assert_trained_alike(Trained([], whole(trained.gradients), whole(trained.weights)), alone())


# ----------------------------------------------------------------------------------- pipelining


def my_part(stack: nn.Sequential) -> nn.Sequential:
    """The layers of this rank's stage, under the names they have in the whole."""
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [len(stack) * r // size for r in range(size + 1)]
    part = nn.Sequential()
    for index in range(cuts[rank], cuts[rank + 1]):
        part.add_module(str(index), stack[index])
    return part


@pytest.mark.parametrize("schedule_kind", [ScheduleGPipe, Schedule1F1B])
def test_pipelining_equals_one_process(schedule_kind: type) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    part = my_part(model().stack())
    stage = PipelineStage(part, rank, size, CPU)
    schedule = schedule_kind(stage, MICROBATCHES, loss_fn=mean_loss)
    optimizer = sgd(part.parameters())
    losses = []
    for tokens in batches():
        optimizer.zero_grad()
        inputs = (tokens[:, :-1],) if rank == 0 else ()
        told: list[torch.Tensor] = []
        last = {"target": tokens[:, 1:], "losses": told} if rank == size - 1 else {}
        schedule.step(*inputs, **last)
        optimizer.step()
        losses += [torch.stack(told).mean().item()] if told else []
    single = model()
    expected = train(single, sgd(single.parameters()))
    mine = my_part(single.stack())
    assert_same(gradients_of(part), gradients_of(mine))
    assert_same(weights_of(part), weights_of(mine))
    assert rank < size - 1 or losses == pytest.approx(expected.losses, abs=1e-12)


# ----------------------------------------------------------------------------------- checkpoints


def sharded(seed: int) -> tuple[FSDPModule, Optimizer]:
    net = fully_shard(model(seed), mesh=everyone())
    return net, sgd(net.parameters())


def step(net: nn.Module, optimizer: Optimizer, tokens: torch.Tensor) -> None:
    """One step of data-parallel training; every rank has the same rows."""
    optimizer.zero_grad()
    loss_of(net, tokens).backward()
    optimizer.step()


def state_of(net: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(net, optimizer)
    return {"model": weights, "optimizer": moments}


def save(state: dict[str, Any], path: str, later: bool) -> None:
    if later:
        checkpoint.async_save(state, checkpoint_id=path).result()
    else:
        checkpoint.save(state, checkpoint_id=path)


@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(folder: str, later: bool) -> None:
    first, second, third = batches(STEPS)
    net, optimizer = sharded(seed=0)
    step(net, optimizer, first)
    step(net, optimizer, second)
    save(state_of(net, optimizer), folder, later)
    other, other_optimizer = sharded(seed=7)
    step(other, other_optimizer, first)  # its momentum must be overwritten too
    state = state_of(other, other_optimizer)
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(
        other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    step(other, other_optimizer, third)
    assert_same(whole(weights_of(other)), alone().weights)
