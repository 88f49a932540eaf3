"""The memory of a model in training, against published figures, PyTorch's Adam, and what autograd keeps."""

import pytest
import torch

from course_lib.theory.memory import (
    ADAM_FP32,
    ADAM_MIXED,
    STAGES,
    bytes_per_parameter,
)
from course_lib.training.kept import kept_bytes
from course_lib.training.transformer import build_transformer
from tests.formulas import (
    MOMENTUM_FP32,
    MOMENTUM_MIXED,
    SGD_FP32,
    SGD_MIXED,
    held_state,
    moved_bytes,
    transformer_activations,
    volume,
)


@pytest.mark.parametrize(("parameters", "published_gb"), [(1_500_000_000, 24), (7_500_000_000, 120)])
def test_mixed_precision_adam_needs_what_the_zero_paper_says(parameters: int, published_gb: int) -> None:
    assert ADAM_MIXED.total * parameters == published_gb * 10**9


def test_full_precision_counts_what_torch_allocates() -> None:
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 30)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    moments = [t for s in optimizer.state.values() for t in s.values() if t.ndim > 0]  # not the step counters
    assert count * ADAM_FP32.weights == sum(p.nbytes for p in parameters)
    assert count * ADAM_FP32.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    assert count * ADAM_FP32.optimizer == sum(t.nbytes for t in moments)


# ------------------------------------------------------------------ ZeRO

PUBLISHED_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}  # figure 1 of the paper: 7.5 billion parameters, 64 ranks


@pytest.mark.parametrize(("stage", "published"), PUBLISHED_GB.items())
def test_bytes_per_rank_are_those_of_the_zero_papers_figure(stage: int, published: float) -> None:
    assert round(7.5 * bytes_per_parameter(stage, 64), 1) == published


def test_the_formula_is_the_mean_of_what_ranks_hold() -> None:
    for each in (ADAM_FP32, ADAM_MIXED, MOMENTUM_FP32, MOMENTUM_MIXED, SGD_FP32, SGD_MIXED):
        for stage in STAGES:
            total = sum(held_state([8, 12], stage, 4, rank, each).total for rank in range(4))
            assert total / 4 / 20 == bytes_per_parameter(stage, 4, each)


def test_stage_3_moves_half_as_much_again() -> None:
    assert [volume(stage) for stage in STAGES] == [2, 2, 2, 3]
    moved = [moved_bytes(100, stage, 4) for stage in STAGES]
    assert moved == [2400, 2400, 2400, 3600]
    assert [moved_bytes(100, stage, 1) for stage in STAGES] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("batch", "length", "width", "heads", "layers"),
    [(2, 16, 32, 4, 1), (3, 33, 64, 8, 3)],
)
def test_activations_are_what_autograd_keeps(
    batch: int, length: int, width: int, heads: int, layers: int
) -> None:
    model = build_transformer(vocabulary=50, length=40, width=width, heads=heads, layers=layers, seed=0)
    tokens = torch.randint(50, (batch, length))
    predicted = transformer_activations(batch=batch, length=length, width=width, heads=heads, layers=layers)
    assert predicted == kept_bytes(model, lambda: model(tokens))


def test_a_stage_or_a_number_of_ranks_that_is_not_is_refused() -> None:
    for stage, ranks in ((4, 2), (-1, 2), (1, 0)):
        with pytest.raises(ValueError, match=f"no stage {stage} on {ranks} ranks"):
            bytes_per_parameter(stage, ranks)
