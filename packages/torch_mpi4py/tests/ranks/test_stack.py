"""What stands on torch.distributed runs over "mpi4py" unchanged, and equals training in one process.

Data parallelism in all its forms; models that are cut are in test_cut.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from tests.ranks.one_process import (
    Tensors,
    Trained,
    alone,
    assert_same,
    assert_trained_alike,
    batches,
    loss_of,
    model,
    sgd,
    train,
)

pytestmark = pytest.mark.usefixtures("world")


def my_rows(tokens: torch.Tensor) -> torch.Tensor:
    """This rank's share of a batch."""
    return tokens[dist.get_rank() :: dist.get_world_size()]


def of_all(loss: torch.Tensor) -> float:
    """The mean over the ranks."""
    total = loss.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return total.item()


# ---------------------------------------------------------------------------------------- DDP


def train_ddp(**options: object) -> Trained:
    """Each rank trains on its rows; DDP averages the gradients."""
    net = model()
    wrapped = DistributedDataParallel(net, **options)

    def backward(tokens: torch.Tensor) -> float:
        loss = loss_of(wrapped, my_rows(tokens))
        loss.backward()
        return of_all(loss)

    return train(net, sgd(net.parameters()), backward)


@pytest.mark.parametrize(
    "options",
    [{}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=["plain", "many buckets", "views", "static graph"],
)
def test_ddp_equals_one_process(options: dict[str, object]) -> None:
    got, expected = train_ddp(**options), alone()
    assert_trained_alike(got, expected)
    assert got.losses == pytest.approx(expected.losses, abs=1e-12)


def test_ddp_starts_from_the_weights_of_rank_zero() -> None:
    net = model(seed=dist.get_rank())
    DistributedDataParallel(net)
    assert_same(dict(net.named_parameters()), dict(model(seed=0).named_parameters()), 0.0)


def reduce_bucket(op: dist.ReduceOp, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook, registered with an operation as its state."""
    work = dist.all_reduce(bucket.buffer(), op=op, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def train_with_hook(op: dist.ReduceOp) -> Trained:
    """Each rank's loss is a part of the batch's, so gradients must be summed."""
    net = model()
    wrapped = DistributedDataParallel(net)
    wrapped.register_comm_hook(op, reduce_bucket)

    def backward(tokens: torch.Tensor) -> float:
        loss = loss_of(wrapped, my_rows(tokens)) / dist.get_world_size()
        loss.backward()
        return loss.item()

    return train(net, sgd(net.parameters()), backward)


def test_a_hook_that_sums_equals_one_process() -> None:
    assert_trained_alike(train_with_hook(dist.ReduceOp.SUM), alone())


def test_a_hook_that_averages_where_a_sum_is_due_is_caught() -> None:
    """Known-wrong: gradients that are too small by the number of ranks."""
    wrong = train_with_hook(dist.ReduceOp.AVG)
    if dist.get_world_size() == 1:
        return
    with pytest.raises(AssertionError):
        assert_same(wrong.gradients, alone().gradients)
    with pytest.raises(AssertionError):
        assert_same(wrong.weights, alone().weights)


def test_accumulating_under_no_sync_equals_one_process() -> None:
    net = model()
    wrapped = DistributedDataParallel(net)

    def backward(tokens: torch.Tensor) -> float:
        rows = my_rows(tokens)
        first, last = rows[: len(rows) // 3], rows[len(rows) // 3 :]
        with wrapped.no_sync():
            (loss_of(wrapped, first) * len(first) / len(rows)).backward()
        (loss_of(wrapped, last) * len(last) / len(rows)).backward()
        return 0.0

    assert_trained_alike(train(net, sgd(net.parameters()), backward), alone())


def test_ranks_with_fewer_batches_join_and_equal_one_process() -> None:
    """Rank r has r + 1 batches; who has none left counts as a gradient of zero."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens = batches(size)
    parts = [[tokens[step][r::size] for step in range(r + 1)] for r in range(size)]
    wrapped = DistributedDataParallel(model())
    optimizer = sgd(wrapped.parameters())
    with Join([wrapped]):
        for part in parts[rank]:
            optimizer.zero_grad()
            loss_of(wrapped, part).backward()
            optimizer.step()
    single = model()
    optimizer = sgd(single.parameters())
    for step in range(size):
        optimizer.zero_grad()
        for part in [steps[step] for steps in parts if step < len(steps)]:
            (loss_of(single, part) / size).backward()
        optimizer.step()
    assert_same(dict(wrapped.module.named_parameters()), dict(single.named_parameters()))


# --------------------------------------------------------------------------------------- FSDP2


def sharded(dtype: torch.dtype = torch.float64, reshard: bool = True) -> FSDPModule:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model().to(dtype)
    for block in net.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(net, mesh=mesh, reshard_after_forward=reshard)


def whole(tensors: Tensors) -> Tensors:
    """Sharded tensors put together."""
    return {name: tensor.full_tensor() for name, tensor in tensors.items()}


def train_sharded(net: FSDPModule, factor: float = 1.0) -> Trained:
    def backward(tokens: torch.Tensor) -> float:
        loss = loss_of(net, my_rows(tokens)) * factor
        loss.backward()
        return of_all(loss) / factor

    trained = train(net, sgd(net.parameters()), backward)
    return Trained(trained.losses, whole(trained.gradients), whole(trained.weights))


# In float64 torch sums and divides; in float32 it asks for AVG, and with an own divisor for PREMUL_SUM.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_fully_shard_equals_one_process(dtype: torch.dtype, reshard: bool) -> None:
    got, expected = train_sharded(sharded(dtype, reshard)), alone(dtype=dtype)
    assert_trained_alike(got, expected, TOLERANCES[dtype])
    assert got.losses == pytest.approx(expected.losses, abs=TOLERANCES[dtype])


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_fully_shard_with_a_divisor_of_its_own_equals_one_process(factor: float) -> None:
    net = sharded(torch.float32)
    for unit in (net, *net.blocks):
        unit.set_gradient_divide_factor(factor)
    expected = alone(dtype=torch.float32)
    assert_trained_alike(train_sharded(net, factor / dist.get_world_size()), expected, 1e-5)


# ------------------------------------------------------------------------------ sharded optimizer


@pytest.mark.parametrize("as_view", [False, True])
def test_zero_redundancy_optimizer_equals_one_process(as_view: bool) -> None:
    net = model()
    wrapped = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), AdamW, parameters_as_bucket_view=as_view, lr=1e-2, foreach=False
    )

    def backward(tokens: torch.Tensor) -> float:
        loss = loss_of(wrapped, my_rows(tokens))
        loss.backward()
        return of_all(loss)

    expected = alone(lambda parameters: AdamW(parameters, lr=1e-2, foreach=False))
    # Gradients that are zero but for rounding (the keys' biases) move Adam's weights by some 1e-9.
    assert_same(train(net, optimizer, backward).weights, expected.weights, 1e-7)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(net.parameters()))


# --------------------------------------------------------------------------- functional collectives


def inputs() -> list[torch.Tensor]:
    """What each rank brings along: (2 · size, 3)."""
    size = dist.get_world_size()
    return [torch.arange(6.0 * size, dtype=torch.float64).view(-1, 3) + 100 * rank for rank in range(size)]


def newest(name: str, before: str) -> Callable[..., Any]:
    """A functional collective by its name, or by the one it had in torch 2.12."""
    return getattr(functional, name, None) or getattr(functional, before)


all_gather_single = newest("all_gather_single", "all_gather_tensor")
reduce_scatter_single = newest("reduce_scatter_single", "reduce_scatter_tensor")
all_gather_coalesced = newest("all_gather_single_coalesced", "all_gather_into_tensor_coalesced")


def test_functional_collectives_equal_torch_on_all_inputs() -> None:
    rank, size, given = dist.get_rank(), dist.get_world_size(), inputs()
    mine, group = given[rank], dist.group.WORLD
    total = torch.stack(given).sum(0)
    pieces = [tensor.chunk(size)[rank] for tensor in given]
    cases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        "all_reduce": (functional.all_reduce(mine, "sum", group), total),
        "average": (functional.all_reduce(mine, "avg", group), total / size),
        "all_gather": (all_gather_single(mine, 0, group), torch.cat(given)),
        "other dim": (all_gather_single(mine, 1, group), torch.cat(given, 1)),
        "reduce_scatter": (reduce_scatter_single(mine, "sum", 0, group), total.chunk(size)[rank]),
        "all_to_all": (functional.all_to_all_single(mine, None, None, group), torch.cat(pieces)),
        "broadcast": (functional.broadcast(mine, size - 1, group), given[-1]),
        "coalesced": (
            torch.stack(functional.all_reduce_coalesced([mine, mine], "sum", group)),
            total.repeat(2, 1, 1),
        ),
        "gathered": (
            torch.cat(all_gather_coalesced([mine, mine], group)),
            torch.cat(given * 2),
        ),
    }
    for name, (got, expected) in cases.items():
        torch.testing.assert_close(got.clone(), expected, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_flow_back_through_collectives() -> None:
    """Of sum over ranks of <collective(x), weights of the rank>, against the adjoint written out."""
    rank, size, given = dist.get_rank(), dist.get_world_size(), inputs()
    weights = [
        torch.randn(2 * size, 3, generator=torch.Generator().manual_seed(r)).double() for r in range(size)
    ]
    adjoints: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
        "all_reduce": (differentiable.all_reduce, torch.stack(weights).sum(0)),
        "all_to_all": (
            lambda x: functional.all_to_all_single_autograd(x, None, None, dist.group.WORLD),
            torch.cat([w.chunk(size)[rank] for w in weights]),
        ),
    }
    for name, (collective, expected) in adjoints.items():
        x = given[rank].clone().requires_grad_()
        (collective(x) * weights[rank]).sum().backward()
        torch.testing.assert_close(x.grad, expected, msg=lambda m, n=name: f"{n}: {m}")
    x = given[rank].clone().requires_grad_()
    gathered = torch.cat(list(differentiable.all_gather(x)))
    (gathered * torch.cat([weights[rank]] * size)).sum().backward()
    torch.testing.assert_close(x.grad, torch.stack(weights).sum(0))
