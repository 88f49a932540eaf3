"""What learning rate and batch do, tried: a training for each value, alike in all else.

Every training starts from the same weights and sees the samples in the same order. It is plain SGD, without
momentum and decay, so that nothing else explains a difference. The loss is that of images not trained on.
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
TESTS = 50  # of the loss, on the way to the most samples that a trial may have


# ------------------------------------------------------------------ one training after the other


def learning_rate_sweep(
    data: Dataset,
    learning_rates: Iterable[float],
    *,
    name: str = "mlp",
    batch_size: int = 128,
    steps: int = 100,
    seed: int = 0,
) -> list[Trial]:
    """A trial of `steps` steps for each learning rate."""
    trials = []
    for learning_rate in learning_rates:
        training = Training(data, name, learning_rate, batch_size, seed)
        losses = tuple(islice(training.losses(), steps))
        trials.append(Trial(learning_rate, batch_size, losses, training.samples, training.test()))
    return trials


def batch_sweep(
    data: Dataset,
    settings: Iterable[tuple[int, float]],
    *,
    target: float,
    most: int,
    name: str = "mlp",
    seed: int = 0,
) -> list[Reached]:
    """What each (batch size, learning rate) needs to reach the loss `target`, in at most `most` samples."""
    return [
        samples_to_reach(data, batch_size, learning_rate, target=target, most=most, name=name, seed=seed)
        for batch_size, learning_rate in settings
    ]


def samples_to_reach(
    data: Dataset,
    batch_size: int,
    learning_rate: float,
    *,
    target: float,
    most: int,
    name: str = "mlp",
    seed: int = 0,
) -> Reached:
    """Train until the loss of the test images is at most `target`, or `most` samples were seen.

    The test images are looked at every `most` / 50 samples, so the answer is a little too large at worst.
    """
    training = Training(data, name, learning_rate, batch_size, seed)
    next_test = 0
    for _ in training.losses():
        if training.samples >= next_test:
            next_test = training.samples + most // TESTS
            if training.test() <= target:
                return Reached(learning_rate, batch_size, target, training.samples)
        if training.samples >= most:
            break
    return Reached(learning_rate, batch_size, target, None)


class Training:
    """A model that is being trained: step by step, with the samples seen so far."""

    def __init__(self, data: Dataset, name: str, learning_rate: float, batch_size: int, seed: int) -> None:
        self.data, self.batch_size, self.seed, self.samples = data, batch_size, seed, 0
        self.model = build(name, seed=seed)
        optimizer = SGD(self.model.parameters(), lr=learning_rate)
        self.step = make_step(self.model, summed_cross_entropy, optimizer)
        few = np.arange(min(TEST_IMAGES, len(data.test_labels)))
        self.tests = image_batch(data.test_images, data.test_labels, few, len(few))

    def batches(self) -> Iterator[Batch]:
        """One epoch after the other, without end."""
        for epoch in count():
            order = shuffled_batches(
                len(self.data.train_labels), self.batch_size, seed=self.seed, epoch=epoch
            )
            yield from image_batches(self.data.train_images, self.data.train_labels, order)

    def losses(self) -> Iterator[float]:
        """Train, and give the loss of each step; end when it is no number any more."""
        for batch in self.batches():
            loss = self.step(batch)
            self.samples += len(batch.targets)
            yield loss
            if not math.isfinite(loss):
                return

    def test(self) -> float:
        """The mean loss of the test images; infinite when it is no number."""
        loss = evaluate(self.model, summed_cross_entropy, [self.tests]).mean_loss
        return loss if math.isfinite(loss) else math.inf
