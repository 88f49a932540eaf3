"""CIFAR-10's files, written byte by byte from their descriptions, as small as a test wants them."""

import gzip
import io
import struct
import tarfile

import numpy as np

PIXELS = 3072
TRAIN_NAMES = [f"data_batch_{number}" for number in range(1, 6)]
NAMES = [*TRAIN_NAMES, "test_batch"]

RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
DTYPE = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def text(value: str) -> bytes:
    """Push a short Python 2 string."""
    return b"U" + bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    """Push an int."""
    return b"J" + struct.pack("<i", value)


def array(shape: tuple[int, ...], content: bytes, *, dtype: bytes = DTYPE, fortran: bytes = b"\x89") -> bytes:
    """Push an array of numpy's, as Python 2 pickled it."""
    lengths = b"(" + b"".join(map(number, shape)) + b"t"
    data = b"T" + struct.pack("<i", len(content)) + content
    return RECONSTRUCT + NDARRAY + b"K\x00\x85U\x01b\x87R(K\x01" + lengths + dtype + fortran + data + b"tb"


def list_of(items: list[bytes]) -> bytes:
    """Push a list of what the items push."""
    return b"](" + b"".join(items) + b"e"


def dict_of(**items: bytes) -> bytes:
    """A whole pickle: a dict."""
    pushed = b"".join(text(key) + value for key, value in items.items())
    return b"\x80\x02}(" + pushed + b"u."


def pickled(rows: np.ndarray) -> bytes:
    """A batch of the Python version; `rows` are a label and the pixels each."""
    return dict_of(
        batch_label=text("training batch 1 of 5"),
        labels=list_of([number(int(label)) for label in rows[:, 0]]),
        data=array((len(rows), PIXELS), rows[:, 1:].tobytes()),
        filenames=list_of([text(f"image_{i}.png") + b"q" + bytes([i]) for i in range(len(rows))]),
    )


def tar_of(members: dict[str, bytes], *extra: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    """A tar archive, the same bytes every time: `extra` members without content come first."""
    file = io.BytesIO()
    form, _, packing = mode.partition(":")
    with tarfile.open(fileobj=file, mode=form) as archive:
        for member in extra:
            archive.addfile(member)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0) if packing else file.getvalue()
