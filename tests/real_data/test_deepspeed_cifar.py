"""Real CIFAR-10 with DeepSpeed: two epochs on two ranks learn as much as two epochs in one process."""

import os

import pytest

from benchmarks.deepspeed_cifar import in_one_process, with_deepspeed
from benchmarks.harness import on_ranks

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        not os.environ.get("COURSE_DATA"), reason="COURSE_DATA names no folder with real data"
    ),
]
SIZES = {"seed": 0, "epochs": 2, "train": 20_000, "test": 5_000, "file": None}


def test_two_epochs_of_zero_2_learn_as_much_as_one_process() -> None:
    """All images and epochs reach more (benchmarks/results/deepspeed_cifar.json)."""
    ours = on_ranks(2, with_deepspeed, timeout=300, **SIZES)
    peer = on_ranks(1, in_one_process, timeout=300, **SIZES)
    assert ours["data"] == "CIFAR-10, 20000 images" and ours["validation_images"] == 5000
    assert ours["validation"] > 55
    assert abs(ours["validation"] - peer["validation"]) < 4  # two points are 1.4 standard errors
