"""Real MNIST, from the folder that COURSE_DATA names."""

import gzip
import os
import shutil

import numpy as np
import pytest

from course_lib.data.downloads import find_file, read_registry
from course_lib.data.mnist import in_course_data, load_mnist
from course_lib.data.storage import DataError

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


@pytest.fixture
def own_copy(folder, tmp_path, monkeypatch):
    """A copy of the files, gzipped or not, that COURSE_DATA names instead."""
    for file in read_registry("mnist").files:
        shutil.copy(find_file(folder, file), tmp_path)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    return tmp_path


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


def test_unpacked_files_are_the_same_as_gzipped_ones(own_copy):
    before = load_mnist()
    for path in own_copy.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = load_mnist()
    np.testing.assert_array_equal(before.train_images, after.train_images)
    np.testing.assert_array_equal(before.test_labels, after.test_labels)


def test_one_changed_label_makes_it_your_own(own_copy):
    path = find_file(own_copy, read_registry("mnist").files[1])
    content = bytearray(unpacked(path))
    content[8] = 4  # the first label is 5
    path.write_bytes(gzip.compress(bytes(content)))
    mnist = load_mnist()
    assert not mnist.real and mnist.train_labels[0] == 4
    assert mnist.source.startswith("Your own data in the format of MNIST (60 000 + 10 000 images) from")


def unpacked(path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def test_a_copy_that_broke_off_is_found(own_copy):
    path = find_file(own_copy, read_registry("mnist").files[0])
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"truncated|expected 47040000"):
        load_mnist()
