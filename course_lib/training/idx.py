"""MNIST's file format, read so that a file is the right one or an error.

    0 0 8 n | length of dim 1 | … | length of dim n | one unsigned byte an entry, the last dim fastest

The lengths are big-endian 32-bit integers (LeCun, Cortes & Burges, "The MNIST database of handwritten
digits"). A file may be gzipped, whatever its name says. It is told by the sha256 of what it holds unpacked.
"""

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from course_lib.training.storage import DataError

GZIP_MAGIC = b"\x1f\x8b"
REMEDY = "delete it and run `course fetch`, or put the original in its place"


@dataclass(frozen=True, slots=True)
class IdxFile:
    """What is known of a file: its array's shape, its gzipped length and sha256, its sha256 unpacked."""

    name: str  # without .gz
    shape: tuple[int, ...]
    nbytes: int
    sha256: str
    content_sha256: str

    @property
    def sent_name(self) -> str:
        """What the file is called where it is downloaded from."""
        return f"{self.name}.gz"

    @property
    def magic(self) -> bytes:
        """What it begins with there."""
        return GZIP_MAGIC

    @property
    def header(self) -> bytes:
        """The bytes before the first entry."""
        return struct.pack(f">4B{len(self.shape)}I", 0, 0, 8, len(self.shape), *self.shape)

    @property
    def content_nbytes(self) -> int:
        """The length of the unpacked file."""
        return len(self.header) + math.prod(self.shape)


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """It."""


def find_file(folder: Path, file: Named) -> Path | None:
    """Where `file` is in `folder`, unpacked or gzipped."""
    candidates = (folder / file.name, folder / f"{file.name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def read_idx(folder: Path, file: IdxFile) -> NDArray[np.uint8]:
    """The array in `file` of `folder`; DataError unless it is there and, byte for byte, the right one."""
    path = find_file(folder, file)
    if path is None:
        raise DataError(f"{folder} has no {file.name}.gz any more; run `course fetch`, or put it back")
    content = unpack(path, file.content_nbytes)
    problem = header_problem(content, file) or length_problem(content, file) or hash_problem(content, file)
    if problem:
        raise DataError(f"{path} is not the original file: {problem}; {REMEDY}")
    return np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape).copy()  # writable


def unpack(path: Path, nbytes: int) -> bytes:
    """What is in the file at `path`, gzipped or not; a longer one is cut one byte after `nbytes`."""
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            return gzip.GzipFile(fileobj=raw).read(nbytes + 1) if gzipped else raw.read(nbytes + 1)
    except EOFError:
        raise DataError(
            f"{path} is truncated: its {path.stat().st_size} bytes are not the whole gzip stream; {REMEDY}"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is damaged: its gzip stream cannot be unpacked ({error}); {REMEDY}"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); make it readable for you") from error


def header_problem(content: bytes, file: IdxFile) -> str:
    """What is wrong with the first bytes of `content`, or nothing."""
    if content[:4] != file.header[:4]:
        return (
            f"expected {file.header[:4].hex(' ')} as its first bytes, found {content[:4].hex(' ') or 'none'}"
        )
    if len(content) < len(file.header):
        return f"expected {file.content_nbytes} bytes, found {len(content)}"
    shape = struct.unpack_from(f">{len(file.shape)}I", content, 4)
    times = " × ".join
    if shape != file.shape:
        return f"expected {times(map(str, file.shape))} entries, found {times(map(str, shape))}"
    return ""


def length_problem(content: bytes, file: IdxFile) -> str:
    """What is wrong with the length of `content`, or nothing."""
    if len(content) == file.content_nbytes:
        return ""
    found = "more" if len(content) > file.content_nbytes else f"{len(content)} (it is truncated)"
    return f"expected {file.content_nbytes} unpacked bytes, found {found}"


def hash_problem(content: bytes, file: IdxFile) -> str:
    """Whether the entries are others, such as Fashion-MNIST's, whose files have the same names."""
    found = hashlib.sha256(content).hexdigest()
    if found == file.content_sha256:
        return ""
    return f"expected the unpacked sha256 {file.content_sha256}, found {found}"
