"""What is easily forgotten: the optimizer's state after a resume, the buffers, and the precision of sums."""

from collections.abc import Callable

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from course.lessons.l06_data_parallel_by_hand.engines import ENGINES
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import (
    broadcast_buffers,
    broadcast_optimizer,
    broadcast_weights,
    replicas_agree,
    shard_batches,
    train_epoch,
    weight_hash,
)
from course_lib.training.flat import flatten
from course_lib.training.loop import make_step, summed_cross_entropy
from course_lib.training.models import build, derived_seed
from tests.ranks.test_data_parallel import (
    FEW,
    IMAGES,
    LABELS,
    STEPS,
    adam,
    convert,
    one_process,
    sgd,
)

# ---------------------------------------------------------------- the optimizer's state after a resume


def never(comm: MPI.Intracomm, optimizer: Optimizer) -> None:
    """Known wrong: the weights are broadcast, the optimizer's state is not."""


def resumed(comm: MPI.Intracomm, optimizers: Callable, broadcast: Callable) -> tuple[nn.Module, float]:
    """Two steps, a checkpoint that rank 0 alone reads into new objects, one step: how far from no break."""
    batches = [convert(batch, torch.float64) for batch in shard_batches(comm, IMAGES, LABELS, STEPS)]

    def train(model: nn.Module, optimizer: Optimizer, part: slice) -> None:
        step = make_step(model, summed_cross_entropy, optimizer, ENGINES["overlapped buckets"](comm, model))
        for batch in batches[part]:
            step(batch)

    model = build("mlp", seed=0).double()
    optimizer = optimizers(model)
    train(model, optimizer, slice(0, 2))
    checkpoint = (model.state_dict(), optimizer.state_dict())

    model = build("mlp", seed=1 + comm.rank).double()
    optimizer = optimizers(model)
    if comm.rank == 0:
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])
    broadcast_weights(comm, model)
    broadcast(comm, optimizer)
    train(model, optimizer, slice(2, 3))
    theirs = one_process("mlp", torch.float64, optimizers).weights
    distance = float((flatten(list(model.parameters())) - theirs).abs().max())
    return model, comm.allreduce(distance, op=MPI.MAX)


@pytest.mark.parametrize("optimizers", [sgd, adam])
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(comm: MPI.Intracomm, optimizers) -> None:
    model, distance = resumed(comm, optimizers, broadcast_optimizer)
    assert distance < 1e-10
    assert replicas_agree(comm, model)


@pytest.mark.parametrize("optimizers", [sgd, adam])
def test_without_the_optimizers_state_the_replicas_part(comm: MPI.Intracomm, optimizers) -> None:
    model, distance = resumed(comm, optimizers, never)
    assert (distance > 1e-4) == (comm.size > 1)
    assert replicas_agree(comm, model) == (comm.size == 1)


def test_settings_and_step_counts_arrive_too(comm: MPI.Intracomm) -> None:
    model = nn.Linear(3, 2)
    optimizer = Adam(model.parameters(), lr=0.5 if comm.rank == 0 else 0.1)
    if comm.rank == 0:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    broadcast_optimizer(comm, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    assert [int(state["step"]) for state in states] == [1, 1]
    assert states[0]["exp_avg"].shape == (2, 3)
    assert states[0]["exp_avg"].flatten().tolist() == pytest.approx([0.1] * 6)


def test_other_optimizers_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    parameters = list((layers[0] if comm.rank == 0 else layers).parameters())
    with pytest.raises(ValueError, match="the same on all ranks"):
        broadcast_optimizer(comm, SGD(parameters, lr=0.1))


# ---------------------------------------------------------------- buffers


class Normed(nn.Module):
    """A small network with batch-norm, whose running statistics are buffers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(derived_seed(seed, "normed"))
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def test_buffers_part_until_they_are_broadcast(comm: MPI.Intracomm) -> None:
    model = Normed(seed=comm.rank)
    broadcast_weights(comm, model)
    step = make_step(
        model, summed_cross_entropy, SGD(model.parameters(), lr=0.1), ENGINES["one bucket"](comm, model)
    )
    for batch in shard_batches(comm, IMAGES, LABELS, STEPS[:1]):
        step(batch)
    weights = comm.allgather(flatten(list(model.parameters())).numpy().tobytes())
    assert len(set(weights)) == 1
    assert replicas_agree(comm, model) == (comm.size == 1)  # known wrong: unsynchronised buffers
    expected = comm.bcast(weight_hash(model))
    broadcast_buffers(comm, model)
    assert weight_hash(model) == expected
    assert model.layers[2].num_batches_tracked.dtype == torch.int64


def test_an_epoch_ends_with_the_same_buffers_everywhere(comm: MPI.Intracomm) -> None:
    model = Normed(seed=comm.rank)
    few = Dataset("noise", False, IMAGES[:16], LABELS[:16], FEW.test_images, FEW.test_labels)
    train_epoch(comm, model, sgd(model), few, batch_size=8, seed=0)
    assert replicas_agree(comm, model)
