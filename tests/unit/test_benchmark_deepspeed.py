"""The benchmark of DeepSpeed on CIFAR-10: which images train, validate and test."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import deepspeed_cifar
from course_lib.data.dataset import Dataset


def images(count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(first, first + count)
    return np.broadcast_to((numbers % 251)[:, None, None, None], (count, 3, 32, 32)).astype(np.uint8), numbers


@pytest.mark.parametrize("complete", (True, False))
def test_the_fifth_batch_validates_and_the_test_images_are_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, complete: bool
) -> None:
    """Whether CIFAR-10 is there with its test batch or without: then a file has the test images."""
    train = 5 if complete else 4
    data = Dataset("CIFAR-10", True, *images(train * 10, 0), *images(10, train * 10))
    monkeypatch.setattr(deepspeed_cifar, "FIFTH", 10)
    monkeypatch.setattr("course_lib.data.cifar10.load_cifar10", lambda: data)
    found = deepspeed_cifar.the_images(None, None, None)
    assert found.data.train_labels.tolist() == list(range(40))
    assert found.data.test_labels.tolist() == list(range(40, 50))
    assert (found.test.test_labels.tolist() if found.test else None) == (
        list(range(50, 60)) if complete else None
    )
    file = tmp_path / "more.bin"
    file.write_bytes(bytes([7]) + bytes(3072))
    found = deepspeed_cifar.the_images(20, 5, str(file))
    assert found.test is not None and found.test.test_labels.tolist() == [7]
    assert len(found.data.train_labels) == 20 and found.data.test_labels.tolist() == list(range(40, 45))


def test_augmentation_shifts_and_mirrors_each_image_as_it_was_drawn() -> None:
    images = np.random.default_rng(0).integers(1, 256, (3, 3, 32, 32), np.uint8)
    still, shifted, mirrored = deepspeed_cifar.augmented(images, np.array([[0, 0, 0], [2, -1, 0], [0, 0, 1]]))
    assert np.array_equal(still, images[0])
    assert np.array_equal(shifted[:, 2:, :-1], images[1, :, :-2, 1:])
    assert not shifted[:, :2].any() and not shifted[:, :, -1:].any()  # black moved in
    assert np.array_equal(mirrored[:, :, ::-1], images[2])


def test_each_epoch_changes_the_images_anew_and_all_ranks_draw_the_same() -> None:
    changes = deepspeed_cifar.draw_changes(500, 3, 1)
    assert np.array_equal(changes, deepspeed_cifar.draw_changes(500, 3, 1))
    assert not np.array_equal(changes, deepspeed_cifar.draw_changes(500, 3, 2))
    assert {*changes[:, :2].ravel()} == set(range(-deepspeed_cifar.SHIFT, deepspeed_cifar.SHIFT + 1))
    assert 200 < changes[:, 2].sum() < 300
