"""The digits that stand in for MNIST: what they are, that they do not change, how hard they are."""

import sys

import numpy as np
import pytest
import torch
from matplotlib.ft2font import FT2Font

from course_lib.data import drawn_digits
from course_lib.data.drawn_digits import (
    DIGIT,
    FIELD,
    OUTLINE,
    TEST_ONLY,
    Strokes,
    digit_fonts,
    distance_to,
    draw_digits,
    inverse_affine,
    load_glyphs,
    look_up,
    outline,
    render,
)
from course_lib.data.storage import DataError
from course_lib.training.loop import (
    evaluate,
    fit,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.models import CNN


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
    first, again, other = draw_digits(250), draw_digits(250), draw_digits(250, seed=5)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).any(axis=(1, 2)).all()


def test_no_test_image_is_a_training_image(digits):
    images, _, test_images, _ = digits
    assert not {image.tobytes() for image in images} & {image.tobytes() for image in test_images}
    assert (draw_digits(200)[1] != draw_digits(200, test=True)[1]).any()


def test_no_two_images_are_the_same(digits):
    assert len({image.tobytes() for image in digits[0]}) == 12_000


def test_fonts_whose_digits_are_symbols_are_left_out():
    names = {path.stem for path in digit_fonts()}
    assert {"DejaVuSans", "STIXGeneral", "cmr10"} | set(TEST_ONLY) <= names
    with_characters = {
        path.stem
        for path in digit_fonts()[0].parent.glob("*.ttf")
        if all(FT2Font(str(path)).get_char_index(ord(str(digit))) for digit in range(10))
    }
    assert {
        "cmsy10",
        "cmex10",
        "LastResortHE-Regular",
    } <= with_characters - names  # what an easier test lets in


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


def test_a_distance_is_the_one_to_the_nearest_marked_pixel():
    marked = np.random.default_rng(3).random((12, 12)) < 0.08
    rows, columns = np.nonzero(marked)
    brute = [[np.hypot(rows - r, columns - c).min() for c in range(12)] for r in range(12)]
    np.testing.assert_allclose(distance_to(marked), brute, rtol=1e-6)


def test_an_outline_fills_the_same_length_in_every_font():
    for path in digit_fonts():
        ink = outline(path, 8)
        length = max(np.ptp(np.nonzero(ink.any(axis))[0]) + 1 for axis in (0, 1))
        assert abs(length - OUTLINE) <= 1, path.stem


def test_a_field_is_looked_up_linearly_between_pixels():
    row, column = np.mgrid[:FIELD, :FIELD].astype(np.float32)
    plane = np.stack([2 * column - 3 * row, column + row])
    rng = np.random.default_rng(2)
    columns, rows = rng.uniform(0, FIELD - 1.5, (2, 2, 28, 28)).astype(np.float32)
    expected = np.stack([2 * columns[0] - 3 * rows[0], columns[1] + rows[1]])
    np.testing.assert_allclose(look_up(plane, columns, rows), expected, atol=1e-4)


def test_the_inverse_undoes_turn_slant_and_scale():
    turn, slant, scale = np.float32([0.3]), np.float32([-0.2]), np.float32([[0.8, 1.1]])
    turned = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    forward = np.array([[1, -0.2], [0, 1]]) @ turned @ np.diag([0.8, 1.1])
    np.testing.assert_allclose(inverse_affine(turn, slant, scale)[0] @ forward, np.eye(2), atol=1e-6)


def test_a_plain_hand_draws_the_outline_itself():
    path = next(path for path in digit_fonts() if path.stem == "DejaVuSans")
    font, none = load_glyphs().fonts.index("DejaVuSans"), np.zeros((1, 2, 3), np.float32)
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    plain = Strokes(
        np.eye(2, dtype=np.float32)[None], np.zeros((1, 2), np.float32), none, zero, one, one, none, zero
    )
    image = render(load_glyphs().fields[font, 3][None], plain, np.random.default_rng(0))[0]
    ink = outline(path, 3)
    area = ink.sum() * (DIGIT / OUTLINE) ** 2
    assert image.sum() / 255 == pytest.approx(area, rel=0.05)
    shrunk = np.round((np.arange(28) - 13.5) * OUTLINE / DIGIT + (FIELD - 1) / 2).astype(int)
    inside = (shrunk >= 0) & (shrunk < FIELD)
    nearest = ink[np.ix_(shrunk[inside], shrunk[inside])]
    agree = (image[np.ix_(inside, inside)] > 127) == nearest
    assert agree.mean() > 0.97


def linear_accuracy(images, labels, test_images, test_labels) -> float:
    """That of ridge regression to one-hot labels: the best that no hidden layer can do, nearly."""

    def inputs(pixels):
        return np.c_[pixels.reshape(len(pixels), -1) / 255, np.ones(len(pixels))]

    x = inputs(images)
    weights = np.linalg.solve(x.T @ x + 10 * np.eye(785), x.T @ np.eye(10)[labels])
    return ((inputs(test_images) @ weights).argmax(1) == test_labels).mean()


def cnn_accuracy(images, labels, test_images, test_labels) -> float:
    """That of the course's CNN after one pass over `images`."""
    torch.manual_seed(0)
    model = CNN()
    step = make_step(model, summed_cross_entropy, torch.optim.Adam(model.parameters(), 2e-3))
    fit(step, image_batches(images, labels, shuffled_batches(len(images), 64, seed=0)))
    batches = np.array_split(np.arange(len(test_images)), 8)
    return evaluate(model, summed_cross_entropy, image_batches(test_images, test_labels, batches)).accuracy


def test_a_cnn_learns_them_and_a_linear_model_does_not(digits):
    linear, cnn = linear_accuracy(*digits), cnn_accuracy(*digits)
    assert 0.6 < linear < 0.85
    assert cnn > 0.92


def test_wrong_labels_are_found_out(digits):
    images, labels, test_images, test_labels = digits
    assert linear_accuracy(images, np.roll(labels, 1), test_images, test_labels) < 0.2


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"matplotlib is not installed; install it .* or set COURSE_DATA"):
        drawn_digits.digit_fonts()
