"""DeepSpeed's engine on our world: the training of one process in every stage, and what it costs, counted.

DeepSpeed keeps its world in module globals, so all tests of one backend share it.
"""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn

from course.lessons.l12_deepspeed_on_cifar.runs import (
    average_buffers,
    follow,
    rank_batches,
    score_whole,
)
from course_lib.data.dataset import Dataset
from course_lib.parallel import deepspeed_engine as ds
from course_lib.parallel.deepspeed_config import Config, stage_config
from course_lib.theory.memory import STAGES, StateBytes
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, SummedLoss, image_batch, make_step, summed_cross_entropy
from course_lib.training.models import build
from tests.deepspeed_counts import counted_messages, held_bytes, state_bytes, step_bytes
from tests.formulas import touched

BATCH, STEPS = 24, 4  # divisible by 1 to 4 ranks, twice
BF16 = {"bf16": {"enabled": True}}
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


def settings(stage: int, ranks: int, **options: Any) -> Config:
    """SGD, whose steps grow with a factor in the gradient; those of AdamW would not."""
    config = stage_config(
        stage, ranks, micro_batch=BATCH // 2 // ranks, accumulation=2, learning_rate=0.05, **options
    )
    return config | {"optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}}


def parts(comm: MPI.Intracomm) -> Iterator[Batch]:
    for epoch in range(STEPS // 2):
        yield from rank_batches(images(), BATCH, rank=comm.rank, size=comm.size, seed=0, epoch=epoch)


def trained(
    comm: MPI.Intracomm, config: Config, loss_fn: SummedLoss = summed_cross_entropy
) -> tuple[list[float], torch.Tensor]:
    engine = ds.start_engine(build("cifar", seed=comm.rank), config)  # weights come from rank 0
    step = ds.deepspeed_step(engine, loss_fn)
    losses = [comm.allreduce(step(batch)) for batch in parts(comm)]
    weights = ds.gathered_weights(engine)
    ds.end_engine(engine)
    return losses, weights


def alone(
    *, clip: float = 0.0, rates: tuple[float, ...] = (0.05,) * STEPS
) -> tuple[list[float], torch.Tensor]:
    net = build("cifar", seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def clipped() -> None:
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)

    step, losses = make_step(net, summed_cross_entropy, optimizer, clipped), []
    for rate, batch in zip(rates, parts(MPI.COMM_SELF), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        losses.append(step(batch))
    return losses, flatten(list(net.parameters()))


def differ(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_equals_one_process(world: MPI.Intracomm, stage: int) -> None:
    losses, weights = trained(world, settings(stage, world.size))
    expected_losses, expected = alone()
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert differ(weights, expected) < 1e-6


@pytest.mark.parametrize("stage", (0, 2, 3))
def test_clipping_from_the_config_is_by_the_norm_of_all_ranks(world: MPI.Intracomm, stage: int) -> None:
    _, weights = trained(world, settings(stage, world.size, clip=0.1))
    assert differ(weights, alone(clip=0.1)[1]) < 1e-6
    assert differ(weights, alone()[1]) > 1e-5


def test_the_learning_rate_follows_the_config(world: MPI.Intracomm) -> None:
    """Two updates at 0, as DeepSpeed's schedules count, then up in equal steps."""
    config = settings(1, world.size, warmup_steps=2)
    _, weights = trained(world, config)
    assert differ(weights, alone(rates=(0.0, 0.0, 0.025, 0.05))[1]) < 1e-6


@pytest.mark.parametrize("stage", (0, 2, 3))
def test_bf16_trains_and_differs_by_its_rounding(world: MPI.Intracomm, stage: int) -> None:
    losses, weights = trained(world, settings(stage, world.size) | BF16)
    expected_losses, expected = alone()
    assert losses == pytest.approx(expected_losses, rel=2e-2)
    assert weights.dtype == torch.bfloat16 and 1e-5 < differ(weights.float(), expected) < 2e-2


def test_a_loss_that_is_not_times_ranks_and_micro_batches_fails(world: MPI.Intracomm) -> None:
    """Known-wrong: DeepSpeed divides by both, and our loss is divided by the global batch already."""
    wrong = world.size * 2
    _, weights = trained(
        world, settings(2, world.size), lambda outputs, labels: summed_cross_entropy(outputs, labels) / wrong
    )
    assert differ(weights, alone()[1]) > 1e-3


@pytest.mark.parametrize("bf16", (False, True))
@pytest.mark.parametrize("stage", STAGES)
def test_counted_bytes_are_those_of_the_formulas(world: MPI.Intracomm, stage: int, bf16: bool) -> None:
    config = stage_config(stage, world.size, micro_batch=2, accumulation=2) | (BF16 if bf16 else {})
    sizes = [weight.numel() for weight in build("cifar", seed=0).parameters()]
    expected = state_bytes(config, sum(sizes), world.size)
    if stage == 2:
        expected = replace(expected, gradients=(2 if bf16 else 4) * touched(sizes, world.size))
    held = held_between_micro_batches(world, config)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(held, name) == pytest.approx(getattr(expected, name), rel=0.05), name
    expected_sent = step_bytes(config, sum(sizes), world.size)
    assert sent_in_a_step(world, config) == pytest.approx(expected_sent, rel=0.05, abs=100)


def sent_in_a_step(comm: MPI.Intracomm, config: Config) -> float:
    """Bytes on average over the ranks; the first steps prepare."""
    engine, size = ds.start_engine(build("cifar", seed=0), config), config["train_batch_size"]
    (batch,) = rank_batches(images(size), size, rank=comm.rank, size=comm.size, seed=0)
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    step(batch), step(batch)
    with counted_messages() as sent:
        step(batch)
    ds.end_engine(engine)
    return comm.allreduce(sent.nbytes) / comm.size


def held_between_micro_batches(comm: MPI.Intracomm, config: Config) -> StateBytes:
    """Of the rank that holds most; after a first step, so that the optimizer has its state."""
    engine, size = ds.start_engine(build("cifar", seed=0), config), config["train_batch_size"]
    (batch,) = rank_batches(images(size), size, rank=comm.rank, size=comm.size, seed=0)
    ds.deepspeed_step(engine, summed_cross_entropy)(batch)
    held = []
    for inputs, targets in zip(batch.inputs.split(2), batch.targets.split(2), strict=True):
        engine.backward(summed_cross_entropy(engine(ds.as_precise(engine, inputs)).float(), targets))
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
    for batch in parts(world):
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


def test_a_part_that_is_not_what_the_config_says_is_refused(world: MPI.Intracomm) -> None:
    engine = ds.start_engine(build("cifar", seed=0), settings(0, world.size))
    data = images()
    short = image_batch(data.train_images, data.train_labels, np.arange(1), world.size)
    with pytest.raises(ValueError, match=r"a rank got 1 samples, and the config says 2 × \d+"):
        ds.deepspeed_step(engine, summed_cross_entropy)(short)
    ds.end_engine(engine)


@pytest.mark.parametrize("stage", (2, 3))
def test_the_whole_model_is_tested_once_over_all_images(world: MPI.Intracomm, stage: int) -> None:
    engine = ds.start_engine(build("resnet", seed=0), settings(stage, world.size))
    data = images()
    accuracy = score_whole(world, engine, "resnet", data, 29)
    ds.end_engine(engine)
    net = build("resnet", seed=0).eval()
    batch = image_batch(data.test_images, data.test_labels, np.arange(29), 29)
    expected = (net(batch.inputs).argmax(1) == batch.targets).float().mean().item()
    assert accuracy == pytest.approx(expected)


def test_every_rank_saves_and_a_new_engine_goes_on(world: MPI.Intracomm, tmp_path: Path) -> None:
    folder = world.bcast(str(tmp_path))
    config, batches = settings(2, world.size), list(parts(world))
    engine = ds.start_engine(build("cifar", seed=0), config)
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    for batch in batches[:2]:
        step(batch)
    engine.save_checkpoint(folder, tag="here")
    ds.end_engine(engine)
    files = [path.name for path in Path(folder, "here").iterdir()]
    assert sum("optim_states" in name for name in files) == world.size
    engine = ds.start_engine(build("cifar", seed=1), config)
    engine.load_checkpoint(folder, tag="here")
    step = ds.deepspeed_step(engine, summed_cross_entropy)
    for batch in batches[2:]:
        step(batch)
    weights = ds.gathered_weights(engine)
    ds.end_engine(engine)
    assert differ(weights, alone()[1]) < 1e-6


@pytest.mark.slow
def test_worlds_come_and_go_with_either_backend(world: MPI.Intracomm) -> None:
    """Last: it ends the world that the others share. Backends and groups of ranks change, results do not."""
    expected = alone()[1]
    for backend in ("gloo", "mpi4py", "gloo"):
        ds.start_deepspeed(world, backend)
        assert dist.get_backend() == backend
        for _ in range(2):
            assert differ(trained(world, settings(2, world.size))[1], expected) < 1e-6
    ds.start_deepspeed(MPI.COMM_SELF)
    assert differ(trained(MPI.COMM_SELF, settings(3, 1))[1], expected) < 1e-6
    if world.rank == 0:  # a smaller world, which the other ranks do not know of
        ds.start_deepspeed(MPI.COMM_SELF)
        trained(MPI.COMM_SELF, settings(3, 1))
    ds.start_deepspeed(world)
    assert differ(trained(world, settings(2, world.size))[1], expected) < 1e-6
    assert differ(trained(world, settings(3, world.size))[1], expected) < 1e-6
    assert torch.nn.functional.linear is plain_linear  # stage 3 had replaced it
    ds.stop_deepspeed()
    assert not dist.is_initialized() and "WORLD_SIZE" not in os.environ
    ds.stop_deepspeed()
    ds.start_deepspeed(world)


def test_accuracy_of_a_training_is_a_fraction_of_the_test_images(world: MPI.Intracomm) -> None:
    engine, data = ds.start_engine(build("cifar", seed=0), settings(2, world.size)), images()
    step = ds.deepspeed_step(engine, summed_cross_entropy)

    def right() -> float:
        return score_whole(world, engine, "cifar", data, len(data.test_labels))

    curve = follow(world, step, right, data, batch_size=BATCH, epochs=2, seed=0)
    ds.end_engine(engine)
    assert len(curve.losses) == STEPS and len(curve.accuracies) == 2 and curve.cpu_seconds > 0
    assert all(each * 30 == pytest.approx(round(each * 30)) for each in curve.accuracies)
    assert curve.losses == pytest.approx(alone()[0], rel=1e-5)  # of global batches, not of a rank's part
    assert len(set(world.allgather(curve))) == 1


def test_the_net_with_batch_norm_is_tested_with_the_mean_of_the_ranks_statistics(
    world: MPI.Intracomm,
) -> None:
    net = build("convnet", seed=0)
    norm = net.residual.norm
    norm.running_mean.fill_(float(world.rank))
    average_buffers(world, net)
    assert torch.allclose(norm.running_mean, torch.full((96,), (world.size - 1) / 2))


@pytest.mark.parametrize("augment", (False, True))
def test_the_parts_of_all_ranks_are_the_batches_of_one_process(world: MPI.Intracomm, augment: bool) -> None:
    def parts_of(rank: int, size: int) -> list[Batch]:
        return list(rank_batches(images(), BATCH, rank=rank, size=size, seed=0, epoch=1, augment=augment))

    whole, mine = parts_of(0, 1), parts_of(world.rank, world.size)
    for batch, part in zip(whole, mine, strict=True):
        assert torch.equal(part.inputs, batch.inputs[world.rank :: world.size])
        assert torch.equal(part.targets, batch.targets[world.rank :: world.size])
    plain = next(rank_batches(images(), BATCH, rank=0, size=1, seed=0, epoch=1))
    assert torch.equal(plain.inputs, whole[0].inputs) is not augment
