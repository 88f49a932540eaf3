"""CIFAR-10 with DeepSpeed: whole trainings, and the stages side by side.

    run = run_stage(comm, net, data, stage_config(2, comm.size))               bytes and time of a stage
    curve = train_and_test(comm, "convnet", config, data, epochs=5)            losses, accuracies, CPU seconds

Every rank takes its samples of every global batch, round-robin; the order is shuffled anew in every epoch. A
short batch at the end is left out, because DeepSpeed counts micro-batches, not samples.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import nn

from course_lib.data.cifar10 import augmented, draw_changes
from course_lib.data.dataset import Dataset
from course_lib.parallel.deepspeed_config import Config, StageRun
from course_lib.parallel.deepspeed_engine import (
    counted_messages,
    deepspeed_step,
    end_engine,
    gathered_weights,
    held_bytes,
    start_engine,
)
from course_lib.theory.memory import StateBytes
from course_lib.training.flat import copy_back
from course_lib.training.loop import (
    EVALUATION_BATCH,
    Batch,
    Step,
    SummedLoss,
    evaluate,
    fit,
    image_batch,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.metrics import Score
from course_lib.training.models import build


@dataclass(frozen=True, slots=True)
class Curve:
    """How a training went: the loss of every global batch, and the accuracy on the test images every epoch.

    `cpu_seconds` are those of the rank that needed most, tests included, the start of Python not.
    """

    losses: tuple[float, ...]
    accuracies: tuple[float, ...]  # fractions
    cpu_seconds: float


def rank_batches(
    data: Dataset,
    batch_size: int,
    *,
    rank: int,
    size: int,
    seed: int,
    epoch: int = 0,
    steps: int | None = None,
    augment: bool = False,
) -> Iterator[Batch]:
    """This rank's part of the full global batches of an epoch, or of its first `steps`.

    With `augment`, every image is shifted and maybe mirrored, anew in each epoch, and alike on any number of
    ranks.
    """
    changes = draw_changes(len(data.train_labels), seed=seed, epoch=epoch)
    batches = shuffled_batches(len(data.train_labels), batch_size, seed=seed, epoch=epoch)
    for indices in [batch for batch in batches if len(batch) == batch_size][:steps]:
        mine = indices[rank::size]
        images = data.train_images[mine]
        if augment:
            images = augmented(images, changes[mine])
        yield image_batch(images, data.train_labels[mine], np.arange(len(mine)), batch_size)


def run_stage(
    comm: MPI.Intracomm, net: nn.Module, data: Dataset, config: Config, *, steps: int = 6, seed: int = 0
) -> StageRun:
    """Train `net` for some steps as `config` says, and count and time them; all ranks of `comm` call it.

    DeepSpeed's world is `comm`. The first step prepares and is not timed; bytes are counted in two more.
    """
    parameters = sum(weight.numel() for weight in net.parameters())
    engine = start_engine(net, config)
    step = deepspeed_step(engine, summed_cross_entropy)
    batch_size = config["train_batch_size"]
    batches = list(rank_batches(data, batch_size, rank=comm.rank, size=comm.size, seed=seed, steps=steps))
    losses, seconds = [], []
    for batch in batches:
        comm.Barrier()
        start = time.perf_counter()
        losses.append(step(batch))
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    with counted_messages() as sent:
        step(batches[-1])
    held = most_held(engine, lambda: step(batches[-1]))
    end_engine(engine)
    return StageRun(
        stage=engine.zero_optimization_stage(),
        ranks=comm.size,
        parameters=parameters,
        held=max(comm.allgather(held), key=lambda each: each.total),
        sent=comm.allreduce(sent.nbytes) / comm.size,
        seconds=statistics.median(seconds[1:] or seconds),
        losses=tuple(comm.allreduce(loss) for loss in losses),
    )


def most_held(engine: Any, step: Callable[[], object]) -> StateBytes:
    """The most bytes that this rank holds during a step, looked at whenever a gradient is ready.

    Between two steps, DeepSpeed holds less: it frees gradients at the end of backward. The bucket that they
    are copied to is counted with them; activations are not.
    """
    counted: list[StateBytes] = []
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda _: counted.append(held_bytes(engine)))
        for weight in engine.module.parameters()
    ]
    step()
    for hook in hooks:
        hook.remove()
    return max(counted, key=lambda each: each.total)


def train_and_test(
    comm: MPI.Intracomm,
    model: str,
    config: Config,
    data: Dataset,
    *,
    epochs: int,
    seed: int = 0,
    augment: bool = False,
    loss_fn: SummedLoss = summed_cross_entropy,
) -> Curve:
    """Train `model` for some epochs as `config` says, test it after each; DeepSpeed's world is `comm`."""
    engine = start_engine(build(model, seed=seed), config)
    curve = follow(
        comm,
        deepspeed_step(engine, loss_fn),
        lambda: score_whole(comm, engine, model, data, len(data.test_labels)),
        data,
        batch_size=config["train_batch_size"],
        epochs=epochs,
        seed=seed,
        augment=augment,
    )
    end_engine(engine)
    return curve


def follow(
    comm: MPI.Intracomm,
    step: Step,
    test: Callable[[], float],
    data: Dataset,
    *,
    batch_size: int,
    epochs: int,
    seed: int,
    augment: bool = False,
) -> Curve:
    """Train with `step` for some epochs, and call `test` after each; all ranks of `comm` call it."""
    start, losses, accuracies = time.process_time(), [], []
    for epoch in range(epochs):
        batches = rank_batches(
            data, batch_size, rank=comm.rank, size=comm.size, seed=seed, epoch=epoch, augment=augment
        )
        losses.append(fit(step, batches).losses)
        accuracies.append(test())
    seconds = comm.allreduce(time.process_time() - start, MPI.MAX)
    of_all_ranks = np.sum(comm.allgather([loss for epoch in losses for loss in epoch]), axis=0)
    return Curve(tuple(of_all_ranks.tolist()), tuple(accuracies), seconds)


def score_whole(comm: MPI.Intracomm, engine: Any, model: str, data: Dataset, images: int) -> float:
    """The accuracy of the whole model on the first `images` test images, each tested by one rank."""
    net = whole_model(engine, build(model, seed=0))
    average_buffers(comm, net)
    mine = range(min(images, len(data.test_labels)))[comm.rank :: comm.size]
    parts = (mine[start : start + EVALUATION_BATCH] for start in range(0, len(mine), EVALUATION_BATCH))
    batches = (image_batch(data.test_images, data.test_labels, np.array(part), len(part)) for part in parts)
    score = evaluate(net, summed_cross_entropy, batches)
    return sum(comm.allgather(score), Score()).accuracy


def average_buffers(comm: MPI.Intracomm, net: nn.Module) -> None:
    """Average batch-norm's statistics over the ranks, in place: each rank has seen its own images only."""
    for buffer in net.buffers():
        if buffer.is_floating_point():
            comm.Allreduce(MPI.IN_PLACE, buffer.numpy())
            buffer /= comm.size


def whole_model(engine: Any, net: nn.Module) -> nn.Module:
    """`net` with the weights of `engine`, in float32, and this rank's statistics of batch-norm."""
    copy_back(gathered_weights(engine).float(), list(net.parameters()))
    for mine, theirs in zip(net.buffers(), engine.module.buffers(), strict=True):
        mine.copy_(theirs)
    return net
