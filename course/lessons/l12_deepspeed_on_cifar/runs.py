"""CIFAR-10 with DeepSpeed: whole trainings, and the stages side by side.

    run = run_stage(comm, net, data, stage_config(2, comm.size))               bytes and time of a stage
    accuracy = train_and_test(comm, "cifar", config, data, epochs=10)          as one process would

Every rank takes its samples of every global batch, round-robin; the order is shuffled anew in every epoch. A
short batch at the end is left out, because DeepSpeed counts micro-batches, not samples.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import nn

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
    evaluate,
    fit,
    image_batch,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.metrics import Score
from course_lib.training.models import build


def rank_batches(
    data: Dataset,
    batch_size: int,
    *,
    rank: int,
    size: int,
    seed: int,
    epoch: int = 0,
    steps: int | None = None,
) -> Iterator[Batch]:
    """This rank's part of the full global batches of an epoch, or of its first `steps`."""
    batches = shuffled_batches(len(data.train_labels), batch_size, seed=seed, epoch=epoch)
    for indices in [batch for batch in batches if len(batch) == batch_size][:steps]:
        yield image_batch(data.train_images, data.train_labels, indices[rank::size], batch_size)


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

    Between two steps, DeepSpeed holds less: it frees gradients at the end of backward. Not counted are
    activations and the buckets that messages leave from.
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
    comm: MPI.Intracomm, model: str, config: Config, data: Dataset, *, epochs: int, seed: int = 0
) -> float:
    """The accuracy on the test images after some epochs; DeepSpeed's world is `comm`."""
    engine = start_engine(build(model, seed=seed), config)
    step = deepspeed_step(engine, summed_cross_entropy)
    batch_size = config["train_batch_size"]
    for epoch in range(epochs):
        fit(step, rank_batches(data, batch_size, rank=comm.rank, size=comm.size, seed=seed, epoch=epoch))
    accuracy = score_whole(comm, engine, model, data, len(data.test_labels))
    end_engine(engine)
    return accuracy


def score_whole(comm: MPI.Intracomm, engine: Any, model: str, data: Dataset, images: int) -> float:
    """The accuracy of the whole model on the first `images` test images, each tested by one rank."""
    net = whole_model(engine, build(model, seed=0))
    mine = range(min(images, len(data.test_labels)))[comm.rank :: comm.size]
    parts = (mine[start : start + EVALUATION_BATCH] for start in range(0, len(mine), EVALUATION_BATCH))
    batches = (image_batch(data.test_images, data.test_labels, np.array(part), len(part)) for part in parts)
    score = evaluate(net, summed_cross_entropy, batches)
    return sum(comm.allgather(score), Score()).accuracy


def whole_model(engine: Any, net: nn.Module) -> nn.Module:
    """`net` with the weights of `engine`, in float32, and this rank's statistics of batch-norm."""
    copy_back(gathered_weights(engine).float(), list(net.parameters()))
    for mine, theirs in zip(net.buffers(), engine.module.buffers(), strict=True):
        mine.copy_(theirs)
    return net
