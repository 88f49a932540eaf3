"""Downloads against mirrors on loopback: good ones, bad ones, none."""

import hashlib
import re
import subprocess
import sys

import pytest

from course_lib.training import downloads
from course_lib.training.datasets import fetch_mnist, load_mnist
from course_lib.training.downloads import (
    DeadlineBar,
    Download,
    DownloadError,
    RemoteFile,
    obtain,
    read_registry,
)
from course_lib.training.idx import IdxFile
from course_lib.training.storage import DataError
from tests.unit.training.test_storage import full_disk

LABELS = "t10k-labels-idx1-ubyte.gz"
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_files_are_downloaded_from_the_mirror_that_answers(small_mnist, mirrors):
    small_mnist.register(mirrors("missing"), mirrors("hangs"), mirrors("good"))
    folder = obtain(read_registry("mnist"), patience=20)
    assert folder == small_mnist.data / "mnist"
    assert files_in(folder) == sorted(f"{name}.gz" for name in small_mnist.contents)
    for name, content in small_mnist.gzipped.items():
        assert (folder / f"{name}.gz").read_bytes() == content
    assert mirrors.asked["hangs", LABELS] <= 1 and mirrors.asked["hangs", TRAIN_IMAGES] == 0


@pytest.mark.parametrize("bad", ["altered", "truncated", "stalls"])
def test_a_mirror_that_fails_later_is_replaced_by_the_next(bad, small_mnist, mirrors):
    small_mnist.register(mirrors(bad), mirrors("slow"))  # the bad one answers first
    folder = obtain(read_registry("mnist"), patience=30)
    assert not read_registry("mnist").missing(folder)
    assert mirrors.asked[bad, TRAIN_IMAGES] == 1  # and then no more:
    assert {name for kind, name in mirrors.asked if kind == bad} == {LABELS, TRAIN_IMAGES}
    assert load_mnist().real


@pytest.mark.parametrize("bad", ["altered", "truncated", "stalls"])
def test_a_file_that_is_not_right_never_gets_its_name(bad, small_mnist, mirrors):
    small_mnist.register(mirrors(bad))
    with pytest.raises(DownloadError, match=f"no mirror sent all of {TRAIN_IMAGES}") as caught:
        obtain(read_registry("mnist"), patience=30)
    assert len(caught.value.details) == 1 and caught.value.details[0].startswith("127.0.0.1:")
    assert files_in(small_mnist.data / "mnist") == []


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        ("missing", "HTTPError"),
        ("login", "another file"),
        ("hangs", "no answer within 1 s|ReadTimeout|ConnectionError"),
    ],
)
def test_one_question_a_mirror_tells_that_none_can_be_used(bad, outcome, small_mnist, mirrors):
    small_mnist.register(*[mirrors(bad)] * 3)
    with pytest.raises(DownloadError, match="no mirror of MNIST could be reached") as caught:
        obtain(read_registry("mnist"), patience=30)
    assert len(caught.value.details) == 3
    assert all(re.search(outcome, detail) for detail in caught.value.details)
    assert mirrors.asked == {(bad, LABELS): 3}


def test_a_network_that_was_away_is_not_asked_again_by_the_next_rank(small_mnist, mirrors, monkeypatch):
    small_mnist.register(mirrors("missing"))
    first = load_mnist()
    asked = dict(mirrors.asked)
    assert asked == {("missing", LABELS): 1}
    second = load_mnist()
    assert mirrors.asked == asked
    assert first.source == second.source and not second.real
    monkeypatch.setattr(downloads, "REMEMBERED_SECONDS", 0.0)
    load_mnist()
    assert mirrors.asked == {("missing", LABELS): 2}


def test_fetch_insists_and_the_next_lesson_has_real_digits(small_mnist, mirrors):
    small_mnist.register(mirrors("missing"))
    assert not load_mnist().real
    small_mnist.register(mirrors("good"))
    assert not load_mnist().real  # remembered
    assert fetch_mnist() == "MNIST is in data/mnist: 4 files, 0.0 MB, checksums right."
    dataset = load_mnist()
    assert dataset.real and dataset.source == "MNIST (6 + 4 images) from data/mnist."


def test_fetch_says_what_each_mirror_did(small_mnist, mirrors):
    small_mnist.register(mirrors("missing"), mirrors("login"))
    with pytest.raises(DataError, match=r"127.0.0.1:\d+: HTTPError; .*a login page.*into data/mnist"):
        fetch_mnist()


def test_an_unfinished_download_is_finished(small_mnist, mirrors):
    small_mnist.register(mirrors("good"))
    small_mnist.put(small_mnist.data / "mnist")
    (small_mnist.data / "mnist" / TRAIN_IMAGES).unlink()
    leftover = small_mnist.data / "mnist" / ".partial" / "tmp1"
    leftover.parent.mkdir()
    leftover.write_text("of a killed process")
    assert load_mnist().real
    assert mirrors.asked == {("good", LABELS): 1, ("good", TRAIN_IMAGES): 1}
    assert not leftover.exists()


def test_a_download_ends_when_patience_does(small_mnist, mirrors):
    small_mnist.register(mirrors("good"))
    with pytest.raises(DownloadError, match="downloading MNIST takes longer than 0 s"):
        obtain(read_registry("mnist"), patience=0)


def test_a_progress_bar_stops_a_mirror_that_dribbles():
    with DeadlineBar(float("inf"), "patient") as bar:
        bar.update(8192)
    with DeadlineBar(0.0, "late") as bar, pytest.raises(TimeoutError):
        bar.update(8192)


def test_a_full_disk_is_one_sentence(small_mnist, mirrors):
    small_mnist.register(mirrors("good"))
    with full_disk(100), pytest.raises(DownloadError, match=r"no space is left for data/mnist"):
        obtain(read_registry("mnist"), patience=20)
    assert files_in(small_mnist.data / "mnist") == []


def test_without_a_writable_folder_nothing_is_asked(small_mnist, mirrors, monkeypatch):
    small_mnist.register(mirrors("good"))
    monkeypatch.setattr(downloads, "writable_home", lambda: None)
    with pytest.raises(DownloadError, match="no folder of this machine can be written to"):
        obtain(read_registry("mnist"), patience=20)
    assert not mirrors.asked


LOAD = """
import sys
from pathlib import Path
from course_lib.training import datasets, downloads, storage
storage.DATA = Path(sys.argv[1])
downloads.REGISTRY = storage.DATA / "registry.toml"
datasets.TRAIN, datasets.TEST = 60, 40
print(datasets.load_mnist().source)
"""


def load_in_processes(data, number: int) -> list[str]:
    """What `number` processes that start together get."""
    command = [sys.executable, "-c", LOAD, str(data)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    return [process.communicate(timeout=120)[0].strip() for process in processes]


def test_four_processes_download_each_file_once(small_mnist, mirrors):
    small_mnist.register(mirrors("slow"))
    assert load_in_processes(small_mnist.data, 4) == ["MNIST (6 + 4 images) from data/mnist."] * 4
    once = {("slow", f"{name}.gz"): 1 for name in small_mnist.contents}
    assert mirrors.asked == once | {("slow", LABELS): 2}  # and once to choose the mirror


def test_four_processes_ask_a_dead_network_once(small_mnist, mirrors):
    small_mnist.register(mirrors("missing"))
    sources = load_in_processes(small_mnist.data, 4)
    assert len(set(sources)) == 1 and "no mirror of MNIST could be reached" in sources[0]
    assert mirrors.asked == {("missing", LABELS): 1}


@pytest.mark.parametrize(
    ("seconds", "received", "hopeless"),
    [
        (4, 1, False),  # too early to say
        (10, 1_000, True),  # 0.1 kB/s: 990 s to go
        (10, 40_000, False),  # 4 kB/s: 15 s to go, and 90 are left
        (10, 6_000, False),  # 0.6 kB/s: 157 s to go, less than twice what is left
        (95, 50_000, True),  # 95 s to go, and 5 are left
    ],
)
def test_a_download_that_cannot_end_in_time_is_given_up_early(seconds, received, hopeless):
    with DeadlineBar(0.0, "paced") as bar:
        bar.began, bar.deadline = 1_000.0, 1_100.0
        assert not bar.is_hopeless(1_000.0 + seconds)  # of an unknown length
        bar.total, bar.n = 100_000, received
        assert bar.is_hopeless(1_000.0 + seconds) is hopeless


@pytest.fixture
def large_mnist(small_mnist, mirrors, monkeypatch):
    """Its files are too large to be sent whole for an answer."""
    monkeypatch.setattr(downloads, "SMALL_NBYTES", 0)
    return small_mnist


def test_of_a_large_file_a_mirror_is_asked_for_the_beginning_only(large_mnist, mirrors):
    large_mnist.register(mirrors("missing"), mirrors("login"), mirrors("hangs"), mirrors("good"))
    folder = obtain(read_registry("mnist"), patience=20)
    assert not read_registry("mnist").missing(folder)
    assert load_mnist().real
    assert mirrors.asked["login", TRAIN_IMAGES] == mirrors.asked["missing", TRAIN_IMAGES] == 0


@pytest.mark.parametrize("bad", ["missing", "login", "hangs"])
def test_no_mirror_of_a_large_file_is_one_sentence(bad, large_mnist, mirrors):
    large_mnist.register(mirrors(bad))
    with pytest.raises(DownloadError, match="no mirror of MNIST could be reached"):
        obtain(read_registry("mnist"), patience=20)


@pytest.mark.parametrize("known", [True, False])
def test_a_file_is_kept_as_it_was_sent_and_checked_if_its_sha256_is_known(known, small_mnist, mirrors):
    name, content = LABELS, small_mnist.gzipped["t10k-labels-idx1-ubyte"]
    sha256 = hashlib.sha256(content).hexdigest() if known else ""
    file = RemoteFile(name, len(content) if known else 0, sha256)
    assert (file.sent_name, file.magic) == (name, b"\x1f\x8b")
    assert RemoteFile("test.parquet").magic == b"PAR1"
    folder = obtain(Download("other", "Others", (mirrors("good"),), (file,)), patience=20)
    assert (folder / name).read_bytes() == content
    altered = Download("altered", "Others", (mirrors("good"),), (RemoteFile(name, 0, "0" * 64),))
    with pytest.raises(DownloadError, match=f"no mirror sent all of {name}"):
        obtain(altered, patience=20)
    assert files_in(small_mnist.data / "altered") == []


def test_the_registry_lists_arrays_and_files():
    assert {type(file) for file in read_registry("mnist").files} == {IdxFile}
    for name in ("cifar10", "cnn_dailymail"):
        download = read_registry(name)
        assert {type(file) for file in download.files} == {RemoteFile}
        assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in download.mirrors)
