"""CIFAR-10 as arrays, or drawn shapes in its stead: one call, and it says what you got.

    the folder in COURSE_DATA  →  data/cifar10  →  a download  →  drawn shapes

It is read in all the forms it is met in: the Python and the binary version, as the original archive or
unpacked, each unpacked file plain or packed with gzip or xz.

    an archive               opened only if its sha256 is registered       then tarfile
    a batch, a pickle        opened only if its digest is registered       then pickle.loads
    a batch, binary version  rows of a label and 3072 pixels, bytes each   np.frombuffer

A pickle is a program and may run any code when it is opened; an archive may claim anything of its members.
So neither is looked into unless it is, byte for byte, one that the course knows. The binary version can
only hold numbers: other images in it are your own data. Krizhevsky, "Learning Multiple Layers of Features
from Tiny Images" (2009).
"""

import hashlib
import os
import pickle
import tarfile
import warnings
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course_lib.data.dataset import (
    OWN,
    Dataset,
    Part,
    described,
    drawn_arrays,
    drawn_once,
    remark,
    spaced,
)
from course_lib.data.downloads import (
    FETCH_TIMEOUT,
    LESSON_TIMEOUT,
    Download,
    DownloadError,
    RemoteFile,
    explain,
    obtain,
    read_registry,
    registered,
)
from course_lib.data.drawn_shapes import CLASS_NAMES as SHAPE_NAMES
from course_lib.data.drawn_shapes import RECIPE, SEED, draw_shapes
from course_lib.data.packed import has_digest, naming, read_within
from course_lib.data.storage import DataError, course_data, data_folders, shown

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
ROW = 1 + PIXELS  # bytes: a label and its image
TRAIN, TEST = 20_000, 4_000  # drawn shapes
SUBFOLDERS = ("", "cifar10", "CIFAR-10")  # of COURSE_DATA
PACKED = ("", ".xz", ".gz")
REMEDY = "delete it and run `course fetch cifar10`, or put the original in its place"


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two versions that CIFAR-10 is published in: the names of its archive, folder and batches."""

    archive: str
    folder: str
    suffix: str


PYTHON = Version("cifar-10-python.tar.gz", "cifar-10-batches-py", "")
BINARY = Version("cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin")


@dataclass(frozen=True, slots=True)
class Batch:
    """What the registry knows of a batch: its images, digests of its pickle, and one of its sorted rows."""

    name: str
    images: int
    digests: tuple[str, ...] = ()
    rows_sha256: str = ""

    @property
    def pickle_limit(self) -> int:
        """The length that its pickle has at most: rows, file names, and what frames them."""
        return self.images * (ROW + 100) + 4096


@dataclass(frozen=True, slots=True)
class Source:
    """Where one version of CIFAR-10 is: a folder of its batches, or its archive."""

    version: Version
    path: Path

    def file(self, batch: Batch) -> Path | None:
        """The file of `batch` in the folder."""
        candidates = (self.path / f"{batch.name}{self.version.suffix}{packed}" for packed in PACKED)
        return next((path for path in candidates if path.is_file()), None)

    def has(self, batch: Batch) -> bool:
        """Whether all of `batch` is there."""
        return not self.path.is_dir() or self.file(batch) is not None


def load_cifar10(*, train: int | None = None, test: int | None = None) -> Dataset:
    """CIFAR-10, or the drawn shapes where it cannot be had: images (N, 3, 32, 32); the same on every rank.

    At most `train` and `test` images, the first ones; files that are not needed for them are not read.
    DataError when COURSE_DATA names no folder, when some batches are missing, and when a file is damaged or
    may not be opened.
    """
    if min(train or 0, test or 0) < 0:
        raise ValueError(f"{min(train or 0, test or 0)} images cannot be read; ask for 0 or more")
    try:
        found = find_or_download(read_registry("cifar10"), LESSON_TIMEOUT)
    except DownloadError as error:
        reason = f"{error}. The real ones: `course fetch cifar10`, with a network.{remark('CIFAR-10')}"
        return stand_in(reason, train, test)
    return read(found, train, test)


def fetch_cifar10() -> str:
    """Download CIFAR-10 unless it is here, check it, and say where it is; DataError when it cannot be had."""
    download = read_registry("cifar10")
    try:
        data = read(find_or_download(download, FETCH_TIMEOUT, insist=True))
    except DownloadError as error:
        archive = f"{PYTHON.archive} ({download.nbytes / 1e6:.0f} MB)"
        raise DataError(explain(error, download, archive)) from error
    return f"{data.source} Checksums right." if data.real else data.source


# ---------------------------------------------------------------- where it is


def known_batches() -> tuple[list[Batch], Batch]:
    """The training batches and the test batch, as the registry knows them."""
    entries = registered("cifar10")["batches"]
    *train, test = (Batch(**{**entry, "digests": tuple(entry.get("digests", ()))}) for entry in entries)
    return train, test


def known_archives() -> list[RemoteFile]:
    """The archives whose digest is registered."""
    entry = registered("cifar10")
    return [RemoteFile(**file) for file in (*entry["files"], *entry.get("archives", ()))]


def find_or_download(download: Download, timeout: float, *, insist: bool = False) -> Source:
    """Where CIFAR-10 is, now at the latest; DownloadError when it cannot be had."""
    found = find() or find_in(obtain(download, timeout=timeout, insist=insist))
    assert found is not None  # it was obtained
    return found


def find() -> Source | None:
    """Where CIFAR-10 is on this machine; DataError when COURSE_DATA has a part of it."""
    base = course_data()
    folders = [base / name for name in SUBFOLDERS] if base else []
    folders += [folder / "cifar10" for folder in data_folders()]
    return next((found for folder in folders if (found := find_in(folder))), None)


def find_in(folder: Path) -> Source | None:
    """The CIFAR-10 in `folder`: its batches, their folder, or an archive.

    DataError when there are some of the training batches only.
    """
    for version in (PYTHON, BINARY):
        places = [Source(version, at) for at in (folder, folder / version.folder) if at.is_dir()]
        found = next((source for source in places if holds_batches(source)), None)
        archive = folder / version.archive
        if found or archive.is_file():
            return found or Source(version, archive)
    return None


def holds_batches(source: Source) -> bool:
    """Whether the folder of `source` has the training batches; DataError when it lacks some."""
    missing = [batch.name for batch in known_batches()[0] if not source.has(batch)]
    if missing and len(missing) < len(known_batches()[0]):
        names = ", ".join(f"{name}{source.version.suffix}" for name in missing)
        raise DataError(f"{source.path} has a part of CIFAR-10 only; add {names}, or remove the others")
    return not missing


# ---------------------------------------------------------------- reading it


def read(source: Source, train: int | None = None, test: int | None = None) -> Dataset:
    """The data set at `source`, cut to `train` and `test` images; DataError unless each batch is right."""
    batches, held_out = known_batches()
    note = ""
    if not source.has(held_out):
        held_out = batches.pop()
        note = f" The full test batch is not there, so {held_out.name} is held out to test with."
    wanted = [*needed(batches, train), held_out]
    if source.path.is_dir():
        read_one = read_pickled if source.version is PYTHON else read_binary
        found = [read_one(source.file(batch) or source.path / batch.name, batch) for batch in wanted]
    else:
        found = [(rows, True) for rows in read_archive(source, wanted)]
    rows, known = [each for each, _ in found], all(right for _, right in found)
    train_rows, test_rows = np.concatenate(rows[:-1])[:train], rows[-1][:test]
    sizes = f"{spaced(len(train_rows))} + {spaced(len(test_rows))} images"
    sentence = described("CIFAR-10", known, sizes, shown(source.path)) + note
    name = "CIFAR-10" if known else OWN
    return Dataset(sentence, known, *split(train_rows), *split(test_rows), CLASS_NAMES, name)


def needed(batches: list[Batch], images: int | None) -> list[Batch]:
    """The first of the `batches` that have so many images, at least one."""
    ends = np.cumsum([batch.images for batch in batches])
    return batches if images is None else batches[: 1 + int(np.searchsorted(ends[:-1], images))]


def split(rows: NDArray[np.uint8]) -> Part:
    """Images (N, 3, 32, 32) and labels (N)."""
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def read_pickled(path: Path, batch: Batch) -> tuple[NDArray[np.uint8], bool]:
    """The rows (N, 3073) of `batch` in the pickle at `path`, and True: it is opened only if it is known."""
    content = read_within(path, batch.pickle_limit, REMEDY)
    if not has_digest(content, batch.digests):
        raise DataError(
            f"{path} is not opened: a pickle can run any code, and no digest of this one is registered; "
            f"{REMEDY}, or use the binary version of your own data"
        )
    return from_pickle(content), True


def from_pickle(content: bytes) -> NDArray[np.uint8]:
    """The rows (N, 3073) in a pickle whose digest was checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was written for a NumPy whose modules had other names
        batch = pickle.loads(content, encoding="bytes")
    return np.c_[np.array(batch[b"labels"], np.uint8), batch[b"data"]]


def read_binary(path: Path, batch: Batch) -> tuple[NDArray[np.uint8], bool]:
    """The rows (N, 3073) in the binary file at `path`, and whether they are those of `batch`."""
    content = read_within(path, batch.images * ROW, REMEDY)
    rows = from_binary(content, str(path))
    known = len(rows) == batch.images and sorted_sha256(rows) == batch.rows_sha256
    return rows, known


def from_binary(content: bytes, where: str) -> NDArray[np.uint8]:
    """The rows (N, 3073) in a file of the binary version; DataError that names `where` it is from."""
    problem = ""
    if len(content) % ROW or not content:
        problem = f"its {len(content)} bytes are not rows of {ROW}"
    elif (label := max(content[::ROW])) > 9:
        problem = f"it has the label {label}, where 0 to 9 are expected"
    if problem:
        raise DataError(f"{where} is not the original file: {problem}; {REMEDY}")
    return np.frombuffer(content, np.uint8).reshape(-1, ROW)


def sorted_sha256(rows: NDArray[np.uint8]) -> str:
    """The sha256 of the sorted `rows`: it does not depend on their order."""
    return hashlib.sha256(b"".join(sorted(row.tobytes() for row in rows))).hexdigest()


def read_archive(source: Source, batches: list[Batch]) -> list[NDArray[np.uint8]]:
    """The rows of each of the `batches` in an archive; DataError unless the archive is a registered one."""
    version, path = source.version, source.path
    wanted = {f"{version.folder}/{batch.name}{version.suffix}": batch for batch in batches}
    found: dict[str, NDArray[np.uint8]] = {}
    with naming(path, REMEDY), path.open("rb") as file:
        if not is_registered(file):
            raise DataError(
                f"{path} is not opened: its length or its sha256 is not that of the original; {REMEDY}"
            )
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r|gz") as archive:  # the file that was checked, front to back
            for member in archive:
                if member.name in wanted and (content := archive.extractfile(member)):
                    found[member.name] = (
                        from_pickle(content.read())
                        if version is PYTHON
                        else from_binary(content.read(), member.name)
                    )
                if len(found) == len(wanted):
                    break
    return [found[name] for name in wanted]


def is_registered(file: BufferedReader) -> bool:
    """Whether the archive `file` has the length and the sha256 of a registered one."""
    nbytes = os.fstat(file.fileno()).st_size
    alike = {archive.sha256 for archive in known_archives() if archive.nbytes == nbytes}
    return bool(alike) and hashlib.file_digest(file, "sha256").hexdigest() in alike


# ---------------------------------------------------------------- what stands in


def stand_in(reason: str, train: int | None, test: int | None) -> Dataset:
    """The drawn shapes, cut to `train` and `test` images, and the `reason` why they are needed."""
    arrays, uncached = drawn_once(
        "shapes",
        f"{RECIPE} seed {SEED} sizes {TRAIN} {TEST}",
        lambda: drawn_arrays(draw_shapes(TRAIN), draw_shapes(TEST, test=True)),
    )
    limits = {"train_images": train, "train_labels": train, "test_images": test, "test_labels": test}
    arrays = {name: array[: limits[name]] for name, array in arrays.items()}
    sizes = f"{spaced(len(arrays['train_labels']))} + {spaced(len(arrays['test_labels']))}"
    source = f"Drawn shapes ({sizes}) that stand in for CIFAR-10: {reason}{uncached}"
    return Dataset(source, False, **arrays, classes=SHAPE_NAMES, name="drawn shapes")
