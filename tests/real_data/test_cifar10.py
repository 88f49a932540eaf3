"""Real CIFAR-10, from the folder that COURSE_DATA names."""

import os

import numpy as np
import pytest

from course_lib.data.cifar10 import find, from_pickle, known_batches, load_cifar10, sorted_sha256
from course_lib.data.packed import has_digest, read_within
from course_lib.data.storage import DataError
from course_lib.training.loop import CIFAR_DEVIATION, CIFAR_MEAN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set"),
]

BATCH_COUNTS = [
    [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981],
    [984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985],
    [994, 1042, 965, 997, 990, 1029, 978, 1015, 961, 1029],
    [1003, 963, 1041, 976, 1004, 1021, 1004, 981, 1024, 983],
    [1014, 1014, 952, 1016, 997, 1025, 980, 977, 1003, 1022],
]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("COURSE_OFFLINE", "1")


@pytest.fixture(scope="module")
def source():
    found = find()
    if found is None:
        pytest.skip("COURSE_DATA holds no CIFAR-10")
    return found


@pytest.fixture(scope="module")
def cifar(source):
    os.environ["COURSE_OFFLINE"] = "1"
    return load_cifar10()


def test_all_training_images_are_read_and_the_counts_are_the_known_ones(source, cifar):
    whole = source.has(known_batches()[1])
    train = 5 if whole else 4
    sizes = f"{train}0 000 + 10 000 images"
    assert cifar.real and cifar.source.startswith(f"CIFAR-10 ({sizes}) from COURSE_DATA")
    assert cifar.train_images.shape == (train * 10_000, 3, 32, 32)
    assert cifar.test_images.shape == (10_000, 3, 32, 32)
    batches = np.split(cifar.train_labels, train)
    assert [np.bincount(labels).tolist() for labels in batches] == BATCH_COUNTS[:train]
    expected = [1000] * 10 if whole else BATCH_COUNTS[4]
    assert np.bincount(cifar.test_labels).tolist() == expected


def test_the_pixels_have_their_known_means_and_deviations(source, cifar):
    images = (
        [cifar.train_images] if len(cifar.train_labels) == 50_000 else [cifar.train_images, cifar.test_images]
    )
    counts = sum(
        np.stack([np.bincount(batch[:, plane].ravel(), minlength=256) for plane in range(3)])
        for batch in images
    )
    values, shares = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    means = shares @ values
    assert means == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-7)
    assert np.sqrt(shares @ values**2 - means**2) == pytest.approx(
        [0.24703223, 0.24348513, 0.26158784], abs=1e-7
    )
    all_three = shares.mean(0)
    mean = all_three @ values
    assert mean == pytest.approx(CIFAR_MEAN, abs=5e-5)
    assert np.sqrt(all_three @ values**2 - mean**2) == pytest.approx(CIFAR_DEVIATION, abs=5e-5)


def test_a_real_file_with_one_changed_pixel_is_refused(source, tmp_path, monkeypatch):
    if not source.path.is_dir() or source.version.suffix:
        pytest.skip("not the files of the Python version")
    for batch in known_batches()[0]:
        os.symlink(source.file(batch), tmp_path / source.file(batch).name)
    first = known_batches()[0][0]
    path = tmp_path / source.file(first).name
    content = bytearray(read_within(path, 40_000_000, ""))
    assert has_digest(bytes(content), first.digests)
    rows = from_pickle(bytes(content))
    assert rows.shape == (10_000, 3073) and sorted_sha256(rows) == first.rows_sha256
    content[len(content) // 2] ^= 1
    path.unlink()
    (tmp_path / "data_batch_1").write_bytes(content)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"data_batch_1 is not opened: a pickle can run any code"):
        load_cifar10(train=1)


@pytest.mark.release
def test_the_binary_version_of_the_same_images_is_known_too(source, tmp_path, monkeypatch):
    if not source.path.is_dir() or source.version.suffix:
        pytest.skip("not the files of the Python version")
    for batch in known_batches()[0]:
        content = read_within(source.file(batch), 40_000_000, "")
        (tmp_path / f"{batch.name}.bin").write_bytes(from_pickle(content).tobytes())
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    data = load_cifar10(train=10, test=10)
    assert data.real and data.source.startswith("CIFAR-10 (10 + 10 images) from")
