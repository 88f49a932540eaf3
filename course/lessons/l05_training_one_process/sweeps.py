"""What the learning rate and the batch size do: one training per value, alike in everything else.

Every training starts from the same weights and sees the samples in the same order. It is plain SGD without
momentum or decay, so that nothing else can explain a difference. The loss is measured on test images.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import count, islice

import numpy as np
from torch.optim import SGD

from course.lessons.l05_training_one_process.trials import Reached, Trial
from course_lib.data.dataset import Dataset
from course_lib.training.loop import (
    Batch,
    evaluate,
    image_batch,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import build

TEST_IMAGES = 1000
BETWEEN_TESTS = 1.08  # the test loss is measured whenever 8 % more samples have been seen


def learning_rate_sweep(
    data: Dataset,
    learning_rates: Iterable[float],
    *,
    name: str = "mlp",
    batch_size: int = 128,
    steps: int = 100,
    seed: int = 0,
) -> list[Trial]:
    """Train for `steps` steps with each learning rate; one trial each."""
    trials = []
    for learning_rate in learning_rates:
        training = Training(data, name, learning_rate, batch_size, seed)
        losses = tuple(islice(training.losses(), steps))
        trials.append(Trial(learning_rate, batch_size, losses, training.samples, training.test()))
    return trials


def samples_to_reach(
    data: Dataset,
    batch_size: int,
    learning_rate: float,
    *,
    target: float,
    most: int = 600_000,
    most_steps: int = 15_000,
    name: str = "mlp",
    seed: int = 0,
) -> Reached:
    """How many samples and steps it takes until the test loss is at most `target`.

    None if `most` samples or `most_steps` steps were not enough, or if the training diverged.

    The test loss is measured whenever 8 % more samples have been seen, so the answer may be that much too
    large.
    """
    training = Training(data, name, learning_rate, batch_size, seed)
    next_test = 0.0
    for steps, _ in enumerate(training.losses(), 1):
        if training.samples >= next_test:
            next_test = BETWEEN_TESTS * training.samples
            if training.test() <= target:
                return Reached(learning_rate, batch_size, target, training.samples, steps)
        if training.samples >= min(most, most_steps * batch_size):
            return Reached(learning_rate, batch_size, target)
    return Reached(learning_rate, batch_size, target, diverged=True)


class Training:
    """A model in training, step by step, and how many samples it has seen."""

    def __init__(self, data: Dataset, name: str, learning_rate: float, batch_size: int, seed: int) -> None:
        self.data, self.batch_size, self.seed, self.samples = data, batch_size, seed, 0
        self.model = build(name, seed=seed)
        optimizer = SGD(self.model.parameters(), lr=learning_rate)
        self.step = make_step(self.model, summed_cross_entropy, optimizer)
        few = np.arange(min(TEST_IMAGES, len(data.test_labels)))
        self.tests = image_batch(data.test_images, data.test_labels, few, len(few))

    def batches(self) -> Iterator[Batch]:
        """The batches of one epoch after another, without end."""
        for epoch in count():
            order = shuffled_batches(
                len(self.data.train_labels), self.batch_size, seed=self.seed, epoch=epoch
            )
            yield from image_batches(self.data.train_images, self.data.train_labels, order)

    def losses(self) -> Iterator[float]:
        """Train, and yield the loss of each step; stop when it is no longer a finite number."""
        for batch in self.batches():
            loss = self.step(batch)
            self.samples += len(batch.targets)
            yield loss
            if not math.isfinite(loss):
                return

    def test(self) -> float:
        """The mean loss on the test images; infinite where it is not a number."""
        loss = evaluate(self.model, summed_cross_entropy, [self.tests]).mean_loss
        return loss if math.isfinite(loss) else math.inf
