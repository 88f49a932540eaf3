"""Which images `load_cifar10` returns, in every form that CIFAR-10 is met in, and what it refuses."""

import gzip
import hashlib
import io
import lzma
import socket
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from course_lib.data import cifar10, downloads
from course_lib.data.cifar10 import fetch_cifar10, from_pickle, load_cifar10
from course_lib.data.drawn_shapes import CLASS_NAMES, draw_shapes
from course_lib.data.packed import GZIP_MAGIC
from course_lib.data.storage import DataError
from tests.unit.data.cifar_files import NAMES, PIXELS, TRAIN_NAMES, pickled, tar_of

IMAGES = 4  # of a batch
PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@dataclass
class SmallCifar:
    """CIFAR-10 with four images per batch, and the data folder whose registry knows it."""

    data: Path
    rows: dict[str, np.ndarray]  # of each batch, (4, 3073)

    def files(self, kind: str) -> dict[str, bytes]:
        """The files of the `python` or the `binary` version."""
        if kind == "python":
            return {name: pickled(rows) for name, rows in self.rows.items()}
        return {f"{name}.bin": rows.tobytes() for name, rows in self.rows.items()}

    def put(self, folder: Path, kind: str = "python", packed: str = "", only: list[str] = NAMES) -> Path:
        """Write the files of some batches to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(kind).items():
            if name.removesuffix(".bin") in only:
                (folder / f"{name}{packed}").write_bytes(PACKERS[packed](content))
        return folder

    def archive(self, kind: str = "python") -> bytes:
        """The original archive of a version."""
        folder = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[kind]
        meta = "batches.meta" if kind == "python" else "batches.meta.txt"
        files = {meta: b"names", "readme.html": b"<html>", **self.files(kind)}
        return tar_of({f"{folder}/{name}": files[name] for name in sorted(files, reverse=True)})

    def register(self, *mirrors: str) -> None:
        """Write the registry."""
        lines = ["[cifar10]", 'title = "CIFAR-10"', f"mirrors = {list(mirrors)}"]
        for table, kind in (("files", "python"), ("archives", "binary")):
            archive = self.archive(kind)
            lines += [f"[[cifar10.{table}]]", f'name = "cifar-10-{kind}.tar.gz"', f"nbytes = {len(archive)}"]
            lines += [f'sha256 = "{hashlib.sha256(archive).hexdigest()}"']
        for name, content in self.files("python").items():
            lines += ["[[cifar10.batches]]", f'name = "{name}"', "images = 4"]
            lines += [f'digests = ["md5:{"0" * 32}", "sha256:{hashlib.sha256(content).hexdigest()}"]']
            lines += [f'rows_sha256 = "{sums(self.rows[name])}"']
        (self.data / "registry.toml").write_text("\n".join(lines))


def sums(rows: np.ndarray) -> str:
    """The checksum of a batch, from its description."""
    return hashlib.sha256(b"".join(sorted(bytes(row) for row in rows))).hexdigest()


@pytest.fixture
def small(small_mnist, monkeypatch):
    """COURSE_OFFLINE=1 and no data."""
    rng = np.random.default_rng(2)
    rows = {name: rng.integers(0, 256, (IMAGES, 1 + PIXELS)).astype(np.uint8) for name in NAMES}
    for batch in rows.values():
        batch[:, 0] %= 10
    found = SmallCifar(small_mnist.data, rows)
    found.register()
    monkeypatch.setattr(cifar10, "TRAIN", 60)
    monkeypatch.setattr(cifar10, "TEST", 40)
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    return found


@pytest.fixture
def mine(small, tmp_path, monkeypatch):
    """A folder that COURSE_DATA names."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("COURSE_DATA", str(folder))
    return folder


def assert_is_cifar(data, small, train=TRAIN_NAMES, test="test_batch"):
    expected = np.concatenate([small.rows[name] for name in train])
    assert data.real and data.classes[3] == "cat" and len(data.classes) == 10
    for images, labels, rows in (
        (data.train_images, data.train_labels, expected),
        (data.test_images, data.test_labels, small.rows[test]),
    ):
        assert images.shape == (len(rows), 3, 32, 32) and images.dtype == np.uint8
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(images.reshape(len(rows), -1), rows[:, 1:])
        np.testing.assert_array_equal(labels, rows[:, 0])


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("kind", ["python", "binary"])
@pytest.mark.parametrize("folder", ["", "cifar10/its own"])
def test_folders_are_read_in_every_form(folder, kind, packed, small, mine):
    own = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[kind]
    at = folder.replace("its own", own)
    small.put(mine / at, kind, packed)
    data = load_cifar10()
    assert_is_cifar(data, small)
    assert data.source == f"CIFAR-10 (20 + 4 images) from {f'COURSE_DATA/{at}'.rstrip('/')}."
    assert fetch_cifar10() == f"{data.source} Checksums right."


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_the_original_archives_are_read(kind, small, mine):
    name = f"cifar-10-{kind}.tar.gz"
    (mine / name).write_bytes(small.archive(kind))
    data = load_cifar10()
    assert_is_cifar(data, small)
    assert data.source == f"CIFAR-10 (20 + 4 images) from COURSE_DATA/{name}."


def test_the_data_of_the_checkout_are_read_unless_course_data_has_them(small, mine, monkeypatch):
    (small.data / "cifar10").mkdir()
    (small.data / "cifar10" / "cifar-10-python.tar.gz").write_bytes(small.archive())
    (mine / "mnist").mkdir()
    data = load_cifar10()
    assert data.source == "CIFAR-10 (20 + 4 images) from data/cifar10/cifar-10-python.tar.gz."
    small.put(mine / "cifar10")
    assert load_cifar10().source.endswith("from COURSE_DATA/cifar10.")


def test_without_the_whole_test_batch_the_last_one_is_held_out(small, mine):
    small.put(mine, only=TRAIN_NAMES)
    (mine / "test_batch_first1017.xz").write_bytes(b"not read")
    data = load_cifar10()
    assert_is_cifar(data, small, TRAIN_NAMES[:4], "data_batch_5")
    assert data.source == (
        "CIFAR-10 (16 + 4 images) from COURSE_DATA. The full test batch is not there, so data_batch_5 is"
        " held out to test with."
    )


@pytest.mark.parametrize(("train", "batches"), [(1, 1), (4, 1), (5, 2), (99, 5)])
def test_only_as_many_batches_are_read_as_are_asked_for(train, batches, small, mine):
    small.put(mine)
    for name in TRAIN_NAMES[batches:]:
        (mine / name).write_bytes(b"not read")
    data = load_cifar10(train=train, test=3)
    expected = np.concatenate([small.rows[name] for name in TRAIN_NAMES])[:train]
    np.testing.assert_array_equal(data.train_labels, expected[:, 0])
    assert data.source.startswith(f"CIFAR-10 ({len(expected)} + 3 images)")
    assert len(data.test_labels) == len(data.test_images) == 3
    if batches < 5:
        with pytest.raises(DataError, match=f"{TRAIN_NAMES[batches]} is not opened"):
            load_cifar10(train=batches * IMAGES + 1)


def test_a_folder_with_some_of_the_batches_is_an_error(small, mine):
    small.put(mine / "cifar10", only=["data_batch_1", "data_batch_3", "data_batch_4", "test_batch"])
    with pytest.raises(
        DataError, match=r"cifar10 has a part of CIFAR-10 only; add data_batch_2, data_batch_5, or remove"
    ):
        load_cifar10()


def test_the_shapes_stand_in_and_say_why(small, mine):
    (mine / "mnist").mkdir()
    data = load_cifar10()
    assert data.source == (
        "Drawn shapes (60 + 40) that stand in for CIFAR-10: COURSE_OFFLINE=1 forbids downloads."
        " The real ones: `course fetch cifar10`, with a network. COURSE_DATA holds no CIFAR-10."
    )
    assert not data.real and data.classes == CLASS_NAMES
    images, labels = draw_shapes(60)
    np.testing.assert_array_equal(data.train_images, images)
    np.testing.assert_array_equal(data.train_labels, labels)
    few = load_cifar10(train=10, test=5)
    assert few.source.startswith("Drawn shapes (10 + 5) that")
    np.testing.assert_array_equal(few.train_images, images[:10])
    np.testing.assert_array_equal(few.test_images, data.test_images[:5])
    assert (small.data / "cache" / "shapes.npz").exists()
    with pytest.raises(ValueError, match="-1 images"):
        load_cifar10(test=-1)


def test_it_is_downloaded_as_it_is(small, monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_OFFLINE")
    asked = []

    def transfer(url, file, path, deadline):
        asked.append(url)
        path.write_bytes(small.archive())
        assert hashlib.sha256(small.archive()).hexdigest() == file.sha256

    monkeypatch.setattr(downloads, "transfer", transfer)
    monkeypatch.setattr(downloads, "opened", lambda url: nullcontext(io.BytesIO(GZIP_MAGIC)))
    small.register("https://mirror.example/")
    data = load_cifar10()
    assert_is_cifar(data, small)
    assert asked == ["https://mirror.example/cifar-10-python.tar.gz"]
    assert data.source == "CIFAR-10 (20 + 4 images) from data/cifar10/cifar-10-python.tar.gz."
    assert load_cifar10().source == data.source and len(asked) == 1


def test_a_network_that_is_away_leads_to_the_shapes(small, monkeypatch):
    def refuse(*_, **__):
        raise OSError("the network is cut")

    monkeypatch.delenv("COURSE_OFFLINE")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    small.register("https://mirror.example/")
    assert "no mirror of CIFAR-10 could be reached" in load_cifar10().source
    with pytest.raises(
        DataError, match=r"mirror.example: .*; try again later, or put cifar-10-python.tar.gz"
    ):
        fetch_cifar10()


FORGED = {  # what may be in the place of a file of the Python version
    "other images": pickled(np.zeros((4, 1 + PIXELS), np.uint8)),
    "os.system": b"\x80\x02cposix\nsystem\nU\x0atouch harm\x85R.",
    "text": b"<html>Welcome to the hotel",
    "nothing": b"",
}


def refusal(path, before, tmp_path) -> str:
    """The DataError that names `path`; quickly, and nothing is changed or executed."""
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        load_cifar10()
    assert time.monotonic() - began < 2
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and len(sentence) < 500
    assert "delete it and run `course fetch cifar10`, or put the original in its place" in sentence
    assert sorted(tmp_path.rglob("*")) == before
    return sentence


@pytest.mark.parametrize("packed", ["", ".xz"])
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_pickle_is_refused_with_its_name_and_not_opened(
    kind, packed, small, mine, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cifar10, "from_pickle", from_some_pickles(small))
    small.put(mine, packed=packed)
    path = mine / f"data_batch_2{packed}"
    path.write_bytes(PACKERS[packed](FORGED[kind]))
    sentence = refusal(path, sorted(tmp_path.rglob("*")), tmp_path)
    assert "is not opened: a pickle can run any code" in sentence


def from_some_pickles(small):
    """`from_pickle` that fails for all but the pickles of `small`."""
    allowed = set(small.files("python").values())

    def read(content):
        assert content in allowed
        return from_pickle(content)

    return read


FORGED_ARCHIVES = {
    "one bit": lambda small: small.archive()[:100] + b"?" + small.archive()[101:],
    "half of it": lambda small: small.archive()[: len(small.archive()) // 2],
}


@pytest.mark.parametrize("kind", FORGED_ARCHIVES)
def test_an_archive_that_is_not_the_original_is_not_opened(kind, small, mine, tmp_path, monkeypatch):
    path = mine / "cifar-10-python.tar.gz"
    path.write_bytes(FORGED_ARCHIVES[kind](small))
    monkeypatch.setattr(cifar10.tarfile, "open", None)
    sentence = refusal(path, sorted(tmp_path.rglob("*")), tmp_path)
    assert "is not opened: its length or its sha256 is not that of the original" in sentence


def test_your_own_images_are_read_in_the_binary_version_and_labelled(small, mine):
    small.rows["data_batch_2"] = small.rows["data_batch_2"][:3]
    small.rows["test_batch"][0, 5] ^= 1
    small.put(mine, "binary")
    data = load_cifar10()
    assert not data.real and data.name == "your own data"
    assert data.source == "Your own data in the format of CIFAR-10 (19 + 4 images) from COURSE_DATA."
    assert fetch_cifar10() == data.source
    np.testing.assert_array_equal(data.test_images.reshape(4, -1), small.rows["test_batch"][:, 1:])
    assert load_cifar10(train=4, test=0).train_labels.tolist() == small.rows["data_batch_1"][:, 0].tolist()


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (bytes(3073 * 4 - 1), "its 12291 bytes are not rows of 3073"),
        (bytes([10]) + bytes(3073 * 4 - 1), "the label 10"),
        (b"", "its 0 bytes are not rows"),
        (bytes(3073 * 9), "unpacks to more than"),
    ],
)
def test_a_forged_binary_file_is_refused(content, clause, small, mine):
    small.put(mine, "binary")
    (mine / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_2.bin .*{clause}"):
        load_cifar10()
