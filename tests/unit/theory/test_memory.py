"""The memory of a model in training, against the published figures and against PyTorch's own Adam."""

import pytest
import torch

from course_lib.theory.memory import ADAM_FP32, ADAM_MIXED, GB, StateBytes, training_state


@pytest.mark.parametrize(("parameters", "published_gb"), [(1_500_000_000, 24), (7_500_000_000, 120)])
def test_mixed_precision_adam_needs_what_the_zero_paper_says(parameters: int, published_gb: int) -> None:
    assert training_state(parameters).total == published_gb * GB


def test_seven_billion_parameters_need_112_gb() -> None:
    state = training_state(7 * 10**9)
    assert (state.weights, state.gradients, state.optimizer) == (14 * GB, 14 * GB, 84 * GB)
    assert state.total == 112 * GB


def test_full_precision_counts_what_torch_allocates() -> None:
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 30)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    moments = [t for s in optimizer.state.values() for t in s.values() if t.ndim > 0]  # not the step counters
    state = training_state(count, ADAM_FP32)
    assert state.weights == sum(p.nbytes for p in parameters)
    assert state.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    assert state.optimizer == sum(t.nbytes for t in moments)


def test_mixed_precision_saves_nothing_per_parameter_in_all() -> None:
    assert ADAM_MIXED.total == ADAM_FP32.total == 16


def test_forgetting_the_master_copy_is_caught_by_the_published_figures() -> None:
    forgetful = StateBytes(weights=2, gradients=2, optimizer=8)
    assert training_state(7_500_000_000, forgetful).total != 120 * GB


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 parameter, not 0"):
        training_state(0)
