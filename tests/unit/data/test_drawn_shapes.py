"""The shapes that stand in for CIFAR-10: what they are, that they do not change, how hard they are."""

import numpy as np
import pytest
import torch

from course_lib.data.drawn_shapes import (
    CLASS_NAMES,
    PATTERNS,
    SHAPES,
    cross,
    disc,
    distances,
    draw_shapes,
    frames,
    ring,
    square,
    triangle,
)
from course_lib.training.loop import image_batch
from tests.unit.data.accuracies import net_accuracy, pixels, ridge_accuracy


@pytest.fixture(scope="module")
def shapes():
    """6 000 training images and 1 000 test images."""
    return *draw_shapes(6_000), *draw_shapes(1_000, test=True)


def test_images_and_labels_have_cifars_types_and_about_equal_classes(shapes):
    images, labels, test_images, _ = shapes
    assert images.shape == (6_000, 3, 32, 32) and images.dtype == np.uint8 and labels.dtype == np.int64
    counts = np.bincount(labels, minlength=10)
    assert len(counts) == len(CLASS_NAMES) == 10 and abs(counts - 600).max() < 105  # 4.5 standard errors
    for sample in (images, test_images):
        assert 0.38 < sample.mean() / 255 < 0.52  # CIFAR-10: 0.47
        assert 0.20 < sample.std() / 255 < 0.30  # CIFAR-10: 0.25


def test_the_same_call_draws_the_same_shapes():
    first, again = draw_shapes(250), draw_shapes(250)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_a_label_names_its_shape_and_its_pattern():
    assert CLASS_NAMES[0] == "striped disc" and CLASS_NAMES[9] == "spotted cross"
    rng = np.random.default_rng(0)
    x, y, radius = frames(10, rng)
    labels = np.arange(10)
    inside = distances(labels // len(PATTERNS), x, y, radius)
    for label, shape in zip(labels, (disc, square, triangle, ring, cross), strict=False):
        for number in (2 * label, 2 * label + 1):
            assert SHAPES[label] in CLASS_NAMES[number]
            expected = shape(x[number], y[number], radius[number])
            np.testing.assert_allclose(inside[number], expected, atol=1e-5)


def neighbour_accuracy(features, labels, test_features, test_labels) -> float:
    """That of the label of the nearest training image."""
    squares = (features**2).sum(1) - 2 * test_features @ features.T
    return float((labels[squares.argmin(1)] == test_labels).mean())


def colours(images):
    """The mean and the deviation of each colour."""
    planes = images.reshape(len(images), 3, -1).astype(np.float32) / 255
    return np.concatenate([planes.mean(2), planes.std(2)], axis=1)


@pytest.mark.release
def test_a_net_learns_them_and_neither_pixels_nor_colours_nor_neighbours_tell_them(shapes):
    images, labels, test_images, test_labels = shapes
    known = {
        "pixels": ridge_accuracy(pixels(images[:4000]), labels[:4000], pixels(test_images), test_labels, 100),
        "colours": ridge_accuracy(colours(images), labels, colours(test_images), test_labels, 100),
        "neighbour": neighbour_accuracy(pixels(images), labels, pixels(test_images), test_labels),
    }
    assert max(known.values()) < 0.4, known
    assert 0.6 < net_accuracy("cifar", *shapes, epochs=5, batch=32) < 0.95


def test_wrong_labels_are_found_out(shapes):
    images, labels, test_images, test_labels = shapes
    few = (images[:2000], np.random.default_rng(0).permutation(labels)[:2000], test_images, test_labels)
    assert net_accuracy("cifar", *few, epochs=5, batch=32) < 0.25


def test_coloured_images_become_standardised_inputs(shapes):
    images, labels, *_ = shapes
    batch = image_batch(images, labels, np.array([3, 1]), 2)
    assert batch.inputs.shape == (2, 3, 32, 32) and batch.inputs.dtype == torch.float32
    expected = (images[[3, 1]] / 255 - 0.4734) / 0.2516
    np.testing.assert_allclose(batch.inputs.numpy(), expected, atol=1e-6)
    assert batch.targets.tolist() == labels[[3, 1]].tolist()
