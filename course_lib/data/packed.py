"""Files read within bounds, whether they are packed with gzip, with xz, or not at all.

    a file → recognised by its first bytes, not by its name → unpacked up to its limit and not a byte further

A few kilobytes can unpack to terabytes, so every read has a limit, and what a file claims of itself is
checked before memory is allocated for it. What may run code or unpacks to files is opened only after
`has_digest`.
"""

import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from course_lib.data.storage import DataError

GZIP_MAGIC, XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\x00"
XZ_MEMORY = 72 << 20  # bytes that an xz stream may ask for; `xz -9` needs 65 MiB
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
    except (zlib.error, lzma.LZMAError, tarfile.TarError) as error:
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
    """The file at `path`, open to be read unpacked: EOFError, zlib.error or LZMAError where it is damaged."""
    with path.open("rb") as raw:
        magic = raw.read(len(XZ_MAGIC))
        raw.seek(0)
        if magic.startswith(GZIP_MAGIC):
            yield cast(IO[bytes], io.BufferedReader(_Pieces(_gunzip(raw)), PIECE))
        elif magic == XZ_MAGIC:
            yield cast(IO[bytes], io.BufferedReader(_Pieces(_unxz(raw)), PIECE))
        else:
            yield raw


def _gunzip(raw: IO[bytes]) -> Iterator[bytes]:
    """The content of a gzip stream, at most PIECE bytes at a time."""
    stream = zlib.decompressobj(wbits=31)
    while not stream.eof:
        packed = stream.unconsumed_tail or raw.read(PIECE)
        if not packed:
            raise EOFError
        yield stream.decompress(packed, PIECE)
    if stream.unused_data or raw.read(1):
        raise zlib.error("something follows its gzip stream")


def _unxz(raw: IO[bytes]) -> Iterator[bytes]:
    """The content of an xz stream, at most PIECE bytes at a time and within XZ_MEMORY."""
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    while not stream.eof:
        packed = raw.read(PIECE) if stream.needs_input else b""
        if stream.needs_input and not packed:
            raise EOFError
        yield stream.decompress(packed, PIECE)
    if stream.unused_data or raw.read(1):
        raise lzma.LZMAError("something follows its xz stream")


class _Pieces(io.RawIOBase):
    """Pieces of bytes, which may be empty, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with what is next; 0 at the end."""
        while not self.rest:
            piece = next(self.pieces, None)
            if piece is None:
                return 0
            self.rest = memoryview(piece)
        length = min(len(buffer), len(self.rest))
        buffer[:length], self.rest = self.rest[:length], self.rest[length:]
        return length
