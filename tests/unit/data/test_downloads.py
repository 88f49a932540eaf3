"""Downloads against mirrors on loopback: good ones, bad ones, none."""

import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from course_lib.data import downloads
from course_lib.data.downloads import DownloadError, is_hopeless, obtain, read_registry
from course_lib.data.mnist import fetch_mnist, load_mnist
from course_lib.data.storage import DataError
from tests.unit.data.test_storage import full_disk

LABELS = "t10k-labels-idx1-ubyte.gz"
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_files_are_downloaded_from_the_mirror_that_answers(small_mnist, mirrors):
    small_mnist.register(mirrors("missing"), mirrors("hangs"), mirrors("good"))
    folder = obtain(read_registry("mnist"), timeout=20)
    assert folder == small_mnist.data / "mnist"
    assert files_in(folder) == sorted(f"{name}.gz" for name in small_mnist.contents)
    for name, content in small_mnist.gzipped.items():
        assert (folder / f"{name}.gz").read_bytes() == content
    assert mirrors.asked["hangs", LABELS] <= 1 and mirrors.asked["hangs", TRAIN_IMAGES] == 0


@pytest.mark.parametrize("bad", ["altered", "truncated", "longer", "stalls"])
def test_a_mirror_that_fails_later_is_replaced_by_the_next(bad, small_mnist, mirrors):
    small_mnist.register(mirrors(bad), mirrors("slow"))  # the bad one answers first
    folder = obtain(read_registry("mnist"), timeout=30)
    assert not read_registry("mnist").missing(folder)
    assert mirrors.asked[bad, TRAIN_IMAGES] == 1  # and then no more:
    assert {name for kind, name in mirrors.asked if kind == bad} == {LABELS, TRAIN_IMAGES}
    assert load_mnist().real


@pytest.mark.parametrize("bad", ["altered", "truncated", "longer", "stalls"])
def test_a_file_that_is_not_right_never_gets_its_name(bad, small_mnist, mirrors):
    small_mnist.register(mirrors(bad))
    with pytest.raises(DownloadError, match=f"no mirror sent all of {TRAIN_IMAGES}") as caught:
        obtain(read_registry("mnist"), timeout=30)
    assert len(caught.value.details) == 1 and caught.value.details[0].startswith("127.0.0.1:")
    assert files_in(small_mnist.data / "mnist") == []


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        ("missing", "HTTPError"),
        ("login", "another file"),
        ("hangs", "no answer within 1 s|TimeoutError|URLError"),
    ],
)
def test_one_question_a_mirror_tells_that_none_can_be_used(bad, outcome, small_mnist, mirrors):
    small_mnist.register(*[mirrors(bad)] * 3)
    with pytest.raises(DownloadError, match="no mirror of MNIST could be reached") as caught:
        obtain(read_registry("mnist"), timeout=30)
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


def test_a_mirror_that_dribbles_is_left_at_the_timeout(small_mnist, mirrors):
    small_mnist.register(mirrors("dribbles"))
    began = time.monotonic()
    with pytest.raises(DownloadError, match="downloading MNIST takes longer than 2 s"):
        obtain(read_registry("mnist"), timeout=2)
    assert time.monotonic() - began < 4.5  # and not only when its pace is judged


def test_no_more_is_received_than_the_length_that_is_registered(small_mnist, mirrors, monkeypatch):
    received = []
    monkeypatch.setattr(downloads, "progress", lambda name, nbytes: nullcontext(received.append))
    small_mnist.register(mirrors("longer"))
    with pytest.raises(DownloadError) as caught:
        obtain(read_registry("mnist"), timeout=20)
    (detail,) = caught.value.details
    assert "more than the " in detail and "bytes of the original" in detail
    first = len(small_mnist.gzipped["train-images-idx3-ubyte"])
    assert sum(received) <= first and mirrors.sent["longer"] < 64 << 20  # what fits into sockets' buffers
    assert files_in(small_mnist.data / "mnist") == []


def test_a_download_goes_to_course_data(small_mnist, mirrors, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    small_mnist.register(mirrors("good"))
    assert load_mnist().source == "MNIST (6 + 4 images) from COURSE_DATA/mnist."
    assert files_in(tmp_path / "mine") == ["mnist"]  # locks and caches are elsewhere
    assert files_in(tmp_path / "mine" / "mnist") == sorted(f"{name}.gz" for name in small_mnist.contents)


def test_files_are_on_disk_before_they_get_their_names(small_mnist, mirrors, monkeypatch):
    small_mnist.register(mirrors("good"))
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(downloads.os, "fsync", lambda number: order.append("fsync") or fsync(number))
    monkeypatch.setattr(downloads.os, "replace", lambda *paths: order.append("replace") or replace(*paths))
    obtain(read_registry("mnist"), timeout=20)
    assert order == ["fsync"] * 4 + ["replace"] * 4 + ["fsync"]  # the last one is the folder's


def test_a_full_disk_is_one_sentence(small_mnist, mirrors):
    small_mnist.register(mirrors("good"))
    with full_disk(100), pytest.raises(DownloadError, match=r"no space is left for data/mnist"):
        obtain(read_registry("mnist"), timeout=20)
    assert files_in(small_mnist.data / "mnist") == []


def test_without_a_writable_folder_nothing_is_asked(small_mnist, mirrors, monkeypatch):
    small_mnist.register(mirrors("good"))
    monkeypatch.setattr(downloads, "writable_folder", lambda: None)
    with pytest.raises(DownloadError, match="no folder of this machine can be written to"):
        obtain(read_registry("mnist"), timeout=20)
    assert not mirrors.asked


LOAD = """
import sys
from pathlib import Path
from course_lib.data import downloads, mnist, storage
storage.CHECKOUT_DATA = Path(sys.argv[1])
downloads.REGISTRY = storage.CHECKOUT_DATA / "registry.toml"
mnist.TRAIN, mnist.TEST = 60, 40
print(mnist.load_mnist().source)
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


@pytest.mark.parametrize(
    ("seconds", "received", "hopeless"),
    [
        (4, 1, False),  # too early to say
        (10, 1_000, True),  # 0.1 kB/s: 990 s to go
        (10, 40_000, False),  # 4 kB/s: 15 s to go, and 90 are left
        (10, 6_000, False),  # 0.6 kB/s: 157 s to go, less than twice what is left
    ],
)
def test_a_download_that_cannot_end_in_time_is_given_up_early(seconds, received, hopeless):
    assert is_hopeless(received, 100_000, seconds, 100 - seconds) is hopeless


def test_the_registry_lists_what_can_be_downloaded():
    for name in ("mnist", "cifar10"):
        download = read_registry(name)
        assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in download.mirrors)
        assert all(len(file.sha256) == 64 and file.nbytes for file in download.files)
