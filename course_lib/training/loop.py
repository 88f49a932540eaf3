"""The one training loop of the course, and the one seam where ranks come in.

    for each batch:   forward → loss / global batch → backward → synchronize() → update

In one process `synchronize` does nothing; data parallelism sums the gradients there. The loss is a sum
over samples, divided *once* by the size of the global batch: so the losses and gradients of the shards of
a batch add up to those of the batch, however unevenly it was sharded.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from course_lib.training.metrics import Score, count_correct

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081  # of the training pixels, scaled to 0..1
CIFAR_MEAN, CIFAR_DEVIATION = 0.4734, 0.2516  # likewise, of all three colours
EVALUATION_BATCH = 250

SummedLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Synchronize = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples, and how many the global batch has that they are a part of."""

    inputs: torch.Tensor
    targets: torch.Tensor
    global_size: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """What `fit` saw: the loss of every step (of a shard: its part of the loss), samples, seconds."""

    losses: tuple[float, ...]
    samples: int
    seconds: float


Step = Callable[[Batch], float]


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy of `logits` (B, classes) and `labels` (B), summed over the batch."""
    return F.cross_entropy(logits, labels, reduction="sum")


def do_nothing() -> None:
    """What one process has to do to agree with the others."""


def make_step(
    model: nn.Module,
    loss_fn: SummedLoss,
    optimizer: Optimizer,
    synchronize: Synchronize = do_nothing,
) -> Step:
    """A function that trains `model` on one batch: returns its loss; of a shard, its part."""

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        outputs = model(batch.inputs)  # forward
        loss = loss_fn(outputs, batch.targets) / batch.global_size
        loss.backward()  # backward: the gradients of our samples
        synchronize()  # from here on: the gradients of the global batch
        optimizer.step()  # update
        return loss.item()

    return step


def microbatches(batch: Batch, size: int) -> Iterator[Batch]:
    """The samples of `batch` in pieces of `size`, the last maybe shorter; parts of the same global batch."""
    if size < 1:
        raise ValueError(f"a micro-batch of {size} samples cannot be trained on; use at least 1")
    pieces = zip(batch.inputs.split(size), batch.targets.split(size), strict=True)
    return (Batch(inputs, targets, batch.global_size) for inputs, targets in pieces)


def accumulate_gradients(model: nn.Module, loss_fn: SummedLoss, batch: Batch, microbatch_size: int) -> float:
    """Add the gradients of `batch` to those of `model`, one micro-batch after the other; return its loss.

    The activations in memory are those of one micro-batch. The result is that of the whole batch, unless a
    layer looks at the other samples, as batch-norm does.
    """
    total = 0.0
    for part in microbatches(batch, microbatch_size):
        loss = loss_fn(model(part.inputs), part.targets) / part.global_size
        loss.backward()  # adds to the gradients that are there
        total += loss.item()
    return total


def make_accumulating_step(
    model: nn.Module,
    loss_fn: SummedLoss,
    optimizer: Optimizer,
    microbatch_size: int,
    synchronize: Synchronize = do_nothing,
) -> Step:
    """The step of `make_step` in micro-batches: ranks still meet once, when all gradients are there."""

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = accumulate_gradients(model, loss_fn, batch, microbatch_size)
        synchronize()
        optimizer.step()
        return loss

    return step


def fit(step: Step, batches: Iterable[Batch]) -> Epoch:
    """Call `step` on every batch, and time it all, the loading of the batches included."""
    start = time.perf_counter()
    losses, samples = [], 0
    for batch in batches:
        losses.append(step(batch))
        samples += len(batch.targets)
    return Epoch(tuple(losses), samples, time.perf_counter() - start)


@torch.no_grad()
def evaluate(model: nn.Module, loss_fn: SummedLoss, batches: Iterable[Batch]) -> Score:
    """The score of `model` on all `batches`; the model is in evaluation mode meanwhile."""
    training, score = model.training, Score()
    model.eval()
    for batch in batches:
        outputs = model(batch.inputs)
        loss = loss_fn(outputs, batch.targets).item()
        score += Score(count_correct(outputs, batch.targets), len(batch.targets), loss)
    model.train(training)
    return score


def shuffled_batches(samples: int, batch_size: int, seed: int, epoch: int = 0) -> list[NDArray[np.int64]]:
    """range(samples) in the order of (`seed`, `epoch`), cut into batches; the last may be shorter."""
    if batch_size < 1:
        raise ValueError(f"a batch of {batch_size} samples cannot be trained on; use at least 1")
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return [order[start : start + batch_size] for start in range(0, samples, batch_size)]


def image_batch(
    images: NDArray[np.uint8], labels: NDArray[np.integer], indices: NDArray[np.int64], global_size: int
) -> Batch:
    """The images (N, 28, 28) and labels (N) at `indices`, as standardised inputs (B, 1, 28, 28).

    Images (N, 3, 32, 32) become inputs (B, 3, 32, 32).
    """
    grey = images.ndim == 3
    mean, deviation = (MNIST_MEAN, MNIST_DEVIATION) if grey else (CIFAR_MEAN, CIFAR_DEVIATION)
    pixels = torch.from_numpy(images[indices]).float() / 255
    targets = torch.from_numpy(labels[indices].astype(np.int64))
    return Batch(((pixels.unsqueeze(1) if grey else pixels) - mean) / deviation, targets, global_size)


def image_batches(
    images: NDArray[np.uint8], labels: NDArray[np.integer], batches: Iterable[NDArray[np.int64]]
) -> Iterator[Batch]:
    """The batches that one process trains on: each is its own global batch."""
    return (image_batch(images, labels, indices, len(indices)) for indices in batches)
