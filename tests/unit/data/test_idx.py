"""A file of MNIST is the right one, or an error that names it."""

import gzip

import numpy as np
import pytest

from course_lib.data.downloads import find_file, read_registry
from course_lib.data.mnist import read_idx
from course_lib.data.storage import DataError
from tests.unit.data.conftest import sha256

NAME = "train-images-idx3-ubyte"


@pytest.fixture
def train_images(small_mnist):
    return next(file for file in read_registry("mnist").files if file.name == f"{NAME}.gz")


def read(path):
    """The images in a file."""
    return read_idx(path, 3)[0]


@pytest.mark.parametrize("zipped", [True, False])
def test_an_array_is_read_back_gzipped_or_not(zipped, small_mnist, tmp_path):
    folder = small_mnist.put(tmp_path / "mine", zipped=zipped)
    for file in read_registry("mnist").files:
        name = file.name.removesuffix(".gz")
        array, digest = read_idx(find_file(folder, file), small_mnist.arrays[name].ndim)
        np.testing.assert_array_equal(array, small_mnist.arrays[name])
        assert digest == file.content_sha256 == sha256(small_mnist.contents[name])


def test_another_gzip_of_the_same_content_is_the_same_file(small_mnist, train_images, tmp_path):
    again = gzip.compress(small_mnist.contents[NAME], compresslevel=1, mtime=99)
    assert again != small_mnist.gzipped[NAME]
    (tmp_path / f"{NAME}.gz").write_bytes(again)
    np.testing.assert_array_equal(read(tmp_path / f"{NAME}.gz"), small_mnist.arrays[NAME])


def test_a_file_that_a_browser_unpacked_without_renaming_it_is_read(small_mnist, train_images, tmp_path):
    (tmp_path / f"{NAME}.gz").write_bytes(small_mnist.contents[NAME])
    np.testing.assert_array_equal(read(tmp_path / f"{NAME}.gz"), small_mnist.arrays[NAME])


def test_arrays_can_be_written_to(small_mnist, train_images, tmp_path):
    read(small_mnist.put(tmp_path / "mine") / f"{NAME}.gz")[0, 0, 0] = 7


def damaged(content: bytes, gzipped: bytes) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of 6 images, and a part of the sentence that says so."""
    return {
        "gzip truncated": (gzipped[:-200], r"is truncated: its \d+ bytes are not the whole of it"),
        "gzip damaged": (gzipped[:100] + bytes(50) + gzipped[150:], "damaged|truncated"),
        "truncated": (content[:-10], "expected 4704 entries, as its header says, found 4694"),
        "too long": (content + b"0", "expected 4704 entries, as its header says, found more"),
        "header only in part": (content[:10], "expected a header of 16 bytes, found 10"),
        "empty": (b"", "expected 00 00 08 03 as its first bytes, found none"),
        "labels in its place": (b"\0\0\x08\x01" + content[4:], "00 00 08 03 as .* found 00 00 08 01"),
        "a web page": (b"<html>no such file</html>", "found 3c 68 74 6d"),
        "another count": (
            content[:7] + b"\x05" + content[8:],
            "expected 3920 entries, as .* found more",
        ),
    }


@pytest.mark.parametrize("kind", list(damaged(bytes(20), bytes(300))))
def test_a_wrong_file_is_an_error_that_names_it_and_the_remedy(kind, small_mnist, train_images, tmp_path):
    content, sentence = damaged(small_mnist.contents[NAME], small_mnist.gzipped[NAME])[kind]
    (tmp_path / f"{NAME}.gz").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read(tmp_path / f"{NAME}.gz")
    assert str(tmp_path / f"{NAME}.gz") in str(caught.value)
    assert "delete it and run `course fetch`" in str(caught.value)


def test_a_file_that_is_gone_is_not_found(train_images, tmp_path):
    assert find_file(tmp_path, train_images) is None


def test_the_registry_of_the_course_agrees_with_the_published_lengths():
    files = read_registry("mnist").files
    assert [file.nbytes for file in files] == [9912422, 28881, 1648877, 4542]
    assert all(len(file.sha256) == len(file.content_sha256) == 64 for file in files)
    assert len(read_registry("mnist").mirrors) >= 3
