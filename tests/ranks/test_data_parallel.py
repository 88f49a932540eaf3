"""Data parallelism, on as many ranks as this session has, held to one process that trains on whole batches.

The oracle is the loop of the tutorials (mean loss, no communication), computed by every rank for itself.
Known-wrong variants are kept and have to be told from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course.lessons.l06_data_parallel_by_hand.engines import ENGINES, one_bucket
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import (
    GradientBucket,
    broadcast_weights,
    evaluate_shard,
    gather_metrics,
    replicas_agree,
    shard,
    shard_batches,
    train_epoch,
    weight_hash,
)
from course_lib.training.flat import copy_back, flatten
from course_lib.training.loop import Batch, Epoch, image_batch, make_step, summed_cross_entropy
from course_lib.training.metrics import Score
from course_lib.training.models import MNIST_MODELS, build

# Three steps: divisible by no number of ranks above 1, then fewer than four samples, then a single one.
STEPS = [np.arange(11), np.arange(11, 14), np.arange(14, 15)]

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28)).astype(np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, 40).astype(np.uint8)
PROBE = torch.from_numpy(IMAGES[20:25]).unsqueeze(1).float() / 255

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]
Synchronizers = Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]


@dataclass(frozen=True)
class Trace:
    """What training leaves behind: the gradients of each step, then the weights and the outputs."""

    gradients: list[torch.Tensor]
    weights: torch.Tensor
    outputs: torch.Tensor


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def convert(batch: Batch, dtype: torch.dtype = torch.float64) -> Batch:
    return Batch(batch.inputs.to(dtype), batch.targets, batch.global_size)


def differences(ours: Trace, theirs: Trace) -> list[float]:
    """How far each gradient, the weights and the outputs are apart, relative to the oracle's norm."""
    pairs = [*zip(ours.gradients, theirs.gradients, strict=True)]
    pairs += [(ours.weights, theirs.weights), (ours.outputs, theirs.outputs)]
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def worst(comm: MPI.Intracomm, ours: Trace, theirs: Trace) -> float:
    """The largest difference on any rank."""
    return comm.allreduce(max(differences(ours, theirs)), op=MPI.MAX)


def finish(model: nn.Module, gradients: list[torch.Tensor], dtype: torch.dtype) -> Trace:
    with torch.no_grad():
        return Trace(gradients, flatten(list(model.parameters())), model(PROBE.to(dtype)))


@cache
def one_process(name: str, dtype: torch.dtype, optimizers: Optimizers) -> Trace:
    """The oracle: every rank trains alone on the whole batches, with the mean loss."""
    model = build(name, seed=0).to(dtype)
    optimizer, gradients = optimizers(model), []
    for indices in STEPS:
        batch = convert(image_batch(IMAGES, LABELS, indices, len(indices)), dtype)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="mean").backward()
        gradients.append(flatten([parameter.grad for parameter in model.parameters()]))
        optimizer.step()
    return finish(model, gradients, dtype)


def together(
    comm: MPI.Intracomm,
    name: str = "mlp",
    dtype: torch.dtype = torch.float64,
    optimizers: Optimizers = sgd,
    synchronizers: Synchronizers = one_bucket,
    broadcast: Callable[[MPI.Intracomm, nn.Module], None] = broadcast_weights,
    loss_of: Callable[[MPI.Intracomm, torch.Tensor], torch.Tensor] = lambda comm, loss: loss,
    after: Callable[[MPI.Intracomm, nn.Module], None] = lambda comm, model: None,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Trace:
    """Train on all ranks of `comm`; everything that a wrong variant does differently is an argument."""
    model = build(name, seed=comm.rank).to(dtype)  # different on every rank, until the broadcast
    broadcast(comm, model)
    replica = wrap(model)
    gradients: list[torch.Tensor] = []
    synchronize = synchronizers(comm, model)

    def synchronize_and_look() -> None:
        synchronize()
        gradients.append(flatten([parameter.grad for parameter in model.parameters()]))

    def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(comm, summed_cross_entropy(logits, labels))

    step = make_step(replica, loss_fn, optimizers(model), synchronize_and_look)
    for batch in shard_batches(comm, IMAGES, LABELS, STEPS):
        step(convert(batch, dtype))
        after(comm, model)
    return finish(model, gradients, dtype)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizers", [sgd, adam])
@pytest.mark.parametrize("name", MNIST_MODELS)
def test_all_ranks_together_train_as_one_process_does(
    comm: MPI.Intracomm, name: str, optimizers: Optimizers, engine: str
) -> None:
    ours = together(comm, name, torch.float64, optimizers, ENGINES[engine])
    theirs = one_process(name, torch.float64, optimizers)
    for mine, expected in zip(ours.gradients, theirs.gradients, strict=True):
        assert (mine - expected).abs().max() < 1e-10
    assert (ours.weights - theirs.weights).abs().max() < 1e-10
    assert (ours.outputs - theirs.outputs).abs().max() < 1e-10


# ---------------------------------------------------------------- known-wrong variants


def mean_of_means(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Every rank divides by its own shard, and the means are averaged."""
    gradients, sizes = GradientBucket(model), iter(STEPS)

    def synchronize() -> None:
        indices = next(sizes)
        gradients.collect()
        gradients.flat *= len(indices) / max(1, len(shard(comm, indices))) / comm.size
        gradients.sum(comm)

    return synchronize


def forgets_one_parameter(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """The last bias is left out of the sum."""
    *summed, _ = list(model.parameters())

    def synchronize() -> None:
        for parameter in summed:
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())

    return synchronize


def averages(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Divides by the number of ranks, though the loss was divided by the global batch already."""
    gradients = GradientBucket(model)

    def synchronize() -> None:
        gradients.sum(comm)
        gradients.flat /= comm.size

    return synchronize


def keeps_to_itself(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Does not communicate."""
    return lambda: None


def average_weights(comm: MPI.Intracomm, model: nn.Module) -> None:
    weights = flatten(list(model.parameters()))
    comm.Allreduce(MPI.IN_PLACE, weights.numpy())
    copy_back(weights / comm.size, list(model.parameters()))


WRONG = {
    "the mean of the ranks' means, with uneven shards": {"synchronizers": mean_of_means},
    "one parameter is forgotten in the sum": {"synchronizers": forgets_one_parameter},
    "sum, then divide once more": {"synchronizers": averages},
    "no synchronization": {"synchronizers": keeps_to_itself},
    "the broadcast is skipped": {"broadcast": lambda comm, model: None},
    "the loss is divided by the share of one rank, and then summed": {
        "loss_of": lambda comm, loss: loss * comm.size
    },
    "weights are averaged instead of gradients": {
        "synchronizers": keeps_to_itself,
        "optimizers": adam,
        "loss_of": lambda comm, loss: loss * comm.size,
        "after": average_weights,
    },
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_told_from_the_truth(comm: MPI.Intracomm, mistake: str) -> None:
    if comm.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    variant = WRONG[mistake]
    theirs = one_process("mlp", torch.float64, variant.get("optimizers", sgd))
    assert worst(comm, together(comm, **variant), theirs) > 1e-4


# ---------------------------------------------------------------- the phases one by one


@pytest.mark.parametrize("name", MNIST_MODELS)
def test_after_the_broadcast_all_have_the_weights_of_rank_0(comm: MPI.Intracomm, name: str) -> None:
    model = build(name, seed=comm.rank)
    layouts = [parameter.stride() for parameter in model.parameters()]
    assert replicas_agree(comm, model) == (comm.size == 1)
    broadcast_weights(comm, model)
    assert replicas_agree(comm, model)
    assert weight_hash(model) == weight_hash(build(name, seed=0))
    assert [parameter.stride() for parameter in model.parameters()] == layouts


def test_the_hash_sees_a_single_bit_on_a_single_rank(comm: MPI.Intracomm) -> None:
    model = build("cnn", seed=0)
    assert replicas_agree(comm, model)
    if comm.rank == comm.size - 1:
        with torch.no_grad():
            model.fc2.bias[3] = torch.nextafter(model.fc2.bias[3], torch.tensor(1.0))
    assert replicas_agree(comm, model) == (comm.size == 1)


def test_shards_are_disjoint_ordered_and_complete(comm: MPI.Intracomm) -> None:
    for length in (0, 1, 3, 10, 128):
        indices = np.random.default_rng(length).permutation(length)
        shards = comm.allgather(shard(comm, indices))
        assert np.concatenate(shards).tolist() == indices.tolist()
        assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_decimal_coded_gradients_show_that_everyone_contributed(comm: MPI.Intracomm, engine: str) -> None:
    model = build("cnn", seed=0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    synchronize = ENGINES[engine](comm, model)
    for parameter in model.parameters():
        parameter.grad.fill_(10**comm.rank)
    synchronize()
    expected = sum(10**rank for rank in range(comm.size))  # 1111 on four ranks
    assert all((parameter.grad == expected).all() for parameter in model.parameters())


def test_metrics_of_all_ranks_arrive_on_rank_0_alone(comm: MPI.Intracomm) -> None:
    rank, size = comm.rank, comm.size
    epoch = Epoch((0.5 / size, 0.25 / size), 10 + rank, 1.0 + rank)
    report = gather_metrics(comm, epoch, Score(rank, 10, 2.0))
    assert (report is None) == (rank != 0)
    if report:
        assert report.losses == pytest.approx((0.5, 0.25))
        assert report.samples == sum(10 + other for other in range(size))
        assert report.seconds == size
        assert report.score == Score(sum(range(size)), 10 * size, 2.0 * size)
        assert report.ranks == size


# ---------------------------------------------------------------- all ten phases


FEW = Dataset("40 images of noise", False, IMAGES[:30], LABELS[:30], IMAGES[30:], LABELS[30:])


@pytest.mark.parametrize("batch_size", [30, 8])
def test_an_epoch_ends_with_the_weights_and_the_report_of_one_process(
    comm: MPI.Intracomm, batch_size: int
) -> None:
    model, alone = build("cnn", seed=comm.rank), build("cnn", seed=0)
    report = train_epoch(comm, model, sgd(model), FEW, batch_size=batch_size, seed=5)
    expected = train_epoch(MPI.COMM_SELF, alone, sgd(alone), FEW, batch_size=batch_size, seed=5)
    assert expected is not None
    assert replicas_agree(comm, model)
    ours, theirs = flatten(list(model.parameters())), flatten(list(alone.parameters()))
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert (report is None) == (comm.rank != 0)
    if report:
        assert report.losses == pytest.approx(expected.losses, rel=1e-4)
        assert report.score.correct == expected.score.correct
        assert (report.samples, report.score.samples) == (30, 10)


def test_a_test_set_smaller_than_the_ranks_is_evaluated_whole(comm: MPI.Intracomm) -> None:
    model = build("mlp", seed=0)
    scores = comm.allgather(evaluate_shard(comm, model, IMAGES[:2], LABELS[:2]))
    alone = evaluate_shard(MPI.COMM_SELF, model, IMAGES[:2], LABELS[:2])
    total = sum(scores, Score())
    assert (total.correct, total.samples) == (alone.correct, 2)
    assert total.loss == pytest.approx(alone.loss, rel=1e-5)


def test_the_broadcast_covers_buffers_whatever_their_type(comm: MPI.Intracomm) -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(comm.rank)
    norm.num_batches_tracked.fill_(7 + comm.rank)
    broadcast_weights(comm, norm)
    assert (norm.running_mean == 0).all() and norm.num_batches_tracked == 7
