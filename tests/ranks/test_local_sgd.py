"""Local SGD: with a period of 1 it is one process's training; with longer ones, that of a simulation.

The simulation trains all replicas one after the other in one process, without the library. Known-wrong
variants are kept and have to be told from the right ones.
"""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.data_parallel import (
    GradientBucket,
    broadcast_weights,
    replicas_agree,
    shard,
    shard_batches,
)
from course_lib.parallel.local_sgd import LocalSGD
from course_lib.theory.partition import even_range
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, image_batch, make_step, summed_cross_entropy
from course_lib.training.models import MNIST_MODELS, build, parameter_count
from tests.ranks.test_compression import Handed
from tests.ranks.test_data_parallel import IMAGES, LABELS, STEPS, adam, convert, one_process, sgd


def weights_of(model: nn.Module) -> torch.Tensor:
    return flatten(list(model.parameters()))


def train(
    comm: MPI.Intracomm,
    name: str = "mlp",
    make: Callable[..., LocalSGD] = LocalSGD,
    period: int = 1,
    optimizers: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
) -> tuple[nn.Module, LocalSGD, list[float]]:
    """Train on all ranks; the model, who trained it, and the losses of the global batches."""
    model = build(name, seed=comm.rank).double()
    broadcast_weights(comm, model)
    local = make(comm, model, summed_cross_entropy, optimizers(model), period=period)
    batches = shard_batches(comm, IMAGES, LABELS, STEPS)
    losses = [comm.allreduce(local.step(convert(batch, torch.float64))) for batch in batches]
    local.average()
    return model, local, losses


def gap(comm: MPI.Intracomm, model: nn.Module, expected: torch.Tensor) -> float:
    """The largest difference of a weight on any rank."""
    return comm.allreduce(float((weights_of(model) - expected).abs().max()), op=MPI.MAX)


# ---------------------------------------------------------------- a period of 1


@pytest.mark.parametrize("name", MNIST_MODELS)
def test_a_mean_after_every_step_trains_as_one_process(comm: MPI.Intracomm, name: str) -> None:
    """The shards are uneven, other ones in each step, and some are empty."""
    model, _, losses = train(comm, name)
    assert gap(comm, model, one_process(name, torch.float64, sgd).weights) < 1e-10
    first = image_batch(IMAGES, LABELS, STEPS[0], len(STEPS[0]))
    expected = F.cross_entropy(build(name, seed=0).double()(first.inputs.double()), first.targets)
    assert losses[0] == pytest.approx(expected.item())


class OnlyWeights(LocalSGD):
    """Every rank goes on with its own momentum."""

    def replica_tensors(self) -> list[torch.Tensor]:
        return list(self.model.parameters())


class EveryRankAlike(LocalSGD):
    """A rank with one sample counts as much as one with six."""

    def average(self) -> None:
        self._samples = 1
        super().average()


@pytest.mark.parametrize("wrong", [OnlyWeights, EveryRankAlike])
def test_known_wrong_means_are_told_from_the_truth(comm: MPI.Intracomm, wrong: type[LocalSGD]) -> None:
    if comm.size == 1:
        pytest.skip("the mean of one rank is right, however it counts")
    model, _, _ = train(comm, make=wrong)
    assert gap(comm, model, one_process("mlp", torch.float64, sgd).weights) > 1e-4


class Sided(nn.Module):
    """Even ranks use one parameter and odd ranks another: as with an expert that some ranks send no token."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.even = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.odd = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * (3 * self.odd if self.rank % 2 else self.even)


class NoGradientWithoutUse(LocalSGD):
    """A parameter that a rank has not used has no gradient there, so its optimizer has no state for it."""

    def _fill_gradients(self) -> None:
        """Leaves them None."""


def with_momentum(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The weights, then their momentum: NaN where the optimizer has none."""
    nothing, weights = torch.full((1,), torch.nan), list(model.parameters())
    return flatten(
        [*weights, *(optimizer.state[weight].get("momentum_buffer", nothing) for weight in weights)]
    )


@pytest.mark.parametrize("make", [LocalSGD, NoGradientWithoutUse])
def test_momentum_of_what_only_some_ranks_use_is_that_of_data_parallelism(
    comm: MPI.Intracomm, make: Callable[..., LocalSGD]
) -> None:
    def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).sum()

    ours, expected = Sided(comm.rank), Sided(comm.rank)
    optimizers = sgd(ours), sgd(expected)
    bucket = GradientBucket(expected)
    steps = (
        make(comm, ours, summed, optimizers[0], period=1).step,
        make_step(expected, summed, optimizers[1], lambda: bucket.sum(comm)),
    )
    for _ in range(2):
        batch = Batch(torch.ones(2, dtype=torch.float64), torch.zeros(2), 2 * comm.size)
        for step in steps:
            step(batch)
    found, right = with_momentum(ours, optimizers[0]), with_momentum(expected, optimizers[1])
    assert torch.allclose(found, right) == (make is LocalSGD)


# ---------------------------------------------------------------- longer periods


def simulated(size: int, period: int) -> torch.Tensor:
    """The weights after STEPS: all replicas trained here in turn, with the tutorials' mean loss."""
    start = build("mlp", seed=0).double()
    replicas = [copy.deepcopy(start) for _ in range(size)]
    optimizers = [sgd(replica) for replica in replicas]
    samples = np.zeros(size)
    for number, indices in enumerate(STEPS, start=1):
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            part = even_range(len(indices), size, rank)
            mine = indices[part.start : part.stop]
            samples[rank] += len(mine)
            for parameter in replica.parameters():
                parameter.grad = torch.zeros_like(parameter)
            if len(mine):
                batch = image_batch(IMAGES, LABELS, mine, len(mine))
                F.cross_entropy(replica(batch.inputs.double()), batch.targets).backward()
            optimizer.step()
        if number % period == 0 or number == len(STEPS):
            shares = samples / samples.sum()
            samples[:] = 0
            everyone = [
                [
                    *replica.parameters(),
                    *(optimizer.state[p]["momentum_buffer"] for p in replica.parameters()),
                ]
                for replica, optimizer in zip(replicas, optimizers, strict=True)
            ]
            with torch.no_grad():
                for alike in zip(*everyone, strict=True):
                    mean = sum(share * one for share, one in zip(shares, alike, strict=True))
                    for one in alike:
                        one.copy_(mean)
    return weights_of(replicas[0])


@pytest.mark.parametrize("period", [2, 5])
def test_longer_periods_are_the_simulation_of_all_replicas(comm: MPI.Intracomm, period: int) -> None:
    model, _, _ = train(comm, period=period)
    assert gap(comm, model, simulated(comm.size, period)) < 1e-10
    assert replicas_agree(comm, model)


def test_ranks_meet_once_per_period(comm: MPI.Intracomm) -> None:
    handed, model = Handed(comm), build("mlp", seed=0)
    local = LocalSGD(handed, model, summed_cross_entropy, sgd(model), period=2)
    calls = []
    for batch in shard_batches(comm, IMAGES, LABELS, [*STEPS, STEPS[0], STEPS[0]]):
        local.step(batch)
        calls.append(handed.calls)
    assert calls == [0, 1, 1, 2, 2]
    assert handed.nbytes == 2 * 4 * (2 * parameter_count(model) + 1)  # and momentum
    assert not replicas_agree(comm, model) or comm.size == 1
    local.average()
    local.average()  # nobody took a step since
    assert handed.calls == 3
    assert replicas_agree(comm, model)


def test_the_state_of_adam_is_averaged_and_its_count_of_steps_is_not(comm: MPI.Intracomm) -> None:
    model, local, _ = train(comm, period=3, optimizers=adam)
    assert replicas_agree(comm, model)
    states = [local.optimizer.state[parameter] for parameter in model.parameters()]
    assert all(int(state["step"]) == len(STEPS) for state in states)
    mine = flatten([state[name] for state in states for name in ("exp_avg", "exp_avg_sq")])
    assert len({*comm.allgather(mine.numpy().tobytes())}) == 1


# ---------------------------------------------------------------- refusals


def test_periods_that_make_no_sense_or_differ_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="at least 1"):
        LocalSGD(comm, model, summed_cross_entropy, sgd(model), period=0)
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"or period; .* the same settings"):
            LocalSGD(comm, model, summed_cross_entropy, sgd(model), period=1 + comm.rank)


def test_a_mean_over_no_samples_is_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    model = build("mlp", seed=0)
    local = LocalSGD(comm, model, summed_cross_entropy, sgd(model), period=1)
    nothing = image_batch(IMAGES, LABELS, shard(comm, np.arange(0)), 1)
    with pytest.raises(ValueError, match="no rank has trained on a sample"):
        local.step(nothing)
