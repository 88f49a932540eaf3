"""The data that the programs to take home read: `notebooks/code/data/*.npz`, small and read with NumPy alone.

    pip install scikit-learn
    python -m course.tools.take_home_data

digits.npz    1,797 handwritten digits of 8 × 8 pixels from 0 to 16; the 297 for testing are the last ones, by
              other writers. E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
              Learning Repository, 1998, doi 10.24432/C50P49, licence CC BY 4.0; scikit-learn ships a copy.
shapes.npz    192 colour images of 3 × 32 × 32 pixels from 0 to 15, in ten classes, as in CIFAR-10; drawn
              by course_lib.data.drawn_shapes.
"""

import importlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course.paths import NOTEBOOKS
from course_lib.data.drawn_shapes import draw_shapes

TRAIN = 1500
SHAPES, KEPT = 480, 192  # how they look depends on the first; four ranks with 48 each need the second
FOLDER = NOTEBOOKS / "code" / "data"


def digits() -> dict[str, NDArray[np.uint8]]:
    """Images (N, 8, 8) and labels (N) to train on and to test with. ImportError without scikit-learn."""
    found = importlib.import_module("sklearn.datasets").load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.uint8)
    return {
        "train_images": images[:TRAIN],
        "train_labels": labels[:TRAIN],
        "test_images": images[TRAIN:],
        "test_labels": labels[TRAIN:],
    }


def shapes() -> dict[str, NDArray[np.integer]]:
    """Images (N, 3, 32, 32) and labels (N); 16 levels per colour, so that the file is small."""
    images, labels = draw_shapes(SHAPES)
    return {"images": images[:KEPT] // 16, "labels": labels[:KEPT]}


def write(folder: Path = FOLDER) -> None:
    """Write all files; each says its size."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("digits.npz", digits), ("shapes.npz", shapes)):
        np.savez_compressed(folder / name, allow_pickle=False, **arrays())
        print(f"{folder / name}: {(folder / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    write()
