"""MNIST as arrays, wherever the course runs: one call, and it says what you got.

    the folder in COURSE_DATA  →  data/mnist  →  a download  →  drawn digits in its stead

The first that has it wins. The drawn digits (`drawn_digits.py`) have MNIST's shapes and number, are about
as hard to learn, and are kept in a cache. MNIST's files are IDX files (LeCun, Cortes & Burges, "The MNIST
database of handwritten digits"), gzipped or not:

    0 0 8 n | length of dim 1 | … | length of dim n | one unsigned byte per entry, the last dim fastest

The lengths are big-endian 32-bit integers. Such a file can only hold numbers, so one of your own is read,
too: the files in COURSE_DATA are called MNIST when their digests are registered, else your own data.
"""

import hashlib
import math
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course_lib.data.dataset import (
    DIGITS,
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
    explain,
    find_file,
    obtain,
    read_registry,
)
from course_lib.data.drawn_digits import RECIPE, SEED, draw_digits
from course_lib.data.packed import read_within
from course_lib.data.storage import DataError, course_data, data_folders, shown

TRAIN, TEST = 60_000, 10_000  # drawn digits
SUBFOLDERS = ("", "mnist", "MNIST/raw")  # of COURSE_DATA; the last is torchvision's
IDX_NBYTES = 64 << 20  # that a file may have, unpacked; MNIST's largest has 47 MB
SIDE = 28  # pixels
REMEDY = "delete it and run `course fetch`, or put the original in its place"


def load_mnist() -> Dataset:
    """MNIST, or the drawn digits where it cannot be had; the same on every rank of a machine.

    Images (N, 28, 28) of bytes. DataError when COURSE_DATA names no folder, and when a file is incomplete,
    damaged, or no IDX file of digits.
    """
    download = read_registry("mnist")
    try:
        folder = find(download) or obtain(download, timeout=LESSON_TIMEOUT)
    except DownloadError as error:
        remarks = remark(download.title) + unfinished(download)
        return stand_in(f"{error}. The real ones: `course fetch`, with a network.{remarks}")
    return read(download, folder)


def fetch_mnist() -> str:
    """Download MNIST ahead of a workshop unless it is here, check it, and say where it is and how big.

    DataError with what each mirror did when it cannot be downloaded.
    """
    download = read_registry("mnist")
    try:
        folder = find(download) or obtain(download, timeout=FETCH_TIMEOUT, insist=True)
    except DownloadError as error:
        files = f"its {len(download.files)} files ({download.nbytes / 1e6:.1f} MB)"
        raise DataError(explain(error, download, files)) from error
    data = read(download, folder)
    if not data.real:
        return data.source
    paths = [path for file in download.files if (path := find_file(folder, file))]
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    return f"MNIST is in {shown(folder)}: {len(paths)} files, {megabytes:.1f} MB, checksums right."


def in_course_data(download: Download) -> Path | None:
    """The folder of COURSE_DATA that has all files of `download`, None when none has any; else DataError."""
    base = course_data()
    folders = [base / name for name in SUBFOLDERS] if base else []
    complete = next((folder for folder in folders if not download.missing(folder)), None)
    part = next((folder for folder in folders if some_of(download, folder)), None)
    if part and not complete:
        names = ", ".join(file.name for file in download.missing(part))
        raise DataError(f"{part} has {some_of(download, part)}; add {names}, or unset COURSE_DATA")
    return complete


def some_of(download: Download, folder: Path) -> str:
    """How many of its files are in `folder`; nothing when it has none or all of them."""
    there, files = len(download.files) - len(download.missing(folder)), len(download.files)
    return f"{there} of the {files} files of {download.title}" if 0 < there < files else ""


def find(download: Download) -> Path | None:
    """The folder on this machine with all files of `download`; an unfinished download is none."""
    kept = (folder / download.name for folder in data_folders())
    return in_course_data(download) or next((at for at in kept if not download.missing(at)), None)


def unfinished(download: Download) -> str:
    """What a source adds when there are some files of `download` only."""
    kept = [folder / download.name for folder in data_folders()]
    return "".join(f" {shown(at)} has only {part}." for at in kept if (part := some_of(download, at)))


def read(download: Download, folder: Path) -> Dataset:
    """The data set in `folder`; DataError unless each file is right: in COURSE_DATA, the right format is."""
    base = course_data()
    own_allowed = base is not None and folder.is_relative_to(base)
    arrays, known = [], True
    for file, dims in zip(download.files, (3, 1, 3, 1), strict=True):
        path = find_file(folder, file)
        if path is None:
            raise DataError(f"{folder} has no {file.name} any more; run `course fetch`, or put it back")
        array, digest = read_idx(path, dims)
        if digest != file.content_sha256:
            known = False
            if not own_allowed:
                expected = f"expected the unpacked sha256 {file.content_sha256}, found {digest}"
                raise DataError(f"{path} is not the original file: {expected}; {REMEDY}")
        arrays.append(array)
    train, test = digits(folder, *arrays[:2]), digits(folder, *arrays[2:])
    sizes = f"{spaced(len(train[1]))} + {spaced(len(test[1]))} images"
    source = described(download.title, known, sizes, shown(folder))
    source += "" if own_allowed else remark(download.title)
    return Dataset(source, known, *train, *test, DIGITS, download.title if known else OWN)


def read_idx(path: Path, dims: int) -> tuple[NDArray[np.uint8], str]:
    """The array with `dims` dims in the IDX file at `path`, and the sha256 of the unpacked file.

    DataError when the file is none, or damaged.
    """
    content = read_within(path, IDX_NBYTES, REMEDY)
    header = 4 + 4 * dims
    shape = np.frombuffer(content[4:header].ljust(4 * dims, b"\0"), ">u4").tolist()
    expected, problem = bytes([0, 0, 8, dims]), ""
    if content[:4] != expected:
        found = content[:4].hex(" ") or "none"
        problem = f"expected {expected.hex(' ')} as its first bytes, found {found}"
    elif not 0 < math.prod(shape) == len(content) - header:
        there = max(0, len(content) - header)
        problem = f"expected {math.prod(shape)} entries, as its header says, found {there}"
    if problem:
        raise DataError(f"{path} is not the original file: {problem}; {REMEDY}")
    array = np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # a writable copy
    return array, hashlib.sha256(content).hexdigest()


def digits(folder: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Part:
    """`images` (N, 28, 28) and their `labels` (N), of the type that torch's losses need; else DataError."""
    if images.shape != (len(labels), SIDE, SIDE) or not len(labels):
        found = f"{' × '.join(map(str, images.shape))} pixels and {len(labels)} labels"
        raise DataError(f"the files in {folder} do not fit together: {found}; {REMEDY}")
    if labels.max() > 9:
        raise DataError(f"a file in {folder} has the label {labels.max()}, expected 0 to 9; {REMEDY}")
    return images, labels.astype(np.int64)


def stand_in(reason: str) -> Dataset:
    """The drawn digits, and the `reason` why they are needed."""
    try:
        matplotlib = version("matplotlib")
    except PackageNotFoundError:
        raise DataError(f"{reason} Drawing digits needs matplotlib's fonts: pip install matplotlib") from None
    recipe = f"{RECIPE} seed {SEED} sizes {TRAIN} {TEST} matplotlib {matplotlib}"
    arrays, uncached = drawn_once(
        "digits", recipe, lambda: drawn_arrays(draw_digits(TRAIN), draw_digits(TEST, test=True))
    )
    source = f"Drawn digits ({spaced(TRAIN)} + {spaced(TEST)}) that stand in for MNIST: {reason}{uncached}"
    return Dataset(source, False, **arrays, classes=DIGITS, name="drawn digits")
