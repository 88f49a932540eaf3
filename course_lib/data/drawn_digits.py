"""Digits that stand in for MNIST where there is no network: drawn from matplotlib's own fonts.

    outline of a digit → distance of each point from its edge → where does this pixel of the image lie on
    the outline (rotated, sheared, scaled, shifted, bent)? → how thick is the pen? → blur, light, noise

A distance field is what makes it cheap: one field a digit and font, looked up at 784 places an image, gives
every pen width by a threshold. Three fonts appear in the test images only, so a model that has learnt the
fonts by heart is found out. Everything follows from the seed.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECIPE = 1  # to be raised with every change of the digits: caches of another recipe are made anew
SEED = 28
SIDE = 28  # pixels of an image
DIGIT = 20  # pixels of its longer side that the digit fills, as in MNIST
FIELD = 64  # pixels of a distance field
OUTLINE = 44  # of which the digit fills these
CHUNK = 100  # images drawn at once: what they need fits the core's cache
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEST_ONLY = ("DejaVuSerif-BoldItalic", "STIXGeneralItalic", "cmtt10")

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Glyphs:
    """The ten digits of every font, each as distances from its edge in pixels of an image: inside > 0."""

    fonts: tuple[str, ...]
    fields: Floats  # (fonts, 10, FIELD, FIELD)
    pens: Floats  # (fonts, 10), how wide the strokes are, in pixels of an image


@dataclass(frozen=True, slots=True, eq=False)
class Strokes:
    """How some digits are drawn: the fields are one-dimensional, one entry an image."""

    inverse: Floats  # (N, 2, 2), from the image to the outline
    shift: Floats  # (N, 2), in pixels
    bend: Floats  # (N, 2, 3): amplitude in pixels, wave number, phase; of x along y and of y along x
    widen: Floats  # pixels added to the pen on either side
    blur: Floats  # pixels over which the edge fades
    light: Floats  # of the full stroke, 0..1
    dry: Floats  # (N, 2, 3): how much of the ink runs out, wave number, phase; along x and along y
    noise: Floats  # deviation of a pixel, 0..1


def draw_digits(samples: int, *, test: bool = False) -> tuple[Images, Labels]:
    """`samples` images (N, 28, 28) of digits, white on black, and their labels (N).

    Training and test images come from different random streams; the same call returns the same.
    """
    glyphs = load_glyphs()
    fonts = [i for i, font in enumerate(glyphs.fonts) if test or font not in TEST_ONLY]
    rng = np.random.default_rng([SEED, int(test)])
    labels = rng.integers(0, 10, samples)
    images = np.empty((samples, SIDE, SIDE), np.uint8)
    for start in range(0, samples, CHUNK):
        part = slice(start, start + CHUNK)
        chosen = rng.choice(fonts, len(labels[part]))
        strokes = random_strokes(rng, glyphs.pens[chosen, labels[part]])
        images[part] = render(glyphs.fields[chosen, labels[part]], strokes, rng)
    return images, labels


def random_strokes(rng: np.random.Generator, pens: Floats) -> Strokes:
    """A hand for each of the digits drawn with `pens` (N): turned, slanted, stretched, moved, bent."""
    samples = len(pens)

    def between(low: float, high: float, *shape: int) -> Floats:
        return rng.uniform(low, high, (samples, *shape)).astype(np.float32)

    bend = np.stack([between(-2.0, 2.0, 2), between(0.15, 0.36, 2), between(0, 6.28, 2)], axis=-1)
    widen = (between(1.6, 4.2) - pens) / 2
    return Strokes(
        inverse=inverse_affine(between(-0.3, 0.3), between(-0.35, 0.35), between(0.75, 1.1, 2)),
        shift=between(-1.8, 1.8, 2),
        bend=bend,
        widen=np.maximum(widen, -pens / 6),  # thinner, and the thin parts of a letter would vanish
        blur=between(0.9, 1.9),
        light=between(0.8, 1.0),
        dry=np.stack([between(0, 0.8, 2), between(0.25, 0.7, 2), between(0, 6.28, 2)], axis=-1),
        noise=between(0.0, 0.15),
    )


def inverse_affine(turn: Floats, slant: Floats, scale: Floats) -> Floats:
    """Matrices (N, 2, 2) that undo a scaling by `scale` (N, 2), a shear by `slant`, a `turn` in radians."""
    cos, sin = np.cos(turn), np.sin(turn)
    rows = [[cos + slant * sin, slant * cos - sin], [sin, cos]]
    forward = np.moveaxis(np.array(rows), 2, 0) * scale[:, None, :]
    return np.linalg.inv(forward).astype(np.float32)


def render(fields: Floats, strokes: Strokes, rng: np.random.Generator) -> Images:
    """The images (N, 28, 28) of the distance fields (N, FIELD, FIELD) drawn with `strokes`."""
    distance = look_up(fields, *source_points(strokes)) + strokes.widen[:, None, None]
    ink = np.clip(0.5 + distance / strokes.blur[:, None, None], 0, 1) * wetness(strokes)
    ink += rng.standard_normal(ink.shape, np.float32) * strokes.noise[:, None, None]
    return np.round(np.clip(ink, 0, 1) * 255).astype(np.uint8)


def wetness(strokes: Strokes) -> Floats:
    """How much ink the pen holds at each pixel of the images (N, 28, 28), 0..1."""
    places = np.arange(SIDE, dtype=np.float32)
    lack, wave, phase = np.moveaxis(strokes.dry, 2, 0)[..., None]  # (N, 2, 1) each
    waves = lack * np.sin(wave * places + phase)  # (N, 2, 28)
    left = np.clip(1.5 + waves[:, 0, None, :] + waves[:, 1, :, None], 0, 1)
    return left * strokes.light[:, None, None]


def source_points(strokes: Strokes) -> tuple[Floats, Floats]:
    """Which column and row of the distance field each pixel of the images shows: two (N, 28, 28)."""
    middle = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    x = middle[None, None, :] - strokes.shift[:, 0, None, None]  # (N, 1, 28)
    y = middle[None, :, None] - strokes.shift[:, 1, None, None]  # (N, 28, 1)
    amplitude, wave, phase = np.moveaxis(strokes.bend, 2, 0)[..., None, None]  # (N, 2, 1, 1) each
    bent_x = x + amplitude[:, 0] * np.sin(wave[:, 0] * y + phase[:, 0])
    bent_y = y + amplitude[:, 1] * np.sin(wave[:, 1] * x + phase[:, 1])
    (a, b), (c, d) = np.moveaxis(strokes.inverse, 0, 2)[..., None, None] * np.float32(OUTLINE / DIGIT)
    centre = np.float32((FIELD - 1) / 2)
    return a * bent_x + b * bent_y + centre, c * bent_x + d * bent_y + centre


def look_up(fields: Floats, columns: Floats, rows: Floats) -> Floats:
    """The fields (N, FIELD, FIELD) at `columns` and `rows` (N, 28, 28), linear between four pixels."""
    columns, rows = np.clip(columns, 0, FIELD - 1.01), np.clip(rows, 0, FIELD - 1.01)
    column, row = np.floor(columns), np.floor(rows)
    right, down = columns - column, rows - row  # how far on the way to the next pixel
    at = (row * FIELD + column).astype(np.intp) + np.arange(len(fields))[:, None, None] * FIELD**2
    flat = fields.ravel()
    upper, lower = flat[at], flat[at + FIELD]
    upper += (flat[at + 1] - upper) * right
    lower += (flat[at + FIELD + 1] - lower) * right
    upper += (lower - upper) * down
    return upper


@cache
def load_glyphs() -> Glyphs:
    """The digits of matplotlib's fonts, as distance fields; some 0.5 s the first time."""
    fonts = digit_fonts()
    signed = np.array([[signed_distance(outline(font, digit)) for digit in range(10)] for font in fonts])
    area, edge = (signed > 0).sum((2, 3)), (np.abs(signed) < 0.5).sum((2, 3))
    pens = 2 * area / edge  # a stroke of length s and width w has area sw and an edge 2s, here 1 pixel wide
    return Glyphs(tuple(font.stem for font in fonts), signed, pens.astype(np.float32))


def digit_fonts() -> list[Path]:
    """Those of matplotlib's own fonts whose characters 0 to 9 are the digits, in the order of their names.

    Some have none, and some show symbols in their place: the glyph's name in the font shows which.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    def has_digits(path: Path) -> bool:
        font = FT2Font(str(path))
        indices = [font.get_char_index(ord(str(digit))) for digit in range(10)]
        return all(indices) and tuple(map(font.get_glyph_name, indices)) == DIGIT_NAMES

    paths = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf"))
    return [path for path in paths if has_digits(path)]


def outline(path: Path, digit: int) -> NDArray[np.bool_]:
    """`digit` in the font at `path`, OUTLINE pixels long and in the middle of (FIELD, FIELD): what is ink."""
    large = 10 * OUTLINE
    ink = ink_of(path, digit, OUTLINE * large / max(ink_of(path, digit, large).shape))
    up, left = ((FIELD - length) // 2 for length in ink.shape)
    canvas = np.zeros((FIELD, FIELD), bool)
    canvas[up : up + ink.shape[0], left : left + ink.shape[1]] = ink
    return canvas


def ink_of(path: Path, digit: int, size: float) -> NDArray[np.bool_]:
    """`digit` in the font at `path`, set in a type of `size` pixels, cut out."""
    from matplotlib.ft2font import FT2Font, LoadFlags

    font = FT2Font(str(path))
    font.set_size(size, 72)
    font.set_text(str(digit), 0, flags=LoadFlags.NO_HINTING)
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(font.get_image()) > 127
    return ink[np.ix_(ink.any(1), ink.any(0))]


def signed_distance(ink: NDArray[np.bool_]) -> Floats:
    """How far each pixel of `ink` is from its edge, in pixels of an image; positive where there is ink."""
    return (distance_to(~ink) - distance_to(ink)) * np.float32(DIGIT / OUTLINE)


def distance_to(marked: NDArray[np.bool_]) -> Floats:
    """How far each pixel of `marked` (rows, columns) is from the nearest marked one (Felzenszwalb 2012).

    The squared distance is the least of (step across)² + (step down)², so one axis after the other will do.
    """
    places = np.arange(marked.shape[-1], dtype=np.float32)
    steps = (places[:, None] - places) ** 2  # (from, to)
    squared = np.where(marked, np.float32(0), np.float32(1e6))
    for _ in range(2):  # each turn takes the last axis and swaps the two
        squared = np.min(squared[:, None, :] + steps, axis=2).T
    return np.sqrt(squared)
