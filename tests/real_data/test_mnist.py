"""Real MNIST, from the folder that COURSE_DATA names."""

import os

import numpy as np
import pytest

from course_lib.data.downloads import read_registry
from course_lib.data.mnist import in_course_data, load_mnist

pytestmark = pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set")

TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("COURSE_OFFLINE", "1")


@pytest.fixture
def folder():
    found = in_course_data(read_registry("mnist"))
    if found is None:
        pytest.skip("COURSE_DATA holds no MNIST")
    return found


def test_all_of_mnist_is_read(folder):
    mnist = load_mnist()
    assert mnist.real and mnist.source.startswith("MNIST (60 000 + 10 000 images) from COURSE_DATA")
    assert mnist.train_images.shape == (60_000, 28, 28) and mnist.test_images.shape == (10_000, 28, 28)
    assert np.bincount(mnist.train_labels).tolist() == TRAIN_COUNTS
    assert np.bincount(mnist.test_labels).tolist() == TEST_COUNTS


def test_the_pixels_have_their_known_mean_and_deviation(folder):
    pixels = load_mnist().train_images / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


def test_the_first_training_image_is_the_famous_five(folder):
    mnist = load_mnist()
    assert mnist.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert mnist.train_images[0, 5, 12:24].tolist() == [3, 18, 18, 18, 126, 136, 175, 26, 166, 255, 247, 127]
