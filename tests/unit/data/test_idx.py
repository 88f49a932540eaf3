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
    for content in (again, small_mnist.contents[NAME]):  # as unpacked by a browser that keeps the name
        (tmp_path / f"{NAME}.gz").write_bytes(content)
        np.testing.assert_array_equal(read(tmp_path / f"{NAME}.gz"), small_mnist.arrays[NAME])


def damaged(content: bytes, gzipped: bytes) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of 6 images, and a part of the sentence that says so."""
    return {
        "gzip truncated": (gzipped[:-200], r"is truncated: its \d+ bytes are not the whole of it"),
        "truncated": (content[:-10], "expected 4704 entries, as its header says, found 4694"),
        "too long": (content + b"0", "expected 4704 entries, as its header says, found more"),
        "header only in part": (content[:10], "expected a header of 16 bytes, found 10"),
        "empty": (b"", "expected 00 00 08 03 as its first bytes, found none"),
        "a web page": (b"<html>no such file</html>", "found 3c 68 74 6d"),
    }


@pytest.mark.parametrize("kind", list(damaged(bytes(20), bytes(300))))
def test_a_wrong_file_is_an_error_that_names_it_and_the_remedy(kind, small_mnist, train_images, tmp_path):
    content, sentence = damaged(small_mnist.contents[NAME], small_mnist.gzipped[NAME])[kind]
    (tmp_path / f"{NAME}.gz").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read(tmp_path / f"{NAME}.gz")
    assert str(tmp_path / f"{NAME}.gz") in str(caught.value)
    assert "delete it and run `course fetch`" in str(caught.value)


def test_the_registry_of_the_course_agrees_with_the_published_lengths():
    files = read_registry("mnist").files
    assert [file.nbytes for file in files] == [9912422, 28881, 1648877, 4542]
    assert all(len(file.sha256) == len(file.content_sha256) == 64 for file in files)
    assert len(read_registry("mnist").mirrors) >= 3
