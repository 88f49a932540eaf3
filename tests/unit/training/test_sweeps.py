"""Sweeps: alike in all but what is swept; what diverges is said to; what is not reached as well."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from course.lessons.l05_training_one_process import sweeps
from course.lessons.l05_training_one_process.sweeps import learning_rate_sweep, samples_to_reach
from course.lessons.l05_training_one_process.trials import Reached
from course_lib.data.dataset import Dataset
from course_lib.training.loop import (
    evaluate,
    fit,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import build


def striped(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that a network learns soon: label k is a bright stripe over rows 2k and 2k + 1."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, samples)
    images = rng.integers(0, 100, (samples, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] = 255
    return images, labels


DATA = Dataset("striped", False, *striped(400, 0), *striped(100, 1))


def test_a_trial_is_the_training_loop() -> None:
    (trial,) = learning_rate_sweep(DATA, [0.05], batch_size=32, steps=20, seed=4)
    model = build("mlp", seed=4)
    step = make_step(model, summed_cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05))
    order = [*shuffled_batches(400, 32, seed=4), *shuffled_batches(400, 32, seed=4, epoch=1)][:20]
    epoch = fit(step, image_batches(DATA.train_images, DATA.train_labels, order))
    score = evaluate(
        model, summed_cross_entropy, image_batches(DATA.test_images, DATA.test_labels, [np.arange(100)])
    )
    assert np.allclose(trial.losses, epoch.losses, rtol=1e-6)
    assert trial.loss == pytest.approx(score.mean_loss, rel=1e-6)
    assert (trial.steps, trial.samples) == (20, epoch.samples)
    assert not trial.diverged


def test_too_small_stands_still_too_large_diverges_and_one_between_learns() -> None:
    small, good, large = learning_rate_sweep(DATA, [1e-6, 0.1, 1e5], batch_size=32, steps=40)
    assert small.loss == pytest.approx(small.losses[0], rel=0.1)
    assert good.loss < 0.2 * small.loss
    assert large.diverged and math.isinf(large.loss)
    assert large.steps < 40, "a training without numbers goes on for nothing"


def test_all_trials_begin_with_the_same_loss() -> None:
    trials = learning_rate_sweep(DATA, [0.001, 0.1], steps=2)
    assert len({trial.losses[0] for trial in trials}) == 1


def test_what_it_took_is_told_in_samples_and_steps() -> None:
    few, many = (samples_to_reach(DATA, size, 0.05, target=0.5, most=8000) for size in (16, 100))
    assert few.samples is not None and many.samples is not None
    assert few.samples % 16 == 0 and few.steps == few.samples // 16
    assert many.samples > 2 * few.samples, "at one learning rate, big batches see more samples for the same"


def test_a_shorter_batch_at_the_end_of_an_epoch_is_a_step_too() -> None:
    """400 images make two batches, of 300 and of 100."""
    reached = samples_to_reach(DATA, 300, 0.05, target=0.5)
    assert reached.samples is not None and reached.samples > 400
    epochs, rest = divmod(reached.samples, 400)
    assert reached.steps == 2 * epochs + (rest > 0)


def test_a_target_out_of_reach_ends_after_the_most_samples() -> None:
    reached = samples_to_reach(DATA, 50, 1e-7, target=0.01, most=500)
    assert reached == Reached(1e-7, 50, 0.01)
    assert reached.steps is None


def test_a_target_out_of_reach_ends_after_the_most_steps() -> None:
    batches = []
    training_losses = sweeps.Training.losses

    def counted(self: sweeps.Training) -> Iterator[float]:
        for loss in training_losses(self):
            batches.append(loss)
            yield loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.Training, "losses", counted)
        assert samples_to_reach(DATA, 2, 1e-7, target=0.01, most=10**9, most_steps=7).samples is None
    assert len(batches) == 7


def test_the_answer_is_at_most_a_tenth_too_large() -> None:
    """Held to a look after every step."""
    found = samples_to_reach(DATA, 16, 0.05, target=0.5, most=8000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "BETWEEN_TESTS", 1.0)
        exact = samples_to_reach(DATA, 16, 0.05, target=0.5, most=8000)
    assert found.samples is not None and exact.samples is not None
    assert exact.samples <= found.samples <= 1.1 * exact.samples + 16


def test_a_diverging_training_reaches_nothing_and_ends() -> None:
    reached = samples_to_reach(DATA, 50, 1e5, target=0.01, most=10**9)
    assert reached.samples is None and reached.diverged
