"""Files unpacked within limits, whatever they claim: gzip, xz, and the members of a tar archive.

    a file → told by its first bytes, not by its name → unpacked up to its limit and not a byte further

A few kilobytes can unpack to terabytes, and a member of an archive can be called ../../.bashrc or be a link.
So nothing is ever unpacked to disk, every read has a limit, and of an archive only members are read that are
plain files with a name the course knows; one other member, and the whole archive is refused.
"""

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from course_lib.training.storage import DataError

GZIP_MAGIC, XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\x00"
XZ_MEMORY = 1 << 28  # bytes that an xz stream may ask for; `xz -9` needs 65 MiB
PIECE = 1 << 20

Reader = Callable[[int], bytes]


@contextmanager
def naming(path: Path, remedy: str) -> Iterator[None]:
    """What goes wrong when `path` is read ends in a DataError of one sentence that names it."""
    try:
        yield
    except EOFError:
        raise DataError(f"{path} is truncated: it ends too early; {remedy}") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise DataError(f"{path} is damaged and cannot be unpacked ({error}); {remedy}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); make it readable for you") from error


def unpack(path: Path, limit: int, remedy: str) -> bytes:
    """What is in the file at `path`, packed or not; DataError when it is longer than `limit` bytes."""
    with naming(path, remedy), unpacked(path) as file:
        content = read_up_to(file.read, limit + 1)
    if len(content) > limit:
        raise DataError(f"{path} unpacks to more than the {limit} bytes that it may have; {remedy}")
    return content


def read_up_to(read: Reader, limit: int) -> bytes:
    """What `read` gives until it ends or there are `limit` bytes."""
    pieces, length = [], 0
    while length < limit and (piece := read(min(PIECE, limit - length))):
        pieces.append(piece)
        length += len(piece)
    return b"".join(pieces)


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, open to be read unpacked."""
    with path.open("rb") as raw:
        magic = raw.read(len(XZ_MAGIC))
        raw.seek(0)
        if magic.startswith(GZIP_MAGIC):
            yield cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        elif magic == XZ_MAGIC:
            yield io.BufferedReader(XzReader(raw), PIECE)
        else:
            yield raw


class XzReader(io.RawIOBase):
    """An xz stream unpacked as it is read, within XZ_MEMORY, which `lzma.LZMAFile` cannot be told."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.stream = raw, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with what comes next; 0 at the end. EOFError when the file ends before the stream."""
        while not self.stream.eof:
            packed = self.raw.read(PIECE) if self.stream.needs_input else b""
            if self.stream.needs_input and not packed:
                raise EOFError
            if piece := self.stream.decompress(packed, len(buffer)):
                buffer[: len(piece)] = piece
                return len(piece)
        if self.stream.unused_data or self.raw.read(1):
            raise lzma.LZMAError("something follows its xz stream")
        return 0


class Limited(io.RawIOBase):
    """A stream of which at most `limit` bytes can be read: those who ask for more get the DataError."""

    def __init__(self, file: IO[bytes], limit: int, refusal: DataError) -> None:
        self.file, self.left, self.refusal = file, limit, refusal

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        content = read_up_to(self.file.read, wanted)
        self.left -= len(content)
        if self.left < 0:
            raise self.refusal
        return content


def read_members(path: Path, wanted: Collection[str], known: dict[str, int], remedy: str) -> dict[str, bytes]:
    """The members `wanted` of the tar archive at `path`, packed or not; `known`: all names and limits.

    DataError for any other member, for one that is no plain file, too long or there twice, and for one that
    is missing. Reading ends with the last one wanted.
    """
    refusal = DataError(f"{path} unpacks to more than the archive may hold; {remedy}")
    limit = sum(known.values()) + 64 * tarfile.BLOCKSIZE * (len(known) + 1) + tarfile.RECORDSIZE
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    with naming(path, remedy), unpacked(path) as file:
        archive = tarfile.open(fileobj=Limited(file, limit, refusal), mode="r|")  # noqa: SIM115, it owns no file
        for member in archive:
            if problem := member_problem(member, known, seen):
                raise DataError(f"{path} is not the original archive: {problem}; {remedy}")
            seen.add(member.name)
            if member.name in wanted:
                found[member.name] = read_member(archive, member)
            if len(found) == len(wanted):
                break
    if missing := sorted(set(wanted) - found.keys()):
        raise DataError(f"{path} is truncated or not the original: it lacks {', '.join(missing)}; {remedy}")
    return found


def member_problem(member: tarfile.TarInfo, known: dict[str, int], seen: set[str]) -> str:
    """Why `member` cannot belong to the archive, or nothing."""
    if member.isdir() and any(name.startswith(f"{member.name}/") for name in known):
        return ""
    if member.name not in known:
        return f"it has a member {member.name!r:.80}"
    if not member.isreg() or member.issparse():
        return f"its member {member.name} is no plain file"
    if member.size > known[member.name]:
        return f"its member {member.name} claims {member.size} bytes"
    return f"it has {member.name} twice" if member.name in seen else ""


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The content of `member`; EOFError when the archive ends before it."""
    file = archive.extractfile(member)
    content = file.read() if file else b""
    if len(content) < member.size:
        raise EOFError
    return content
