"""What a forward pass keeps, against nets for which it can be counted by hand."""

import torch
from torch import nn

from course_lib.training.kept import kept_bytes


def kept(model: nn.Module, x: torch.Tensor) -> int:
    results = []
    return kept_bytes(model, lambda: results.append(model(x)) or results[0])


def test_a_linear_layer_keeps_its_input_and_not_its_weight() -> None:
    assert kept(nn.Linear(5, 3), torch.ones(2, 5)) == 2 * 5 * 4


def test_what_two_layers_share_is_counted_once() -> None:
    """Tanh keeps its result, which is the input that the next layer keeps."""
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    assert kept(net, torch.ones(2, 5)) == (2 * 5 + 2 * 7) * 4


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    with torch.no_grad():
        assert kept(nn.Linear(5, 3), torch.ones(2, 5)) == 0
