"""MNIST as arrays, wherever the course runs: one call, and it says what you got.

    the folder in COURSE_DATA  →  data/mnist  →  a download to there  →  drawn digits in its stead

The first that has it wins. The drawn digits (`drawn_digits.py`) have MNIST's shapes and number, are about
as hard to learn, and are kept in data/cache. What is there but is not right is an error, never a part of a
data set; `source` is the sentence that a lesson prints.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course_lib.paths import ROOT
from course_lib.training.downloads import (
    Download,
    DownloadError,
    is_offline,
    obtain,
    read_registry,
)
from course_lib.training.drawn_digits import RECIPE, SEED, draw_digits
from course_lib.training.idx import IdxFile, find_file, read_idx
from course_lib.training.storage import (
    Arrays,
    DataError,
    homes,
    machine_lock,
    read_npz,
    shown,
    writable_home,
    write_npz,
)

TRAIN, TEST = 60_000, 10_000
LESSON_PATIENCE, FETCH_PATIENCE = 60.0, 900.0  # seconds that a download may take
DRAW_SECONDS = 300.0  # that the others wait for the one that draws
DIGITS = tuple("0123456789")
SUBFOLDERS = ("", "mnist", "MNIST/raw")  # of COURSE_DATA; the last is torchvision's


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images of bytes and labels (N) from 0 to 9, to train on and to test with.

    Grey images are (N, 28, 28), coloured ones (N, 3, 32, 32), their planes red, green and blue. `source` says
    in one sentence what they are and where they come from, `real` whether they are the data set itself.
    """

    source: str
    real: bool
    train_images: NDArray[np.uint8] = field(repr=False)
    train_labels: NDArray[np.int64] = field(repr=False)
    test_images: NDArray[np.uint8] = field(repr=False)
    test_labels: NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...] = field(default=DIGITS, repr=False)  # what each label means


def load_mnist() -> Dataset:
    """MNIST, or the drawn digits where it cannot be had; the same on every rank of a machine.

    DataError when COURSE_DATA names no folder with data in it, and when a file is incomplete or another.
    """
    download = read_registry("mnist")
    try:
        folder = find(download) or obtain(download, patience=LESSON_PATIENCE)
    except DownloadError as error:
        remarks = remark(download) + unfinished(download)
        return stand_in(f"{error}. The real ones: `course fetch`, with a network.{remarks}")
    return read(download, folder)


def fetch_mnist() -> str:
    """Download MNIST ahead of a workshop unless it is here, check it, and say where it is and how big.

    DataError with what each mirror did when it cannot be downloaded.
    """
    download = read_registry("mnist")
    try:
        folder = find(download) or obtain(download, patience=FETCH_PATIENCE, insist=True)
    except DownloadError as error:
        raise DataError(explain(error, download)) from error
    read(download, folder)
    paths = [path for file in download.files if (path := find_file(folder, file))]
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    where, files = place(folder), len(download.files)
    return f"{download.title} is in {where}: {files} files, {megabytes:.1f} MB, checksums right."


def explain(error: DownloadError, download: Download) -> str:
    """`error` with what each mirror did, and the remedy."""
    if is_offline():
        return f"{download.title} is not here and {error}; unset COURSE_OFFLINE to download it"
    details = f" ({'; '.join(error.details)})" if error.details else ""
    size = f"{download.nbytes / 1e6:.1f} MB"
    return (
        f"{error}{details}; try again later, or put its {len(download.files)} files ({size}) into data/mnist"
    )


def course_data() -> Path | None:
    """The folder in COURSE_DATA, relative to where we are or to the checkout; None when it is not set.

    DataError when there is no such folder or nothing in it: whoever sets it expects to find data there.
    """
    setting = os.environ.get("COURSE_DATA", "")
    if not setting:
        return None
    candidates = [(start / Path(setting).expanduser()).resolve() for start in (Path.cwd(), ROOT)]
    folder = next((path for path in candidates if path.is_dir()), None)
    if folder is None:
        raise DataError(f"COURSE_DATA={setting} is not a folder; correct it, or unset it")
    if not any(folder.iterdir()):
        raise DataError(f"COURSE_DATA={setting} is an empty folder; put data there, or unset it")
    return folder


def in_course_data(download: Download) -> Path | None:
    """The folder of COURSE_DATA that has all files of `download`, None when none has any; else DataError."""
    base = course_data()
    folders = [base / name for name in SUBFOLDERS] if base else []
    whole = next((folder for folder in folders if not download.missing(folder)), None)
    part = next((folder for folder in folders if some_of(download, folder)), None)
    if part and not whole:
        names = ", ".join(f"{file.name}.gz" for file in download.missing(part))
        raise DataError(f"{part} has {some_of(download, part)}; add {names}, or unset COURSE_DATA")
    return whole


def some_of(download: Download, folder: Path) -> str:
    """How many of its files are in `folder`; nothing when it has none or all of them."""
    there, files = len(download.files) - len(download.missing(folder)), len(download.files)
    return f"{there} of the {files} files of {download.title}" if 0 < there < files else ""


def find(download: Download) -> Path | None:
    """The folder on this machine with all files of `download`; an unfinished download is none."""
    kept = [home / download.name for home in homes()]
    whole = (folder for folder in kept if not download.missing(folder))
    return in_course_data(download) or next(whole, None)


def remark(download: Download) -> str:
    """What a source adds when COURSE_DATA is a folder of other data sets."""
    lacking = course_data() and not in_course_data(download)
    return f" COURSE_DATA holds no {download.title}." if lacking else ""


def unfinished(download: Download) -> str:
    """What a source adds when there are some files of `download` only."""
    kept = [home / download.name for home in homes()]
    return "".join(f" {shown(at)} has only {part}." for at in kept if (part := some_of(download, at)))


def read(download: Download, folder: Path) -> Dataset:
    """The data set whose files are in `folder`; DataError unless each is the right one."""
    files = (file for file in download.files if isinstance(file, IdxFile))
    train_images, train_labels, test_images, test_labels = (read_idx(folder, file) for file in files)
    sizes = f"{spaced(len(train_labels))} + {spaced(len(test_labels))} images"
    source = f"{download.title} ({sizes}) from {place(folder)}.{remark(download)}"
    return Dataset(source, True, train_images, to_labels(train_labels), test_images, to_labels(test_labels))


def to_labels(entries: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Labels of the type that torch's losses ask for."""
    return entries.astype(np.int64)


def place(folder: Path) -> str:
    """How a source names `folder`: nothing of it depends on the machine when it is in COURSE_DATA."""
    base = course_data()
    if base and folder.is_relative_to(base):
        return str("COURSE_DATA" / folder.relative_to(base))
    return shown(folder)


def spaced(number: int) -> str:
    """60000 as 60 000."""
    return f"{number:_}".replace("_", " ")


def stand_in(reason: str) -> Dataset:
    """The drawn digits, and the `reason` why they are needed."""
    arrays, uncached = drawn(TRAIN, TEST)
    source = f"Drawn digits ({spaced(TRAIN)} + {spaced(TEST)}) that stand in for MNIST: {reason}{uncached}"
    return drawn_dataset(source, arrays, DIGITS)


def drawn_dataset(source: str, arrays: Arrays, classes: tuple[str, ...]) -> Dataset:
    """The data set of `arrays` that are named as its fields."""
    names = ("train_images", "train_labels", "test_images", "test_labels")
    train_images, train_labels, test_images, test_labels = (arrays[name] for name in names)
    return Dataset(source, False, train_images, train_labels, test_images, test_labels, classes)


def drawn(train: int, test: int) -> tuple[Arrays, str]:
    """`train` and `test` drawn digits, from a cache or put there, and a remark when there can be no cache."""
    recipe = f"{RECIPE} seed {SEED} sizes {train} {test} matplotlib {version('matplotlib')}"
    return keep_drawn("digits", recipe, lambda: draw(train, test))


def keep_drawn(name: str, recipe: str, draw: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """What `draw()` returns, from the cache `name` or put there, and a remark when there can be no cache.

    One process of the machine draws, the others wait for it.
    """
    home = writable_home()
    if arrays := cached(name, recipe):
        return arrays, ""
    if home is None:
        return draw(), " They are drawn anew each time: no folder of this machine can be written to."
    with machine_lock(home, DRAW_SECONDS):
        if arrays := cached(name, recipe):  # another process drew them while we waited
            return arrays, ""
        arrays = draw()
        try:
            write_npz(home / "cache" / f"{name}.npz", recipe, arrays)
        except DataError as error:
            return arrays, f" They are drawn anew each time: {error}."
    return arrays, ""


def cached(name: str, recipe: str) -> Arrays | None:
    """The images of `recipe` in the first cache `name` that has them whole."""
    found = (read_npz(home / "cache" / f"{name}.npz", recipe) for home in homes())
    return next((arrays for arrays in found if arrays), None)


def draw(train: int, test: int) -> Arrays:
    """The arrays of a `Dataset`."""
    (train_images, train_labels), (test_images, test_labels) = (
        draw_digits(train),
        draw_digits(test, test=True),
    )
    return {
        "train_images": train_images,
        "train_labels": train_labels,
        "test_images": test_images,
        "test_labels": test_labels,
    }
