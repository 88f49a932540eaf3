"""A file of MNIST is the right one, or an error that names it."""

import gzip

import numpy as np
import pytest

from course_lib.training.downloads import read_registry
from course_lib.training.idx import find_file, read_idx
from course_lib.training.storage import DataError

NAME = "train-images-idx3-ubyte"


@pytest.fixture
def train_images(small_mnist):
    return next(file for file in read_registry("mnist").files if file.name == NAME)


@pytest.mark.parametrize("zipped", [True, False])
def test_an_array_is_read_back_gzipped_or_not(zipped, small_mnist, tmp_path):
    folder = small_mnist.put(tmp_path / "mine", zipped=zipped)
    for file in read_registry("mnist").files:
        np.testing.assert_array_equal(read_idx(folder, file), small_mnist.arrays[file.name])


def test_another_gzip_of_the_same_content_is_the_same_file(small_mnist, train_images, tmp_path):
    again = gzip.compress(small_mnist.contents[NAME], compresslevel=1, mtime=99)
    assert again != small_mnist.gzipped[NAME]
    (tmp_path / f"{NAME}.gz").write_bytes(again)
    np.testing.assert_array_equal(read_idx(tmp_path, train_images), small_mnist.arrays[NAME])


def test_a_file_that_a_browser_unpacked_without_renaming_it_is_read(small_mnist, train_images, tmp_path):
    (tmp_path / f"{NAME}.gz").write_bytes(small_mnist.contents[NAME])
    np.testing.assert_array_equal(read_idx(tmp_path, train_images), small_mnist.arrays[NAME])


def test_arrays_can_be_written_to(small_mnist, train_images, tmp_path):
    read_idx(small_mnist.put(tmp_path / "mine"), train_images)[0, 0, 0] = 7


def damaged(content: bytes, gzipped: bytes) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of 6 images, and a part of the sentence that says so."""
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    return {
        "gzip truncated": (gzipped[:-200], r"is truncated: its \d+ bytes are not the whole gzip stream"),
        "gzip damaged": (gzipped[:100] + bytes(50) + gzipped[150:], "damaged|truncated"),
        "truncated": (content[:-10], "expected 4720 unpacked bytes, found 4710"),
        "too long": (content + b"0", "expected 4720 unpacked bytes, found more"),
        "header only in part": (content[:10], "expected 4720 bytes, found 10"),
        "empty": (b"", "expected 00 00 08 03 as its first bytes, found none"),
        "labels in its place": (b"\0\0\x08\x01" + content[4:], "00 00 08 03 as .* found 00 00 08 01"),
        "a web page": (b"<html>no such file</html>", "found 3c 68 74 6d"),
        "another count": (content[:7] + b"\x05" + content[8:], "expected 6 × 28 × 28 entries, found 5 × 28"),
        "other pixels": (flipped, "expected the unpacked sha256 [0-9a-f]{64}, found [0-9a-f]{64}"),
        "other pixels, gzipped": (gzip.compress(flipped), "expected the unpacked sha256"),
    }


@pytest.mark.parametrize("kind", list(damaged(bytes(20), bytes(300))))
def test_a_wrong_file_is_an_error_that_names_it_and_the_remedy(kind, small_mnist, train_images, tmp_path):
    content, sentence = damaged(small_mnist.contents[NAME], small_mnist.gzipped[NAME])[kind]
    (tmp_path / f"{NAME}.gz").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        read_idx(tmp_path, train_images)
    assert str(tmp_path / f"{NAME}.gz") in str(caught.value)
    assert "delete it and run `course fetch`" in str(caught.value)


def test_a_file_that_is_gone_is_an_error(train_images, tmp_path):
    assert find_file(tmp_path, train_images) is None
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte.gz any more"):
        read_idx(tmp_path, train_images)


def test_the_registry_of_the_course_agrees_with_the_published_lengths():
    files = {file.name: file for file in read_registry("mnist").files}
    unpacked = {name: file.content_nbytes for name, file in files.items()}
    assert unpacked == {
        "train-images-idx3-ubyte": 47040016,
        "train-labels-idx1-ubyte": 60008,
        "t10k-images-idx3-ubyte": 7840016,
        "t10k-labels-idx1-ubyte": 10008,
    }
    assert sum(file.nbytes for file in files.values()) == 11594722
    assert len(read_registry("mnist").mirrors) >= 3
