"""Which digits `load_mnist` returns, and what it says of them."""

import gzip
import math
import socket
import struct
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from course_lib.data import dataset, mnist, storage
from course_lib.data.dataset import Dataset
from course_lib.data.mnist import fetch_mnist, load_mnist
from course_lib.data.storage import DataError

FIELDS = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


@pytest.fixture
def connections(monkeypatch):
    """The network is cut; what was tried."""
    tried = []

    def refuse(*arguments, **_):
        tried.append(arguments)
        raise OSError("the network is cut")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


@pytest.fixture
def offline(small_mnist, monkeypatch, connections):
    """COURSE_OFFLINE=1, with a mirror in the registry that must not be asked."""
    small_mnist.register("https://mirror.example/mnist/")
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    yield small_mnist
    assert connections == []


def assert_is_mnist(data: Dataset, small) -> None:
    assert data.real and data.name == "MNIST"
    for name, file in FIELDS.items():
        np.testing.assert_array_equal(getattr(data, name), small.arrays[file])
    assert data.train_images.dtype == np.uint8 and data.test_labels.dtype == np.int64


@pytest.mark.parametrize("subfolder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_course_data_is_used_as_it_is_or_by_its_subfolder(subfolder, zipped, offline, tmp_path, monkeypatch):
    offline.put(tmp_path / "mine" / subfolder, zipped=zipped)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    data = load_mnist()
    assert_is_mnist(data, offline)
    where = f"COURSE_DATA/{subfolder}".rstrip("/")
    assert data.source == f"MNIST (6 + 4 images) from {where}."
    assert fetch_mnist() == f"MNIST is in {where}: 4 files, 0.0 MB, checksums right."


def test_course_data_comes_before_the_data_of_the_checkout(offline, tmp_path, monkeypatch):
    offline.put(offline.data / "mnist")
    assert load_mnist().source == "MNIST (6 + 4 images) from data/mnist."
    offline.put(tmp_path / "mine")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    assert load_mnist().source == "MNIST (6 + 4 images) from COURSE_DATA."


def test_a_relative_course_data_means_the_same_in_a_subfolder_of_the_checkout(offline, tmp_path, monkeypatch):
    offline.put(tmp_path / "shared" / "mnist")
    monkeypatch.setenv("COURSE_DATA", "../shared")
    monkeypatch.chdir(offline.data.parent)
    assert load_mnist().real
    monkeypatch.chdir(offline.data)  # as the engines of a notebook in a subfolder
    assert load_mnist().real


def test_course_data_that_is_no_folder_is_an_error(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"COURSE_DATA=.*typo is not a folder; correct it, or unset it"):
        load_mnist()


def test_course_data_with_other_sets_only_is_said_and_passed_over(offline, tmp_path, monkeypatch):
    (tmp_path / "mine" / "cifar10").mkdir(parents=True)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    data = load_mnist()
    assert not data.real and data.source.endswith("COURSE_DATA holds no MNIST.")
    offline.put(offline.data / "mnist")
    assert load_mnist().source == "MNIST (6 + 4 images) from data/mnist. COURSE_DATA holds no MNIST."


def test_half_a_data_set_in_course_data_is_an_error_that_lists_the_rest(offline, tmp_path, monkeypatch):
    folder = offline.put(tmp_path / "mine")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setenv("COURSE_DATA", str(folder))
    with pytest.raises(
        DataError, match=r"has 3 of the 4 files of MNIST; add t10k-labels-idx1-ubyte.gz, or unset"
    ):
        load_mnist()


def test_half_a_download_is_never_used_and_said(offline):
    folder = offline.put(offline.data / "mnist")
    (folder / "train-images-idx3-ubyte.gz").unlink()
    data = load_mnist()
    assert not data.real and "data/mnist has only 3 of the 4 files of MNIST." in data.source


def another(content: bytes) -> bytes:
    """The same file with one bit of its last entry changed; a label stays one."""
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_one_other_pixel_or_label_in_course_data_makes_it_your_own(file, offline, tmp_path, monkeypatch):
    folder = offline.put(tmp_path / "mine" / "mnist")
    (folder / f"{file}.gz").write_bytes(gzip.compress(another(offline.contents[file])))
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    data = load_mnist()
    assert not data.real and data.name == "your own data"
    assert data.source == "Your own data in the format of MNIST (6 + 4 images) from COURSE_DATA/mnist."
    assert fetch_mnist() == data.source
    name = next(name for name, each in FIELDS.items() if each == file)
    assert (getattr(data, name) != offline.arrays[file]).sum() == 1


def idx(*shape: int, content: bytes | None = None) -> bytes:
    """An IDX file; zeros unless it has other `content`."""
    head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", length) for length in shape)
    return head + (bytes(math.prod(shape)) if content is None else content)


@pytest.mark.parametrize(
    ("file", "content", "clause"),
    [
        ("train_labels", idx(6, content=bytes([10] * 6)), "has the label 10, expected 0 to 9"),
        ("train_labels", idx(5), "do not fit together: 6 × 28 × 28 pixels and 5 labels"),
        ("train_images", idx(60_000, 50_000, 50_000, content=b""), "expected 150000000000000 entries"),
        ("train_images", idx(0, 2**32 - 1, 2**32 - 1, content=b""), "expected 0 entries"),
    ],
)
def test_your_own_files_are_refused_when_they_are_no_digits(
    file, content, clause, offline, tmp_path, monkeypatch
):
    folder = offline.put(tmp_path / "mine")
    (folder / f"{FIELDS[file]}.gz").write_bytes(content)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError, match=clause) as caught:
        load_mnist()
    assert str(folder) in str(caught.value)


IMAGES = "train-images-idx3-ubyte"


def damaged(content: bytes, gzipped: bytes) -> dict[str, tuple[bytes, str]]:
    """What can be wrong with a file of 6 images, and a part of the sentence that says so."""
    return {
        "another pixel": (another(content), "expected the unpacked sha256 .*, found"),
        "gzip truncated": (gzipped[:-200], r"is truncated: its \d+ bytes are not the whole of it"),
        "gzip damaged": (gzipped[:100] + bytes(50) + gzipped[150:], "damaged|truncated"),
        "truncated": (content[:-10], "expected 4704 entries, as its header says, found 4694"),
        "too long": (content + b"0", "expected 4704 entries, as its header says, found 4705"),
        "header only in part": (content[:10], "expected 0 entries, as its header says, found 0"),
        "a web page": (b"<html>no such file</html>", "found 3c 68 74 6d"),
    }


@pytest.mark.parametrize("kind", list(damaged(bytes(20), bytes(300))))
def test_a_wrong_file_is_an_error_that_names_it_and_the_remedy(kind, offline):
    path = offline.put(offline.data / "mnist") / f"{IMAGES}.gz"
    content, sentence = damaged(offline.contents[IMAGES], offline.gzipped[IMAGES])[kind]
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        load_mnist()
    assert str(path) in str(caught.value) and "delete it and run `course fetch`" in str(caught.value)


@pytest.mark.parametrize("how", ["packed by another gzip", "unpacked by a browser"])
def test_the_same_content_is_the_same_file_and_can_be_written_to(how, offline):
    path = offline.put(offline.data / "mnist") / f"{IMAGES}.gz"
    content = offline.contents[IMAGES]
    path.write_bytes(gzip.compress(content, 1, mtime=99) if how.startswith("packed") else content)
    data = load_mnist()
    assert_is_mnist(data, offline)
    data.train_images[0, 0, 0] = 7


def test_offline_the_drawn_digits_stand_in_and_nothing_is_connected_to(offline):
    data = load_mnist()
    assert data.source == (
        "Drawn digits (60 + 40) that stand in for MNIST: COURSE_OFFLINE=1 forbids downloads. "
        "The real ones: `course fetch`, with a network."
    )
    assert data.train_images.shape == (60, 28, 28) and data.test_images.shape == (40, 28, 28)
    assert data.train_labels.shape == (60,) and data.test_labels.shape == (40,)
    assert data.train_images.dtype == np.uint8 and data.train_labels.dtype == np.int64
    with pytest.raises(DataError, match="unset COURSE_OFFLINE"):
        fetch_mnist()


def test_without_offline_the_cut_network_is_noticed(small_mnist, connections, monkeypatch):
    small_mnist.register("https://mirror.example/mnist/")
    for value in ("", "0"):
        connections.clear()
        (small_mnist.data / "cache" / "mnist-not-downloaded").unlink(missing_ok=True)
        monkeypatch.setenv("COURSE_OFFLINE", value)
        assert "no mirror of MNIST could be reached" in load_mnist().source
        assert connections  # so that the check of the `offline` fixture can fail


def drawings(monkeypatch) -> list[int]:
    """How many digits are drawn from now on, call by call."""
    made, draw = [], mnist.draw_digits
    monkeypatch.setattr(
        mnist, "draw_digits", lambda samples, **kind: made.append(samples) or draw(samples, **kind)
    )
    return made


def test_without_matplotlib_one_sentence_says_what_to_install(offline, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(mnist, "version", missing)
    with pytest.raises(DataError, match=r"Drawing digits needs matplotlib's fonts: pip install matplotlib"):
        load_mnist()


def test_digits_are_drawn_once_and_then_read(offline, monkeypatch):
    made = drawings(monkeypatch)
    first, second = load_mnist(), load_mnist()
    assert made == [60, 40]
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.source == second.source


def test_a_full_disk_does_not_stop_a_lesson(offline, monkeypatch):
    def refuse(path, *_):
        raise DataError(
            "no space is left for data/cache/digits.npz (0.1 MB are free); make room and try again"
        )

    monkeypatch.setattr(dataset, "write_cache", refuse)
    data = load_mnist()
    assert len(data.train_labels) == 60
    assert "They are drawn anew each time: no space is left for data/cache/digits.npz" in data.source


def test_without_a_writable_folder_the_digits_are_drawn_and_that_is_said(offline, monkeypatch):
    monkeypatch.setattr(dataset, "writable_folder", lambda: None)
    assert "no folder of this machine can be written to" in load_mnist().source


def test_a_cache_in_a_folder_that_cannot_be_written_to_is_still_read(offline, monkeypatch):
    load_mnist()  # as the maker of a container image does
    made = drawings(monkeypatch)
    monkeypatch.setattr(storage, "_can_write", lambda folder: folder != offline.data)
    load_mnist()
    assert made == []
