"""A file of MNIST is the right one, or an error that names it."""

import gzip

import numpy as np
import pytest

from course_lib.data.downloads import read_registry
from course_lib.data.mnist import read_idx
from course_lib.data.storage import DataError

NAME = "train-images-idx3-ubyte"


@pytest.fixture
def train_images(small_mnist):
    return next(file for file in read_registry("mnist").files if file.name == f"{NAME}.gz")


def read(path):
    """The images in a file."""
    return read_idx(path, 3)[0]


def test_another_gzip_of_the_same_content_is_the_same_file(small_mnist, train_images, tmp_path):
    again = gzip.compress(small_mnist.contents[NAME], compresslevel=1, mtime=99)
    assert again != small_mnist.gzipped[NAME]
    (tmp_path / f"{NAME}.gz").write_bytes(again)
    np.testing.assert_array_equal(read(tmp_path / f"{NAME}.gz"), small_mnist.arrays[NAME])


def test_a_file_that_a_browser_unpacked_without_renaming_it_is_read(small_mnist, train_images, tmp_path):
    (tmp_path / f"{NAME}.gz").write_bytes(small_mnist.contents[NAME])
    images = read(tmp_path / f"{NAME}.gz")
    np.testing.assert_array_equal(images, small_mnist.arrays[NAME])
    images[0, 0, 0] = 7  # it can be written to


def damaged(content: bytes, gzipped: bytes) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of 6 images, and a part of the sentence that says so."""
    return {
        "gzip truncated": (gzipped[:-200], r"is truncated: its \d+ bytes are not the whole of it"),
        "gzip damaged": (gzipped[:100] + bytes(50) + gzipped[150:], "damaged|truncated"),
        "truncated": (content[:-10], "expected 4704 entries, as its header says, found 4694"),
        "too long": (content + b"0", "expected 4704 entries, as its header says, found more"),
        "header only in part": (content[:10], "expected a header of 16 bytes, found 10"),
        "empty": (b"", "found none"),
        "labels in its place": (b"\0\0\x08\x01" + content[4:], "00 00 08 03 as .* found 00 00 08 01"),
    }


@pytest.mark.parametrize("kind", list(damaged(bytes(20), bytes(300))))
def test_a_wrong_file_is_an_error_that_names_it_and_the_remedy(kind, small_mnist, train_images, tmp_path):
    content, sentence = damaged(small_mnist.contents[NAME], small_mnist.gzipped[NAME])[kind]
    (tmp_path / f"{NAME}.gz").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read(tmp_path / f"{NAME}.gz")
    assert str(tmp_path / f"{NAME}.gz") in str(caught.value)
    assert "delete it and run `course fetch`" in str(caught.value)
