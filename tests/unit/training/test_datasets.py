"""Which digits `load_mnist` returns, and what it says of them."""

import socket

import numpy as np
import pytest

from course_lib.training import datasets, storage
from course_lib.training.datasets import Dataset, fetch_mnist, load_mnist
from course_lib.training.storage import DataError

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


def assert_is_mnist(dataset: Dataset, small) -> None:
    assert dataset.real
    for name, file in FIELDS.items():
        np.testing.assert_array_equal(getattr(dataset, name), small.arrays[file])
    assert dataset.train_images.dtype == np.uint8 and dataset.test_labels.dtype == np.int64


@pytest.mark.parametrize("subfolder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_course_data_is_used_as_it_is_or_by_its_subfolder(subfolder, zipped, offline, tmp_path, monkeypatch):
    offline.put(tmp_path / "mine" / subfolder, zipped=zipped)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    dataset = load_mnist()
    assert_is_mnist(dataset, offline)
    where = f"COURSE_DATA/{subfolder}".rstrip("/")
    assert dataset.source == f"MNIST (6 + 4 images) from {where}."
    assert fetch_mnist() == f"MNIST is in {where}: 4 files, 0.0 MB, checksums right."


def test_course_data_comes_before_the_data_of_the_checkout(offline, tmp_path, monkeypatch):
    offline.put(offline.data / "mnist")
    assert load_mnist().source == "MNIST (6 + 4 images) from data/mnist."
    offline.put(tmp_path / "mine")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    assert load_mnist().source == "MNIST (6 + 4 images) from COURSE_DATA."


def test_a_relative_course_data_means_the_same_in_a_subfolder_of_the_checkout(offline, tmp_path, monkeypatch):
    offline.put(tmp_path / "shared" / "mnist")
    monkeypatch.setattr(datasets, "ROOT", offline.data.parent)
    monkeypatch.setenv("COURSE_DATA", "../shared")
    monkeypatch.chdir(offline.data.parent)
    assert load_mnist().real
    monkeypatch.chdir(offline.data)  # as the engines of a notebook in a subfolder
    assert load_mnist().real


def test_course_data_that_is_no_folder_or_empty_is_an_error(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"COURSE_DATA=.*typo is not a folder; correct it, or unset it"):
        load_mnist()
    (tmp_path / "typo").mkdir()
    with pytest.raises(DataError, match=r"COURSE_DATA=.*typo is an empty folder"):
        load_mnist()


def test_course_data_with_other_sets_only_is_said_and_passed_over(offline, tmp_path, monkeypatch):
    (tmp_path / "mine" / "cifar10").mkdir(parents=True)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    dataset = load_mnist()
    assert not dataset.real and dataset.source.endswith("COURSE_DATA holds no MNIST.")
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
    dataset = load_mnist()
    assert not dataset.real and "data/mnist has only 3 of the 4 files of MNIST." in dataset.source


@pytest.mark.parametrize("file", FIELDS.values())
def test_one_wrong_file_spoils_the_set(file, offline):
    folder = offline.put(offline.data / "mnist")
    content = bytearray(offline.contents[file])
    content[-1] ^= 1
    (folder / f"{file}.gz").write_bytes(content)
    with pytest.raises(DataError, match=f"{file}.gz is not the original file"):
        load_mnist()


def test_offline_the_drawn_digits_stand_in_and_nothing_is_connected_to(offline):
    dataset = load_mnist()
    assert dataset.source == (
        "Drawn digits (60 + 40) that stand in for MNIST: COURSE_OFFLINE=1 forbids downloads. "
        "The real ones: `course fetch`, with a network."
    )
    assert dataset.train_images.shape == (60, 28, 28) and dataset.test_images.shape == (40, 28, 28)
    assert dataset.train_labels.shape == (60,) and dataset.test_labels.shape == (40,)
    assert dataset.train_images.dtype == np.uint8 and dataset.train_labels.dtype == np.int64
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


def drawings(monkeypatch) -> list[tuple[int, int]]:
    """The sizes that are drawn from now on."""
    made, draw = [], datasets.draw
    monkeypatch.setattr(datasets, "draw", lambda train, test: made.append((train, test)) or draw(train, test))
    return made


def test_digits_are_drawn_once_and_then_read(offline, monkeypatch):
    made = drawings(monkeypatch)
    first, second = load_mnist(), load_mnist()
    assert made == [(60, 40)]
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.source == second.source


def test_a_truncated_or_outdated_cache_is_made_anew(offline, monkeypatch):
    first = load_mnist()
    made, cache = drawings(monkeypatch), offline.data / "cache" / "digits.npz"
    cache.write_bytes(cache.read_bytes()[:-1000])
    np.testing.assert_array_equal(load_mnist().train_images, first.train_images)
    monkeypatch.setattr(datasets, "RECIPE", 999)
    load_mnist()
    load_mnist()
    assert made == [(60, 40)] * 2


def test_a_full_disk_does_not_stop_a_lesson(offline, monkeypatch):
    def refuse(path, *_):
        raise DataError(
            "no space is left for data/cache/digits.npz (0.1 MB are free); make room and try again"
        )

    monkeypatch.setattr(datasets, "write_npz", refuse)
    dataset = load_mnist()
    assert len(dataset.train_labels) == 60
    assert "They are drawn anew each time: no space is left for data/cache/digits.npz" in dataset.source


def test_without_a_writable_folder_the_digits_are_drawn_and_that_is_said(offline, monkeypatch):
    monkeypatch.setattr(datasets, "writable_home", lambda: None)
    assert "no folder of this machine can be written to" in load_mnist().source


def test_a_cache_in_a_folder_that_cannot_be_written_to_is_still_read(offline, monkeypatch):
    load_mnist()  # as the maker of a container image does
    made = drawings(monkeypatch)
    monkeypatch.setattr(storage, "_can_write", lambda home: home != offline.data)
    load_mnist()
    assert made == []


def test_a_data_set_shows_its_source_and_not_its_pixels(offline):
    assert repr(load_mnist()).startswith("Dataset(source='Drawn digits (60 + 40)")
    assert "array" not in repr(load_mnist())


def test_loading_prints_nothing(offline, capfd):
    load_mnist()
    assert capfd.readouterr() == ("", "")
