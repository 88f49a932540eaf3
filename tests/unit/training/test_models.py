"""The models have the sizes they claim, and their weights depend on (seed, name) and nothing else."""

import pytest
import torch
from torch.nn import functional as F

from course_lib.training.models import MNIST_MODELS, MODELS, build, parameter_count


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mlp", 235_146),
        ("cnn", 421_642),
        ("lstm", 82_186),
        ("cifar", 62_006),
        ("convnet", 136_930),
    ],
)
def test_each_model_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert parameter_count(build(name, seed=0)) == parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [0, 5])
def test_each_model_turns_images_into_logits_and_has_every_gradient(name: str, batch: int) -> None:
    model = build(name, seed=0)
    logits = model(torch.rand(batch, *((1, 28, 28) if name in MNIST_MODELS else (3, 32, 32))))
    assert logits.shape == (batch, 10)
    F.cross_entropy(logits, torch.zeros(batch, dtype=torch.long), reduction="sum").backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_the_seed_alone_and_building_leaves_the_generator_as_it_was(name: str) -> None:
    first = dict(build(name, seed=7).named_parameters())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = dict(build(name, seed=7).named_parameters())
    assert torch.equal(torch.get_rng_state(), state)
    other = dict(build(name, seed=1).named_parameters())
    assert all(torch.equal(first[key], second[key]) for key in first)
    drawn = [key for key in first if "norm" not in key]  # norms start as the identity
    assert all(not torch.equal(first[key], other[key]) for key in drawn)


def test_pooling_before_relu_computes_what_relu_before_pooling_does() -> None:
    model = build("cnn", seed=0).double()
    images = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    maps = F.max_pool2d(F.relu(model.conv1(images)), 2)
    maps = F.max_pool2d(F.relu(model.conv2(maps)), 2)
    expected = model.fc2(F.relu(model.fc1(maps.contiguous().flatten(1))))
    assert torch.allclose(model(images), expected, rtol=0, atol=1e-12)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no model 'vgg'; choose one of mlp, cnn, lstm"):
        build("vgg", seed=0)
