"""A recipe: its steps, its decay, whoever calls the optimizer, and what it comes to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from course_lib.data.dataset import Dataset
from course_lib.training.loop import image_batches, make_step, shuffled_batches, summed_cross_entropy
from course_lib.training.models import MNIST_MODELS, build
from course_lib.training.recipes import RECIPES, Recipe, decay_learning_rate, score_on_tests, train


def random_digits(train: int = 20, test: int = 7) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28)).astype(np.uint8)
    labels = rng.integers(0, 10, train + test)
    return Dataset("random", False, images[:train], labels[:train], images[train:], labels[train:])


def learning_rates(optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    return rates


def parameters() -> list[torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.zeros(3)
    return [parameter]


def test_every_model_of_mnist_has_a_recipe_of_the_same_batch_and_epochs() -> None:
    assert RECIPES.keys() == MNIST_MODELS.keys()
    assert {(recipe.batch_size, recipe.epochs) for recipe in RECIPES.values()} == {(128, 5)}


@pytest.mark.parametrize(("samples", "steps"), [(60_000, 5 * 469), (128, 5), (129, 10), (1, 5)])
def test_the_steps_count_the_shorter_last_batch(samples: int, steps: int) -> None:
    assert Recipe(0.1).steps(samples) == steps
    assert steps == 5 * len(shuffled_batches(samples, 128, seed=0))


def test_the_learning_rate_falls_along_a_line_to_zero() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.8)
    decay_learning_rate(optimizer, 4)
    assert learning_rates(optimizer, 6) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0, 0])


def test_any_optimizer_decays_and_groups_keep_their_proportions() -> None:
    groups = [{"params": parameters(), "lr": 0.1}, {"params": parameters(), "lr": 0.4}]
    optimizer = torch.optim.AdamW(groups)
    decay_learning_rate(optimizer, 2)
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.2])


def test_a_decay_can_be_resumed_where_it_was() -> None:
    first = torch.optim.SGD(parameters(), lr=0.8)
    scheduler = decay_learning_rate(first, 4)
    learning_rates(first, 3)
    resumed = torch.optim.SGD(parameters(), lr=0.8)
    decay_learning_rate(resumed, 4).load_state_dict(scheduler.state_dict())
    resumed.load_state_dict(first.state_dict())
    assert learning_rates(resumed, 2) == pytest.approx([0.2, 0])


def test_a_decay_over_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot decay over 0 steps; give the steps of all epochs"):
        decay_learning_rate(torch.optim.SGD(parameters(), lr=0.1), 0)


def test_training_by_recipe_is_the_loop_with_a_rate_for_each_step() -> None:
    data, recipe = random_digits(), Recipe(0.1, batch_size=8, epochs=2)
    model, oracle = build("mlp", seed=0), build("mlp", seed=0)
    reports = train(model, recipe, data, seed=3)
    optimizer = torch.optim.SGD(oracle.parameters(), lr=0.1, momentum=0.9)
    step, losses = make_step(oracle, summed_cross_entropy, optimizer), []
    for epoch in range(2):
        order = shuffled_batches(20, 8, seed=3, epoch=epoch)
        for batch in image_batches(data.train_images, data.train_labels, order):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - len(losses) / 6)
            losses.append(step(batch))
    assert [len(report.losses) for report in reports] == [3, 3]
    assert np.allclose([*reports[0].losses, *reports[1].losses], losses, rtol=1e-5)
    for ours, expected in zip(model.parameters(), oracle.parameters(), strict=True):
        assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-6)
    assert [report.samples for report in reports] == [20, 20]
    assert reports[-1].score == score_on_tests(model, data)
    assert reports[-1].score.samples == 7


def test_a_fixed_batch_on_each_of_eight_ranks_takes_an_eighth_of_the_steps() -> None:
    recipe = RECIPES["cnn"]
    on_eight = replace(recipe, batch_size=8 * recipe.batch_size)
    assert recipe.steps(60_000) == 2345 and on_eight.steps(60_000) == 295
