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
from course_lib.training.loop import (
    evaluate,
    fit,
    image_batch,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import build


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
    first, again, other = draw_shapes(250), draw_shapes(250), draw_shapes(250, seed=5)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).any(axis=(1, 2, 3)).all()


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


def ridge_accuracy(features, labels, test_features, test_labels) -> float:
    """That of ridge regression to one-hot labels: the best that no hidden layer can do, nearly."""
    x = np.c_[features, np.ones(len(features), np.float32)]
    penalty = 100 * np.eye(x.shape[1], dtype=np.float32)
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.eye(10, dtype=np.float32)[labels])
    test = np.c_[test_features, np.ones(len(test_features), np.float32)]
    return float(((test @ weights).argmax(1) == test_labels).mean())


def neighbour_accuracy(features, labels, test_features, test_labels) -> float:
    """That of the label of the nearest training image."""
    squares = (features**2).sum(1) - 2 * test_features @ features.T
    return float((labels[squares.argmin(1)] == test_labels).mean())


def pixels(images):
    return images.reshape(len(images), -1).astype(np.float32) / 255


def colours(images):
    """The mean and the deviation of each colour."""
    planes = images.reshape(len(images), 3, -1).astype(np.float32) / 255
    return np.concatenate([planes.mean(2), planes.std(2)], axis=1)


def net_accuracy(images, labels, test_images, test_labels) -> float:
    """That of the course's net for CIFAR-10 after five passes over `images`."""
    model = build("cifar", seed=1)
    step = make_step(model, summed_cross_entropy, torch.optim.Adam(model.parameters(), 2e-3))
    for epoch in range(5):
        order = shuffled_batches(len(labels), 32, seed=0, epoch=epoch)
        fit(step, image_batches(images, labels, order))
    batches = np.array_split(np.arange(len(test_labels)), 4)
    return evaluate(model, summed_cross_entropy, image_batches(test_images, test_labels, batches)).accuracy


@pytest.mark.release
def test_a_net_learns_them_and_neither_pixels_nor_colours_nor_neighbours_tell_them(shapes):
    images, labels, test_images, test_labels = shapes
    known = {
        "pixels": ridge_accuracy(pixels(images[:4000]), labels[:4000], pixels(test_images), test_labels),
        "colours": ridge_accuracy(colours(images), labels, colours(test_images), test_labels),
        "colours' neighbour": neighbour_accuracy(colours(images), labels, colours(test_images), test_labels),
        "neighbour": neighbour_accuracy(pixels(images), labels, pixels(test_images), test_labels),
        "majority": np.bincount(test_labels).max() / len(test_labels),
    }
    assert max(known.values()) < 0.4, known
    assert 0.6 < net_accuracy(*shapes) < 0.95


def test_wrong_labels_are_found_out(shapes):
    images, labels, test_images, test_labels = shapes
    few = (images[:2000], np.random.default_rng(0).permutation(labels)[:2000], test_images, test_labels)
    assert net_accuracy(*few) < 0.25


def test_coloured_images_become_standardised_inputs(shapes):
    images, labels, *_ = shapes
    batch = image_batch(images, labels, np.array([3, 1]), 2)
    assert batch.inputs.shape == (2, 3, 32, 32) and batch.inputs.dtype == torch.float32
    expected = (images[[3, 1]] / 255 - 0.4734) / 0.2516
    np.testing.assert_allclose(batch.inputs.numpy(), expected, atol=1e-6)
    assert batch.targets.tolist() == labels[[3, 1]].tolist()
