"""A recipe: its steps, and its decay, whoever calls the optimizer."""

import pytest
import torch

from course_lib.training.loop import shuffled_batches
from course_lib.training.recipes import Recipe, decay_learning_rate


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


@pytest.mark.parametrize(("samples", "steps"), [(60_000, 5 * 469), (128, 5), (129, 10)])
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
