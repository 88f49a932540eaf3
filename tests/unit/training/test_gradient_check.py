"""Central differences find a wrong backward pass, and let a right one through."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.training import by_hand
from course_lib.training.gradient_check import TOLERANCE, central_difference, check_model, gradient_errors
from course_lib.training.loop import Batch, summed_cross_entropy
from course_lib.training.models import build

IMAGES = np.random.default_rng(0).normal(size=(6, 5))
LABELS = np.array([0, 2, 1, 1, 0, 2])
WEIGHTS = by_hand.initial_weights(5, 7, 3, seed=1)


def errors_of(backward) -> dict[str, float]:
    gradients = backward(WEIGHTS, IMAGES, LABELS)
    return gradient_errors(lambda: by_hand.mean_loss(WEIGHTS, IMAGES, LABELS), WEIGHTS, gradients)


def wrong_relu(weights, images, labels):
    """The mask of a relu that lets everything through: what comes out of it is never below 0."""
    hidden, probabilities = by_hand.forward(weights, images)
    at_logits = (probabilities - np.eye(3)[labels]) / len(labels)
    at_hidden = (at_logits @ weights["w2"].T) * (hidden >= 0)
    outer = by_hand.backward(weights, images, labels)
    return outer | {"w1": images.T @ at_hidden, "b1": at_hidden.sum(axis=0)}


def test_the_backward_by_hand_passes() -> None:
    errors = errors_of(by_hand.backward)
    assert errors.keys() == {"w1", "b1", "w2", "b2"}
    assert max(errors.values()) < 1e-8


def test_the_backward_by_hand_is_that_of_autograd() -> None:
    weights = {name: torch.tensor(values, requires_grad=True) for name, values in WEIGHTS.items()}
    hidden = F.relu(torch.tensor(IMAGES) @ weights["w1"] + weights["b1"])
    loss = F.cross_entropy(hidden @ weights["w2"] + weights["b2"], torch.tensor(LABELS))
    loss.backward()
    assert by_hand.mean_loss(WEIGHTS, IMAGES, LABELS) == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in by_hand.backward(WEIGHTS, IMAGES, LABELS).items():
        assert np.allclose(gradient, weights[name].grad.numpy(), rtol=1e-10, atol=1e-14)


def test_a_wrong_relu_is_found_where_it_is_and_nowhere_else() -> None:
    errors = errors_of(wrong_relu)
    assert errors["w1"] > 0.01 and errors["b1"] > 0.01
    assert errors["w2"] < TOLERANCE and errors["b2"] < TOLERANCE


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("factor", [6.0, 1 / 6, -1.0, 0.0, 1.001])
def test_a_wrong_factor_is_found(name: str, factor: float) -> None:
    def scaled(*arguments):
        gradients = by_hand.backward(*arguments)
        return gradients | {name: factor * gradients[name]}

    errors = errors_of(scaled)
    assert errors.pop(name) > 100 * TOLERANCE
    assert max(errors.values()) < TOLERANCE


def test_logits_of_any_size_have_a_loss() -> None:
    huge = {name: 1000 * values for name, values in WEIGHTS.items()}
    _, probabilities = by_hand.forward(huge, IMAGES)
    assert np.isfinite(probabilities).all()
    assert np.allclose(probabilities.sum(axis=1), 1)


def test_the_difference_of_a_parabola_is_exact_and_leaves_the_numbers_alone() -> None:
    numbers = np.array([[1.0, 2.0], [3.0, -4.0]])
    before = numbers.copy()
    slope = central_difference(lambda: float((numbers**2).sum()), numbers, (1, 1), h=0.5)
    assert slope == pytest.approx(-8, rel=1e-12)
    assert np.array_equal(numbers, before)


def test_a_parameter_that_the_loss_does_not_read_has_no_error() -> None:
    unread = {"unread": np.ones(3)}
    assert gradient_errors(lambda: 1.0, unread, {"unread": np.zeros(3)}) == {"unread": 0.0}
    assert gradient_errors(lambda: 1.0, unread, {"unread": np.full(3, 1e-3)})["unread"] == 1.0


def test_float32_is_refused_with_the_remedy() -> None:
    coarse = {"w": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match="w is float32, too coarse for differences; use float64"):
        gradient_errors(lambda: 0.0, coarse, coarse)


# ------------------------------------------------------------------ models of torch


class Doubled(torch.autograd.Function):
    """Twice its input; its backward forgets the factor."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Forgetful(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.first, self.last, self.wrong = nn.Linear(4, 5), nn.Linear(5, 3), wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(Doubled.apply(hidden) if self.wrong else 2 * hidden)


def small_batch(*shape: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.tensor([0, 1, 2]), 3)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_wrong_backward_of_a_layer_shows_in_what_comes_before_it(wrong: bool) -> None:
    torch.manual_seed(0)
    errors = check_model(Forgetful(wrong).double(), summed_cross_entropy, small_batch(4))
    assert all((error > 0.1) == (wrong and name.startswith("first")) for name, error in errors.items())
    assert all(error < TOLERANCE or error > 0.1 for error in errors.values())


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_the_models_of_the_course_have_right_gradients(name: str) -> None:
    model = build(name, seed=0).double()
    errors = check_model(model, summed_cross_entropy, small_batch(1, 28, 28), h=1e-6, most=12)
    assert errors.keys() == {name for name, _ in model.named_parameters()}
    assert max(errors.values()) < TOLERANCE
