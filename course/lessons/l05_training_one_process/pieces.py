"""A batch in pieces: a training whose batches are split, and what each piece adds to the gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from course_lib.data.dataset import Dataset
from course_lib.training.loop import Batch, image_batch, shuffled_batches, summed_cross_entropy
from course_lib.training.models import build

Accumulate = Callable[[nn.Module, Any, list[tuple[torch.Tensor, torch.Tensor]], int], object]


def train_in_pieces(
    accumulate: Accumulate, data: Dataset, lengths: Sequence[int], *, steps: int = 100
) -> nn.Module:
    """The MLP after `steps` steps of SGD, with every batch split into micro-batches of `lengths` images.

    `accumulate(model, loss_fn, microbatches, batch_size)` leaves the gradient of the batch in `.grad`, as in
    exercise 05.1. The batches do not depend on how they are split.
    """
    model, batch_size = build("mlp", seed=0), sum(lengths)
    optimizer = SGD(model.parameters(), lr=0.1)
    for indices in shuffled_batches(len(data.train_labels), batch_size, seed=0)[:steps]:
        batch = image_batch(data.train_images, data.train_labels, indices, batch_size)
        parts = zip(batch.inputs.split(list(lengths)), batch.targets.split(list(lengths)), strict=True)
        accumulate(model, F.cross_entropy, list(parts), batch_size)
        optimizer.step()
    return model


def parts_of_gradient(
    batch: Batch, lengths: Sequence[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What each micro-batch adds to the last layer's gradient (pieces, weights), and that gradient (weights).

    Taken are the first images of `batch`, as many as `lengths` adds up to. Each summed loss is divided by
    their number.
    """
    model, total = build("mlp", seed=0), sum(lengths)

    def added(images: torch.Tensor) -> NDArray[np.float32]:
        model.zero_grad()
        (summed_cross_entropy(model(batch.inputs[images]), batch.targets[images]) / total).backward()
        return model.get_parameter("fc3.weight").grad.flatten().clone().numpy()  # type: ignore[union-attr]

    images = torch.arange(total)
    return np.stack([added(part) for part in images.split(list(lengths))]), added(images)
