"""Mixed precision: products in bfloat16, and everything that is added up in float32."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from course.lessons.l05_training_one_process.mixed_precision import in_bfloat16, runs_in_bfloat16
from course.paths import ROOT
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.models import build

LABELS = torch.arange(32) % 10
STRIPES = torch.eye(10)[LABELS].repeat_interleave(2, dim=1)[:, None, :, None]  # label k: rows 2k and 2k + 1
NOISE = torch.randn(32, 1, 20, 28, generator=torch.Generator().manual_seed(0))
INPUTS = F.pad(2 * STRIPES + 0.3 * NOISE, (0, 0, 0, 8))
BATCH = Batch(INPUTS, LABELS, 32)


def gradients(model: torch.nn.Module) -> torch.Tensor:
    model.zero_grad()
    (summed_cross_entropy(model(BATCH.inputs), BATCH.targets) / 32).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_gradients_are_float32_and_right_to_two_digits_and_no_more(name: str) -> None:
    model = build(name, seed=0)
    if name == "lstm" and not runs_in_bfloat16(model.lstm):
        pytest.skip("this processor computes no LSTM in bfloat16; see test_without_avx_512")
    exact, mixed = gradients(model), gradients(in_bfloat16(model))
    assert exact.dtype == mixed.dtype == torch.float32
    error = float((mixed - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.05, "below 1e-4 it would not be bfloat16"


@pytest.mark.parametrize("instructions", ["AVX2", pytest.param("SSE41", marks=pytest.mark.slow)])
def test_without_avx_512_an_lstm_computes_in_float32_and_says_so(instructions: str) -> None:
    """As on most laptops; torch itself raises an error there."""
    program = """
import torch, warnings
from tests.unit.training.test_precision import *
model = build("lstm", seed=0)
with pytest.warns(UserWarning, match="cannot compute an LSTM in bfloat16, so the model computes in float32"):
    assert in_bfloat16(model) is model
with pytest.raises(RuntimeError, match="primitive"), torch.autocast("cpu", dtype=torch.bfloat16):
    model(INPUTS)
warnings.simplefilter("error")
assert in_bfloat16(build("cnn", seed=0))(INPUTS).dtype == torch.float32
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_asking_leaves_the_random_numbers_and_the_model_as_they_are() -> None:
    model = build("lstm", seed=0)
    before = gradients(model), torch.get_rng_state()
    runs_in_bfloat16(model.lstm)
    assert torch.equal(before[0], gradients(model)) and torch.equal(before[1], torch.get_rng_state())


def test_the_products_are_bfloat16_and_the_outputs_float32() -> None:
    model, seen = build("mlp", seed=0), []
    model.fc1.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    assert in_bfloat16(model)(INPUTS).dtype == torch.float32
    assert seen == [torch.bfloat16]


def test_it_has_the_very_parameters_of_the_model_and_they_stay_float32() -> None:
    model = build("cnn", seed=0)
    mixed = in_bfloat16(model)
    assert [id(p) for p in mixed.parameters()] == [id(p) for p in model.parameters()]
    make_step(mixed, summed_cross_entropy, torch.optim.SGD(mixed.parameters(), lr=0.1))(BATCH)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_small_updates_survive_in_float32_and_get_lost_in_bfloat16() -> None:
    """Why the weights stay float32: what a model that is bfloat16 altogether does wrong."""
    mixed, rounded = torch.ones(1), torch.ones(1, dtype=torch.bfloat16)
    for _ in range(100):
        mixed -= 0.001
        rounded -= 0.001
    assert mixed.item() == pytest.approx(0.9, abs=1e-4)
    assert rounded.item() == 1.0


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_training_learns_a_batch_by_heart_in_mixed_precision_too(name: str) -> None:
    model = build(name, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = make_step(in_bfloat16(model), summed_cross_entropy, optimizer)
    losses = [step(BATCH) for _ in range(40)]
    assert losses[-1] < 0.1 * losses[0]
