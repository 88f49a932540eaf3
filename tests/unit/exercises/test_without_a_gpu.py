"""Builds of PyTorch differ in how they say that there is no GPU; exercise 12.3 understands both."""

from types import SimpleNamespace

import pytest
import torch

from course.lessons.l12_deepspeed_on_cifar.exercise_script import SCRIPT
from mpi_classroom.exercises import Wrong

SAID = {
    "CPU build": AssertionError("Torch not compiled with CUDA enabled"),
    "GPU build": RuntimeError(
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
    ),
}


def check(error: Exception) -> None:
    def train_net(net: torch.nn.Module, initialize: object, batches: object) -> None:
        raise error

    SCRIPT.check(SimpleNamespace(train_net=train_net), SimpleNamespace(rank=0, size=1), (1, False))


@pytest.mark.parametrize("build", SAID)
def test_a_copy_to_a_gpu_that_is_not_there_is_named(build: str) -> None:
    with pytest.raises(Wrong, match="a tensor should move to a GPU, and there is none: "):
        check(SAID[build])


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
