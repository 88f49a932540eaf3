"""Images to train on and to test with, and the cache of those that are drawn where there are no others."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from course_lib.data.storage import (
    Arrays,
    DataError,
    course_data,
    data_folders,
    machine_lock,
    read_cache,
    writable_folder,
    write_cache,
)

DRAW_SECONDS = 300.0  # that the others wait for the one that draws
DIGITS = tuple("0123456789")
OWN = "your own data"

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images and their labels


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images of bytes and labels (N) from 0 to 9, to train on and to test with.

    Grey images are (N, 28, 28), coloured ones (N, 3, 32, 32), their planes red, green and blue. `source` says
    in one sentence what they are and where they come from, `name` in two words: MNIST, drawn digits, your own
    data. `real` says whether they are the published data set itself, byte for byte.
    """

    source: str
    real: bool
    train_images: NDArray[np.uint8] = field(repr=False)
    train_labels: NDArray[np.int64] = field(repr=False)
    test_images: NDArray[np.uint8] = field(repr=False)
    test_labels: NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...] = field(default=DIGITS, repr=False)  # what each label means
    name: str = OWN


def described(title: str, known: bool, sizes: str, where: str) -> str:
    """The sentence for data that were found: `title` only if every file is `known` by its digest."""
    what = f"{title} ({sizes})" if known else f"Your own data in the format of {title} ({sizes})"
    return f"{what} from {where}."


def spaced(number: int) -> str:
    """60000 as 60 000."""
    return f"{number:_}".replace("_", " ")


def remark(title: str) -> str:
    """What a source adds when COURSE_DATA is a folder of other data sets."""
    return f" COURSE_DATA holds no {title}." if course_data() else ""


def drawn_arrays(train: Part, test: Part) -> Arrays:
    """Images and labels that were drawn, named as the fields of a `Dataset`."""
    return {
        "train_images": train[0],
        "train_labels": train[1],
        "test_images": test[0],
        "test_labels": test[1],
    }


def drawn_once(name: str, recipe: str, draw: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """What `draw()` returns, from the cache `name` or put there, and a remark when there can be no cache.

    One process per machine draws, the others wait for it.
    """
    folder = writable_folder()
    if arrays := cached(name, recipe):
        return arrays, ""
    if folder is None:
        return draw(), " They are drawn anew each time: no folder of this machine can be written to."
    with machine_lock(folder, DRAW_SECONDS):
        if arrays := cached(name, recipe):  # another process drew them while we waited
            return arrays, ""
        arrays = draw()
        try:
            write_cache(folder / "cache" / f"{name}.npz", recipe, arrays)
        except DataError as error:
            return arrays, f" They are drawn anew each time: {error}."
    return arrays, ""


def cached(name: str, recipe: str) -> Arrays | None:
    """The arrays of `recipe` in the first cache `name` that has all of them."""
    found = (read_cache(folder / "cache" / f"{name}.npz", recipe) for folder in data_folders())
    return next((arrays for arrays in found if arrays), None)
