"""CIFAR-10's files, written byte by byte from their descriptions, as small as a test wants them."""

import gzip
import io
import struct
import tarfile

import numpy as np

PIXELS = 3072
TRAIN_NAMES = [f"data_batch_{number}" for number in range(1, 6)]
NAMES = [*TRAIN_NAMES, "test_batch"]

NDARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def text(value: str) -> bytes:
    """Push a short Python 2 string."""
    return b"U" + bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    """Push an int."""
    return b"J" + struct.pack("<i", value)


def pickled(rows: np.ndarray) -> bytes:
    """A batch as Python 2 pickled it: a dict; `rows` are a label and the pixels each."""
    labels = b"".join(number(int(label)) for label in rows[:, 0])
    content = rows[:, 1:].tobytes()
    shape = b"(" + number(len(rows)) + number(PIXELS) + b"t"
    data = NDARRAY + b"(K\x01" + shape + DTYPE + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"
    return b"\x80\x02}(" + text("labels") + b"](" + labels + b"e" + text("data") + data + b"u."


def tar_of(members: dict[str, bytes]) -> bytes:
    """A packed tar archive, the same bytes every time."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)
