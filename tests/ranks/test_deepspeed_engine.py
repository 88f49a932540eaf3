"""DeepSpeed's engine on our world: the training of one process in every stage, and what it costs, counted.

DeepSpeed keeps its world in module globals, so all tests of one backend share it.
"""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

from benchmarks import deepspeed_cifar
from benchmarks.deepspeed_cifar import percent_right, rank_batches, whole_model
from benchmarks.parts import deepspeed_engine as ds
from benchmarks.parts.deepspeed_engine import Config, stage_config
from course_lib.data.dataset import Dataset
from course_lib.theory.memory import STAGES, StateBytes
from course_lib.training.flat import flatten
from course_lib.training.loop import (
    Batch,
    SummedLoss,
    image_batch,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import build
from tests.deepspeed_counts import counted_messages, held_bytes, state_bytes, step_bytes
from tests.formulas import touched

BATCH, STEPS = 24, 4  # divisible by 1 to 4 ranks, twice
pytestmark = pytest.mark.deadline(120)
plain_linear = torch.nn.functional.linear


@pytest.fixture(scope="module")
def world() -> Iterator[MPI.Intracomm]:
    comm = MPI.COMM_WORLD.Dup()
    with ds.deepspeed_world(comm):
        yield comm
    comm.Free()


def images(count: int = 2 * BATCH) -> Dataset:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 3, 32, 32), np.uint8)
    labels = generator.integers(0, 10, count)
    return Dataset("random pixels", False, pixels, labels, pixels[:30], labels[:30])


def settings(stage: int, ranks: int) -> Config:
    """SGD, whose steps grow with a factor in the gradient; those of AdamW would not."""
    config = stage_config(stage, ranks, micro_batch=BATCH // 2 // ranks, accumulation=2)
    return config | {"optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}}


def batches(comm: MPI.Intracomm, data: Dataset, size: int = BATCH) -> Iterator[Batch]:
    """This rank's part of the global batches of two epochs."""
    for epoch in range(2):
        for indices in shuffled_batches(len(data.train_labels), size, seed=0, epoch=epoch):
            yield image_batch(data.train_images, data.train_labels, indices[comm.rank :: comm.size], size)


def trained(
    comm: MPI.Intracomm, config: Config, loss_fn: SummedLoss = summed_cross_entropy
) -> tuple[list[float], torch.Tensor]:
    engine = ds.start_engine(build("cifar", seed=comm.rank), config)  # weights come from rank 0
    step = ds.deepspeed_step(engine, loss_fn)
    losses = [comm.allreduce(step(batch)) for batch in batches(comm, images())]
    weights = ds.gathered_weights(engine)
    ds.end_engine(engine)
    return losses, weights


def alone() -> tuple[list[float], torch.Tensor]:
    net = build("cifar", seed=0)
    step = make_step(net, summed_cross_entropy, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    losses = [step(batch) for batch in batches(MPI.COMM_SELF, images())]
    return losses, flatten(list(net.parameters()))


def differ(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.slow
def test_worlds_come_and_go_with_either_backend(comm: MPI.Intracomm) -> None:
    """First: before the world that the other tests share. Backends change, results do not."""
    expected, before = alone()[1], dict(os.environ)
    for backend in ("gloo", "mpi4py", "gloo"):
        with ds.deepspeed_world(comm, backend):
            assert dist.get_backend() == backend
            for stage in (3, 2):
                assert differ(trained(comm, settings(stage, comm.size))[1], expected) < 1e-6
            ds.start_engine(build("cifar", seed=0), settings(3, comm.size))  # ended with the world
    assert torch.nn.functional.linear is plain_linear  # stage 3 had replaced it
    assert not ds.ENGINES and not dist.is_initialized() and dict(os.environ) == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_equals_one_process(world: MPI.Intracomm, stage: int) -> None:
    losses, weights = trained(world, settings(stage, world.size))
    expected_losses, expected = alone()
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert differ(weights, expected) < 1e-6


def test_a_loss_that_is_not_times_ranks_and_micro_batches_fails(world: MPI.Intracomm) -> None:
    """Known-wrong: DeepSpeed divides by both, and our loss is divided by the global batch already."""
    wrong = world.size * 2
    _, weights = trained(
        world, settings(2, world.size), lambda outputs, labels: summed_cross_entropy(outputs, labels) / wrong
    )
    assert differ(weights, alone()[1]) > 1e-3


@pytest.mark.parametrize("stage", STAGES)
def test_counted_bytes_are_those_of_the_formulas(world: MPI.Intracomm, stage: int) -> None:
    config = stage_config(stage, world.size, micro_batch=2, accumulation=2)
    sizes = [weight.numel() for weight in build("cifar", seed=0).parameters()]
    expected = state_bytes(config, sum(sizes), world.size)
    if stage == 2:
        expected = replace(expected, gradients=4 * touched(sizes, world.size))
    held = held_between_micro_batches(world, config)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(held, name) == pytest.approx(getattr(expected, name), rel=0.05), name
    expected_sent = step_bytes(config, sum(sizes), world.size)
    assert sent_in_a_step(world, config) == pytest.approx(expected_sent, rel=0.05, abs=100)


def sent_in_a_step(comm: MPI.Intracomm, config: Config) -> float:
    """Bytes on average over the ranks; the first steps prepare."""
    engine, size = ds.start_engine(build("cifar", seed=0), config), config["train_batch_size"]
    batch = next(batches(comm, images(size), size))
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    step(batch), step(batch)
    with counted_messages() as sent:
        step(batch)
    ds.end_engine(engine)
    return comm.allreduce(sent.nbytes) / comm.size


def held_between_micro_batches(comm: MPI.Intracomm, config: Config) -> StateBytes:
    """Of the rank that holds most; after a first step, so that the optimizer has its state."""
    engine, size = ds.start_engine(build("cifar", seed=0), config), config["train_batch_size"]
    batch = next(batches(comm, images(size), size))
    ds.deepspeed_step(engine, summed_cross_entropy)(batch)
    held = []
    for inputs, targets in zip(batch.inputs.split(2), batch.targets.split(2), strict=True):
        engine.backward(summed_cross_entropy(engine(inputs), targets))
        held.append(held_bytes(engine))
        engine.step()
    ds.end_engine(engine)
    return max(comm.allgather(held[0]), key=lambda each: each.total)


def test_counted_bytes_are_all_that_lives(world: MPI.Intracomm) -> None:
    """The oracle of the counting: every tensor that Python knows, whoever has it."""
    config = stage_config(2, world.size, micro_batch=BATCH // 2 // world.size, accumulation=2)
    before = set(living())
    engine = ds.start_engine(build("cifar", seed=0), config)
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    for batch in batches(world, images()):
        step(batch)
    del batch
    held = held_bytes(engine)
    alive = living()
    ds.end_engine(engine)
    new = sum(nbytes for place, nbytes in alive.items() if place not in before)
    assert held.total == pytest.approx(new, rel=0.05)


@pytest.mark.parametrize("stage", STAGES)
def test_an_engine_that_was_ended_keeps_nothing(world: MPI.Intracomm, stage: int) -> None:
    config = settings(stage, world.size)
    trained(world, config)
    before = sum(living().values())
    trained(world, config)
    deadline = time.monotonic() + 20  # a thread of torch's may hold the last message for a moment
    while sum(living().values()) >= before + 10_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sum(living().values()) < before + 10_000  # a model has 248 024 bytes


def living() -> dict[int, int]:
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}


@pytest.mark.parametrize("stage", (2, 3))
def test_the_whole_model_is_tested_once_over_all_images(world: MPI.Intracomm, stage: int) -> None:
    """With the mean of the statistics that the ranks have of their own images."""
    engine = ds.start_engine(build("convnet", seed=0), settings(stage, world.size))
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    losses = [step(batch) for batch in batches(world, images())]
    assert len(losses) == STEPS
    net, data = whole_model(world, engine, "convnet"), images()
    for mine, theirs in zip(net.buffers(), engine.module.buffers(), strict=True):
        if mine.is_floating_point():
            assert torch.allclose(mine, sum(world.allgather(theirs)) / world.size)
    ds.end_engine(engine)
    found = percent_right(world, net, data)
    batch = image_batch(data.test_images, data.test_labels, np.arange(30), 30)
    right = (net.eval()(batch.inputs).argmax(1) == batch.targets).float().mean().item()
    assert found == pytest.approx(100 * right, abs=0.01)


def test_the_parts_of_all_ranks_are_the_batches_of_one_process(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed_cifar, "BATCH", BATCH)
    whole, mine = (list(rank_batches(one, images(), seed=0, epoch=1)) for one in (MPI.COMM_SELF, comm))
    for batch, part in zip(whole, mine, strict=True):
        assert torch.equal(part.inputs, batch.inputs[comm.rank :: comm.size])
        assert torch.equal(part.targets, batch.targets[comm.rank :: comm.size])
    again = next(rank_batches(MPI.COMM_SELF, images(), seed=0, epoch=2))
    assert len(whole) == 2 and not torch.equal(again.inputs, whole[0].inputs)
