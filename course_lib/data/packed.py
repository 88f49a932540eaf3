"""Files read within bounds, whether they are packed with gzip, with xz, or not at all.

    a file → recognised by its first bytes, not by its name → unpacked up to its limit and not a byte further

A few kilobytes can unpack to terabytes, so every read has a limit, and what a file claims of itself is
checked before memory is allocated for it. What may run code or unpacks to files is opened only after
`has_digest`.
"""

import gzip
import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from course_lib.data.storage import DataError

GZIP_MAGIC, XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\x00"
PIECE = 1 << 18


def has_digest(content: bytes, digests: Collection[str]) -> bool:
    """Whether `content` has one of the `digests`, each an algorithm and its result: "md5:5ff9c5…"."""
    pairs = (digest.split(":") for digest in digests)
    return any(
        hashlib.new(name, content, usedforsecurity=False).hexdigest() == expected for name, expected in pairs
    )


@contextmanager
def naming(path: Path, remedy: str) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a DataError of one sentence that names it."""
    try:
        yield
    except EOFError:
        nbytes = path.stat().st_size
        raise DataError(
            f"{path} is truncated: its {nbytes} bytes are not the whole of it; {remedy}"
        ) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise DataError(f"{path} is damaged and cannot be unpacked ({error}); {remedy}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); make it readable for you") from error


def read_within(path: Path, limit: int, remedy: str) -> bytes:
    """The unpacked content of the file at `path`; DataError when it is longer than `limit` bytes."""
    with naming(path, remedy), unpacked(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataError(f"{path} unpacks to more than the {limit} bytes that it may have; {remedy}")
    return content


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, open to be read unpacked; reading raises what `naming` catches."""
    with path.open("rb") as raw:
        magic = raw.read(len(XZ_MAGIC))
        raw.seek(0)
        opened: Any = nullcontext
        if magic.startswith(GZIP_MAGIC):
            opened = gzip.open
        elif magic == XZ_MAGIC:
            opened = lzma.open
        with opened(raw) as file:
            yield file
