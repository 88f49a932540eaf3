"""Central differences find a wrong gradient, let a right one through, and leave the numbers alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.training.gradient_check import central_difference


def test_the_difference_of_a_parabola_is_exact_and_leaves_the_numbers_alone() -> None:
    numbers = np.array([[1.0, 2.0], [3.0, -4.0]])
    before = numbers.copy()
    slope = central_difference(lambda: float((numbers**2).sum()), numbers, (1, 1), h=0.5)
    assert slope == pytest.approx(-8, rel=1e-12)
    assert np.array_equal(numbers, before)


class Doubled(torch.autograd.Function):
    """Twice its input; its backward forgets the factor."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("wrong", [False, True])
def test_a_wrong_backward_shows_in_what_comes_before_it(wrong: bool) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
    inputs, targets = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])

    def loss() -> torch.Tensor:
        hidden = torch.tanh(first(inputs))
        return F.cross_entropy(last(Doubled.apply(hidden) if wrong else 2 * hidden), targets)

    loss().backward()
    for layer, is_wrong in ((first, wrong), (last, False)):
        assert layer.weight.grad is not None
        slope = central_difference(lambda: loss().item(), layer.weight.detach().numpy(), (1, 2))
        assert (abs(layer.weight.grad[1, 2].item() / slope - 1) > 0.1) == is_wrong
