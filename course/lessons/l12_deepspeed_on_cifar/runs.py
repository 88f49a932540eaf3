"""Whole trainings on CIFAR-10 for the benchmark: batches, losses, and the accuracy after each epoch.

    curve = follow(comm, step, test, data, batch_size=64, epochs=5)    losses, accuracies, CPU seconds

Every rank takes its samples of every global batch, round-robin; the order is shuffled anew in every epoch. A
short batch at the end is left out, because DeepSpeed counts micro-batches, not samples.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import nn

from course_lib.data.cifar10 import augmented, draw_changes
from course_lib.data.dataset import Dataset
from course_lib.parallel.deepspeed_engine import gathered_weights
from course_lib.training.flat import copy_back
from course_lib.training.loop import (
    EVALUATION_BATCH,
    Batch,
    Step,
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
    augment: bool = False,
) -> Iterator[Batch]:
    """This rank's part of the full global batches of an epoch.

    With `augment`, every image is shifted and maybe mirrored, anew in each epoch, and alike on any number of
    ranks.
    """
    changes = draw_changes(len(data.train_labels), seed=seed, epoch=epoch)
    batches = shuffled_batches(len(data.train_labels), batch_size, seed=seed, epoch=epoch)
    for indices in [batch for batch in batches if len(batch) == batch_size]:
        mine = indices[rank::size]
        images = data.train_images[mine]
        if augment:
            images = augmented(images, changes[mine])
        yield image_batch(images, data.train_labels[mine], np.arange(len(mine)), batch_size)


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
