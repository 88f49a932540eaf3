"""CIFAR-10 as arrays, or drawn shapes in its stead: one call, and it says what you got.

    the folder in COURSE_DATA  →  data/cifar10  →  a download to there  →  drawn shapes

It is read in all the forms it is met in: the Python and the binary version, as the original archive or
unpacked, each file plain or packed with gzip or xz. The pickles of the Python version are read, never
unpickled (`pickled.py`). The training batches are known by a checksum of their images and labels.
"""

import hashlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course_lib.training import downloads
from course_lib.training.datasets import (
    FETCH_PATIENCE,
    LESSON_PATIENCE,
    Dataset,
    course_data,
    drawn_dataset,
    keep_drawn,
    place,
    spaced,
)
from course_lib.training.downloads import Download, DownloadError, is_offline, obtain, read_registry
from course_lib.training.drawn_shapes import CLASS_NAMES as SHAPE_NAMES
from course_lib.training.drawn_shapes import RECIPE, SEED, draw_shapes
from course_lib.training.pickled import PickleError, own, read_pickle, to_bytes_array
from course_lib.training.storage import Arrays, DataError, homes
from course_lib.training.unpacking import read_members, unpack

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
TRAIN, TEST = 20_000, 4_000  # drawn shapes
SUBFOLDERS = ("", "cifar10", "CIFAR-10")  # of COURSE_DATA
PACKED = ("", ".xz", ".gz")
REMEDY = "delete it and run `course fetch cifar10`, or put the original in its place"


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """What is known of a batch: how many images it has, and a checksum of them where one is known."""

    name: str
    images: int
    sha256: str = ""  # of its rows (a label and 3072 pixels, bytes each), sorted

    @property
    def limit(self) -> int:
        """The length that its file has at most, in either version."""
        return self.images * (1 + PIXELS + 100) + 4096


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two versions that CIFAR-10 is published in, and how a file of it is read."""

    folder: str
    archive: str  # without .gz
    suffix: str
    others: tuple[str, ...]  # files without images
    rows: Callable[[bytes], NDArray[np.uint8]]  # (N, 1 + 3072): a label and its image


@dataclass(frozen=True, slots=True)
class Source:
    """Where one version of CIFAR-10 is: a folder of its files, or its archive."""

    version: Version
    path: Path

    def file(self, name: str) -> Path | None:
        """The file of the batch `name` in the folder."""
        candidates = (self.path / f"{name}{self.version.suffix}{packed}" for packed in PACKED)
        return next((path for path in candidates if path.is_file()), None)

    def has(self, batch: KnownBatch) -> bool:
        """Whether all of `batch` is there."""
        return not self.path.is_dir() or self.file(batch.name) is not None


def load_cifar(source: Path | None = None, *, train: int | None = None, test: int | None = None) -> Dataset:
    """CIFAR-10, or the drawn shapes where it cannot be had: images (N, 3, 32, 32); the same on every rank.

    At most `train` and `test` images, the first ones; files that are not needed for them are not read.
    `source` is a folder or an archive to be read instead of those that are searched for. DataError when
    COURSE_DATA names no folder with data in it, and when a file is incomplete or another.
    """
    if min(train or 0, test or 0) < 0:
        raise ValueError(f"{min(train or 0, test or 0)} images cannot be read; ask for 0 or more")
    if source is not None:
        return read(find_in(Path(source)) or refuse(Path(source)), train, test)
    download = read_registry("cifar10")
    try:
        found = find() or find_in(obtain(download, patience=LESSON_PATIENCE)) or refuse(Path(download.name))
    except DownloadError as error:
        return stand_in(
            f"{error}. The real ones: `course fetch cifar10`, with a network.{remark()}", train, test
        )
    return read(found, train, test)


def fetch_cifar() -> str:
    """Download CIFAR-10 unless it is here, check it, and say where it is; DataError when it cannot be had."""
    download = read_registry("cifar10")
    try:
        found = find() or find_in(obtain(download, patience=FETCH_PATIENCE, insist=True))
    except DownloadError as error:
        raise DataError(explain(error, download)) from error
    assert found is not None  # it was obtained
    return read(found).source + " Checksums right."


def explain(error: DownloadError, download: Download) -> str:
    """`error` with what each mirror did, and the remedy."""
    if is_offline():
        return f"{download.title} is not here and {error}; unset COURSE_OFFLINE to download it"
    details = f" ({'; '.join(error.details)})" if error.details else ""
    size = f"{download.nbytes / 1e6:.0f} MB"
    return f"{error}{details}; try again later, or put cifar-10-python.tar.gz ({size}) into data/cifar10"


def read_pickled(content: bytes) -> NDArray[np.uint8]:
    """The rows in a file of the Python version; ValueError when it is none."""
    batch = own(read_pickle(content), dict)
    if missing := {"data", "labels"} - batch.keys():
        raise PickleError(f"its pickle has no {' and no '.join(sorted(missing))}")
    pixels, labels = to_bytes_array(batch["data"], PIXELS), batch["labels"]
    if type(labels) is not list or len(labels) != len(pixels):
        raise PickleError(f"it does not have one label for each of its {len(pixels)} images")
    if wrong := [label for label in labels if type(label) is not int or not 0 <= label <= 9]:
        raise PickleError(f"it has the label {wrong[0]!r:.40}, where 0 to 9 are expected")
    return np.c_[np.array(labels, np.uint8), pixels]


def read_binary(content: bytes) -> NDArray[np.uint8]:
    """The rows in a file of the binary version; ValueError when it is none."""
    if len(content) % (1 + PIXELS):
        raise ValueError(f"its {len(content)} bytes are not rows of {1 + PIXELS}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    if len(rows) and rows[:, 0].max() > 9:
        raise ValueError(f"it has the label {rows[:, 0].max()}, where 0 to 9 are expected")
    return rows


PYTHON = Version(
    "cifar-10-batches-py", "cifar-10-python.tar", "", ("batches.meta", "readme.html"), read_pickled
)
BINARY = Version(
    "cifar-10-batches-bin", "cifar-10-binary.tar", ".bin", ("batches.meta.txt", "readme.html"), read_binary
)


def known_batches() -> tuple[list[KnownBatch], KnownBatch]:
    """The training batches and the test batch, as data/registry.toml knows them."""
    entry = tomllib.loads(downloads.REGISTRY.read_text())["cifar10"]
    *train, test = (KnownBatch(**batch) for batch in entry["batches"])
    return train, test


def find() -> Source | None:
    """Where CIFAR-10 is on this machine; DataError when COURSE_DATA has a part of it."""
    base = course_data()
    folders = [base / name for name in SUBFOLDERS] if base else []
    folders += [home / "cifar10" for home in homes()]
    return next((found for folder in folders if (found := find_in(folder))), None)


def find_in(path: Path) -> Source | None:
    """The CIFAR-10 at `path`: an archive, or a folder of one, of the batches, or of their folder.

    DataError when there are some of the training batches only.
    """
    for version in (PYTHON, BINARY):
        folders = [Source(version, folder) for folder in (path, path / version.folder) if folder.is_dir()]
        archives = [path] if path.name.startswith(version.archive) else []
        archives += [path / f"{version.archive}{packed}" for packed in PACKED]
        found = next((source for source in folders if holds_batches(source)), None)
        if found := found or next((Source(version, file) for file in archives if file.is_file()), None):
            return found
    return None


def holds_batches(source: Source) -> bool:
    """Whether the folder of `source` has the training batches; DataError when it lacks some."""
    missing = [batch.name for batch in known_batches()[0] if not source.has(batch)]
    if missing and len(missing) < len(known_batches()[0]):
        names = ", ".join(f"{name}{source.version.suffix}" for name in missing)
        raise DataError(f"{source.path} has a part of CIFAR-10 only; add {names}, or remove the others")
    return not missing


def refuse(path: Path) -> Source:
    """What is to be done when there is nothing at `path`."""
    raise DataError(f"{path} holds no CIFAR-10; name cifar-10-python.tar.gz or the folder of its batches")


def read(source: Source, train: int | None = None, test: int | None = None) -> Dataset:
    """The data set at `source`, cut to `train` and `test` images; DataError unless each batch is right."""
    batches, held_out = known_batches()
    note = ""
    if not source.has(held_out):
        held_out = batches.pop()
        note = f" The whole test batch is not there, so {held_out.name} is held out to test with."
    wanted = needed(batches, train)
    rows = read_rows(source, [*wanted, held_out])
    train_rows, test_rows = np.concatenate(rows[:-1])[:train], rows[-1][:test]
    sizes = f"{spaced(len(train_rows))} + {spaced(len(test_rows))} images"
    sentence = f"CIFAR-10 ({sizes}) from {place(source.path)}.{note}"
    return Dataset(sentence, True, *split(train_rows), *split(test_rows), CLASS_NAMES)


def needed(batches: list[KnownBatch], images: int | None) -> list[KnownBatch]:
    """The first of the `batches` that have so many images, at least one."""
    ends = np.cumsum([batch.images for batch in batches])
    return batches if images is None else batches[: 1 + int(np.searchsorted(ends[:-1], images))]


def split(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels (N)."""
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def read_rows(source: Source, batches: list[KnownBatch]) -> list[NDArray[np.uint8]]:
    """The rows of each of the `batches`, checked."""
    if not source.path.is_dir():
        return read_archive(source, batches)
    paths = [source.file(batch.name) or source.path / batch.name for batch in batches]
    return [
        checked(unpack(path, batch.limit, REMEDY), source.version, batch, str(path))
        for batch, path in zip(batches, paths, strict=True)
    ]


def read_archive(source: Source, batches: list[KnownBatch]) -> list[NDArray[np.uint8]]:
    """The rows of each of the `batches` in an archive."""
    version, (train, test) = source.version, known_batches()
    names = {batch: f"{version.folder}/{batch.name}{version.suffix}" for batch in (*train, test)}
    known = {name: batch.limit for batch, name in names.items()}
    known |= {f"{version.folder}/{other}": 1 << 16 for other in version.others}
    found = read_members(source.path, [names[batch] for batch in batches], known, REMEDY)
    return [
        checked(found[names[batch]], version, batch, f"{names[batch]} of {source.path}") for batch in batches
    ]


def checked(content: bytes, version: Version, batch: KnownBatch, where: str) -> NDArray[np.uint8]:
    """The rows in `content`; DataError that names `where` it is from unless they are those of `batch`."""
    try:
        rows = version.rows(content)
        if len(rows) != batch.images:
            raise ValueError(f"it has {len(rows)} images, expected {batch.images}")
        if batch.sha256 and (found := checksum(rows)) != batch.sha256:
            raise ValueError(f"expected the sha256 {batch.sha256} of its sorted rows, found {found}")
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} is not the original file: {error}; {REMEDY}") from None
    return rows


def checksum(rows: NDArray[np.uint8]) -> str:
    """A sha256 that does not depend on the order of the `rows`, in which the two versions may differ."""
    return hashlib.sha256(b"".join(sorted(row.tobytes() for row in rows))).hexdigest()


def remark() -> str:
    """What a source adds when COURSE_DATA is a folder of other data sets."""
    return " COURSE_DATA holds no CIFAR-10." if course_data() else ""


def stand_in(reason: str, train: int | None = None, test: int | None = None) -> Dataset:
    """The drawn shapes, cut to `train` and `test` images, and the `reason` why they are needed."""
    arrays, uncached = keep_drawn("shapes", f"{RECIPE} seed {SEED} sizes {TRAIN} {TEST}", draw)
    limits = {"train_images": train, "train_labels": train, "test_images": test, "test_labels": test}
    arrays = {name: array[: limits[name]] for name, array in arrays.items()}
    sizes = f"{spaced(len(arrays['train_labels']))} + {spaced(len(arrays['test_labels']))}"
    source = f"Drawn shapes ({sizes}) that stand in for CIFAR-10: {reason}{uncached}"
    return drawn_dataset(source, arrays, SHAPE_NAMES)


def draw() -> Arrays:
    """The arrays of a `Dataset`."""
    train_images, train_labels = draw_shapes(TRAIN)
    test_images, test_labels = draw_shapes(TEST, test=True)
    return {
        "train_images": train_images,
        "train_labels": train_labels,
        "test_images": test_images,
        "test_labels": test_labels,
    }
