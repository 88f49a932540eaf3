"""The digits that stand in for MNIST: what they are, that they do not change, how hard they are."""

import numpy as np
import pytest

from course_lib.data import drawn_digits
from course_lib.data.drawn_digits import TEST_ONLY, draw_digits, load_glyphs
from tests.unit.data.accuracies import net_accuracy, pixels, ridge_accuracy


@pytest.fixture(scope="module")
def digits():
    """12 000 training images and 2 000 test images."""
    return *draw_digits(12_000), *draw_digits(2_000, test=True)


def test_images_and_labels_have_mnists_types_and_about_equal_classes(digits):
    images, labels, test_images, _ = digits
    assert images.shape == (12_000, 28, 28) and images.dtype == np.uint8 and labels.dtype == np.int64
    counts = np.bincount(labels, minlength=10)
    assert len(counts) == 10 and abs(counts - 1200).max() < 150  # 4.5 standard errors
    for sample in (images, test_images):
        assert 0.10 < sample.mean() / 255 < 0.16  # MNIST: 0.13
        assert 0.22 < sample.std() / 255 < 0.32  # MNIST: 0.31
        assert (sample == 0).mean() > 0.3


def test_the_same_call_draws_the_same_digits():
    first, again = draw_digits(250), draw_digits(250)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_no_test_image_is_a_training_image(digits):
    images, _, test_images, _ = digits
    assert not {image.tobytes() for image in images} & {image.tobytes() for image in test_images}
    assert (draw_digits(200)[1] != draw_digits(200, test=True)[1]).any()


def test_some_fonts_are_drawn_in_test_images_only(monkeypatch):
    used: set[int] = set()
    glyphs = load_glyphs()

    class Spy:
        def __getitem__(self, key):
            used.update(key[0].tolist())
            return glyphs.fields[key]

    spied = drawn_digits.Glyphs(glyphs.fonts, Spy(), glyphs.pens)
    monkeypatch.setattr(drawn_digits, "load_glyphs", lambda: spied)
    held_out = {glyphs.fonts.index(font) for font in TEST_ONLY}
    draw_digits(1000)
    assert used == set(range(len(glyphs.fonts))) - held_out
    draw_digits(1000, test=True)
    assert used == set(range(len(glyphs.fonts)))


def linear_accuracy(images, labels, test_images, test_labels) -> float:
    return ridge_accuracy(pixels(images), labels, pixels(test_images), test_labels, penalty=10)


@pytest.mark.release
def test_a_cnn_learns_them_and_a_linear_model_does_not(digits):
    linear, cnn = linear_accuracy(*digits), net_accuracy("cnn", *digits, epochs=1, batch=64)
    assert 0.6 < linear < 0.85
    assert cnn > 0.92


def test_wrong_labels_are_found_out(digits):
    images, labels, test_images, test_labels = digits
    assert linear_accuracy(images, np.roll(labels, 1), test_images, test_labels) < 0.2
