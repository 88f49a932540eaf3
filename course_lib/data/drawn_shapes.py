"""Coloured shapes that stand in for CIFAR-10 where there is no network.

    where is this pixel in the shape's own frame (turned, scaled, moved)? → how far inside the shape?
    → shape over ground, each with two colours and a pattern → light → noise

A class is a shape and its pattern: striped or spotted disc, square, triangle, ring or cross. Size, place and
angle say nothing of it and colours little (each class has a favourite one, as ships are often blue), so a
model that looks at single pixels learns little, and one that has filters much. Everything follows from the
seed.
"""

import numpy as np
from numpy.typing import NDArray

RECIPE = 2  # to be raised with every change of the shapes: caches of another recipe are made anew
SEED = 32
SIDE = 32  # pixels of an image
CHUNK = 200  # images drawn at once: what they need fits the core's cache
FAVOUR = 0.8  # how close at most a shape's colour comes to the one of its class
SHAPES = ("disc", "square", "triangle", "ring", "cross")
PATTERNS = ("striped", "spotted")
CLASS_NAMES = tuple(f"{pattern} {shape}" for shape in SHAPES for pattern in PATTERNS)

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Floats = NDArray[np.float32]


def draw_shapes(samples: int, *, test: bool = False) -> tuple[Images, Labels]:
    """`samples` images (N, 3, 32, 32) of red, green and blue planes, and their labels (N), about balanced.

    Training and test images come from different random streams; the same call returns the same.
    """
    rng = np.random.default_rng([SEED, int(test)])
    labels = rng.integers(0, len(CLASS_NAMES), samples)
    images = np.empty((samples, 3, SIDE, SIDE), np.uint8)
    for start in range(0, samples, CHUNK):
        part = slice(start, start + CHUNK)
        images[part] = draw(labels[part], rng)
    return images, labels


def draw(labels: Labels, rng: np.random.Generator) -> Images:
    """One image (3, 32, 32) for each of the `labels` (N)."""
    samples = len(labels)
    x, y, radius = frames(samples, rng)
    inside = distances(labels // 2, x, y, radius)  # in pixels, (N, 32, 32)
    cover = np.clip(0.5 + inside / 1.5, 0, 1)[:, None]
    shape = mixed(pattern(labels % 2, samples, rng), *colours(rng, labels))
    ground = mixed(gradient(samples, rng), *uniform(rng, 0, 1, 2, samples, 3, 1, 1))
    light = uniform(rng, 0.75, 1.0, samples, 1, 1, 1)
    image = (ground + cover * (shape - ground)) * light
    image += rng.standard_normal(image.shape, np.float32) * uniform(rng, 0.03, 0.12, samples, 1, 1, 1)
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def uniform(rng: np.random.Generator, low: float, high: float, *shape: int) -> Floats:
    """Random numbers from `low` to `high`."""
    return (low + (high - low) * rng.random(shape, np.float32)).astype(np.float32)


def frames(samples: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Where each pixel is in the frame of its shape: x and y (N, 32, 32), and the radius (N, 1, 1)."""
    angle, radius = uniform(rng, 0, 2 * np.pi, samples, 1, 1), uniform(rng, 8, 12.5, samples, 1, 1)
    middle = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    across = middle[None, None, :] - uniform(rng, -4, 4, samples, 1, 1)
    down = middle[None, :, None] - uniform(rng, -4, 4, samples, 1, 1)
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * across + sin * down, cos * down - sin * across, radius


def distances(shapes: Labels, x: Floats, y: Floats, radius: Floats) -> Floats:
    """How far inside its shape each pixel (N, 32, 32) is, negative outside, about in pixels."""
    inside = np.empty_like(x)
    for number, distance in enumerate((disc, square, triangle, ring, cross)):
        chosen = shapes == number
        inside[chosen] = distance(x[chosen], y[chosen], radius[chosen])
    return inside


def disc(x: Floats, y: Floats, radius: Floats) -> Floats:
    """Pixels inside a disc."""
    return 0.9 * radius - np.hypot(x, y)


def square(x: Floats, y: Floats, radius: Floats) -> Floats:
    """Pixels inside a square."""
    return 0.8 * radius - np.maximum(np.abs(x), np.abs(y))


def triangle(x: Floats, y: Floats, radius: Floats) -> Floats:
    """Pixels inside a triangle with three equal sides."""
    side = np.float32(np.sqrt(3) / 2)
    return 0.6 * radius - np.maximum(y, side * np.abs(x) - y / 2)


def ring(x: Floats, y: Floats, radius: Floats) -> Floats:
    """Pixels inside a ring."""
    return 0.28 * radius - np.abs(np.hypot(x, y) - 0.8 * radius)


def cross(x: Floats, y: Floats, radius: Floats) -> Floats:
    """Pixels inside a cross of two equal bars."""
    x, y = np.abs(x), np.abs(y)
    thick, long = 0.3 * radius, 1.1 * radius
    return np.maximum(np.minimum(thick - x, long - y), np.minimum(long - x, thick - y))


def pattern(spotted: Labels, samples: int, rng: np.random.Generator) -> Floats:
    """How much of the second colour each pixel has, 0..1, (N, 1, 32, 32): stripes, or spots in rows."""
    angle, wave = uniform(rng, 0, np.pi, samples, 1, 1), 2 * np.pi / uniform(rng, 4.5, 6.5, samples, 1, 1)
    phases = uniform(rng, 0, 2 * np.pi, 2, samples, 1, 1)
    places = np.arange(SIDE, dtype=np.float32)
    along = np.cos(angle) * places[None, None, :] + np.sin(angle) * places[None, :, None]
    across = np.cos(angle) * places[None, :, None] - np.sin(angle) * places[None, None, :]
    first = np.sin(wave * along + phases[0])
    second = np.where(spotted[:, None, None] == 1, np.sin(wave * across + phases[1]), 1).astype(np.float32)
    return np.clip(0.5 + 1.5 * first * second, 0, 1)[:, None]


def gradient(samples: int, rng: np.random.Generator) -> Floats:
    """A smooth change from one side of the image to the other, 0..1, (N, 1, 32, 32)."""
    angle = uniform(rng, 0, 2 * np.pi, samples, 1, 1)
    places = np.linspace(-0.7, 0.7, SIDE, dtype=np.float32)
    change = np.cos(angle) * places[None, None, :] + np.sin(angle) * places[None, :, None]
    return np.clip(0.5 + change / 1.4, 0, 1).astype(np.float32)[:, None]


def colours(rng: np.random.Generator, labels: Labels) -> tuple[Floats, Floats]:
    """The two colours of each shape, (N, 3, 1, 1) each: apart from each other, the first near its class's."""
    first = uniform(rng, 0, 1, len(labels), 3, 1, 1)
    hue = np.arange(3)[None, :] / 3 + labels[:, None] / len(CLASS_NAMES)
    favourite = (0.5 + 0.5 * np.cos(2 * np.pi * hue)).astype(np.float32)[:, :, None, None]
    first += uniform(rng, 0, FAVOUR, len(labels), 1, 1, 1) * (favourite - first)
    step = uniform(rng, 0.3, 0.7, len(labels), 3, 1, 1)
    return first, np.where(first < 0.5, first + step, first - step)


def mixed(share: Floats, first: Floats, second: Floats) -> Floats:
    """Images of two colours (N, 3, 1, 1), the second with the given `share` (N, 1, 32, 32)."""
    return first + share * (second - first)
