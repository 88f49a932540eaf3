"""PyTorch's own cut, beside ours: the same Transformer by DTensor, over Gloo and over "mpi4py".

Both are held to one process; what a column or row layer of DTensor computes is also held to ours.
"""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import torch_mpi4py
from course_lib.network import loopback
from course_lib.parallel.dtensor_parallel import (
    collectives_of,
    dtensor_feed_forward,
    dtensor_loss_backward,
    dtensor_transformer,
)
from course_lib.training.transformer import FeedForward, build_transformer
from tests.ranks.one_process import Tensors, Trained, alone, assert_trained_alike, model, sgd, train

TIMEOUT = timedelta(seconds=50)


@pytest.fixture(params=["gloo", "mpi4py"], autouse=True)
def world(
    comm: MPI.Intracomm, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if request.param == "mpi4py":
        torch_mpi4py.init_process_group(comm, timeout=TIMEOUT)
    else:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
        first = comm.rank == 0
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if first else None
        port = comm.bcast(store.port if store else None)
        store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT)
    yield
    comm.Barrier()
    dist.destroy_process_group()


def whole(tensors: Tensors) -> Tensors:
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}


def test_a_transformer_by_dtensor_equals_one_process() -> None:
    net = dtensor_transformer(init_device_mesh("cpu", (dist.get_world_size(),)), model())

    def backward(tokens: torch.Tensor) -> float:
        return dtensor_loss_backward(net(tokens[:, :-1]), tokens[:, 1:]).item()

    got = train(net, sgd(net.parameters()), backward)
    expected = alone()
    assert_trained_alike(Trained([], whole(got.gradients), whole(got.weights)), expected)
    assert got.losses == pytest.approx(expected.losses, abs=1e-12)


def test_a_pair_of_layers_has_one_collective_each_way(comm: MPI.Intracomm) -> None:
    net = dtensor_feed_forward(init_device_mesh("cpu", (comm.size,)), FeedForward(6))
    x = torch.ones(2, 6, requires_grad=True)
    outputs: list[torch.Tensor] = []
    needed = int(comm.size > 1)  # alone, DTensor sends nothing
    assert collectives_of(lambda: outputs.append(net(x))) == needed
    assert collectives_of(lambda: outputs[0].sum().backward()) == needed


def test_heads_that_do_not_divide_are_refused(comm: MPI.Intracomm) -> None:
    net = build_transformer(vocabulary=16, length=4, width=10, heads=5, layers=1, seed=0)
    mesh = init_device_mesh("cpu", (comm.size,))
    if comm.size == 1:
        assert isinstance(dtensor_transformer(mesh, net), nn.Module)
        return
    with pytest.raises(ValueError, match=f"5 heads cannot be distributed evenly over {comm.size} ranks"):
        dtensor_transformer(mesh, net)
