"""Files appear whole or not at all, and one process per machine makes them."""

import hashlib
import io
import os
import resource
import tempfile
import zipfile
from contextlib import contextmanager

import filelock
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.data import storage
from course_lib.data.storage import (
    DataError,
    data_folders,
    machine_lock,
    read_cache,
    shown,
    writable_folder,
    write_cache,
)


@pytest.fixture
def cache(small_mnist):
    return writable_folder() / "cache" / "digits.npz"


@contextmanager
def full_disk(nbytes: int):
    """No file grows beyond `nbytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ARRAYS = {"images": np.arange(9000, dtype=np.uint8), "labels": np.arange(5)}


def test_arrays_are_read_back(cache):
    write_cache(cache, "recipe 1", ARRAYS)
    back = read_cache(cache, "recipe 1")
    assert back is not None and sorted(back) == ["images", "labels"]
    np.testing.assert_array_equal(back["images"], ARRAYS["images"])
    assert os.listdir(cache.parent) == ["digits.npz"]


def test_a_cache_of_another_recipe_is_none(cache):
    write_cache(cache, "recipe 1", ARRAYS)
    assert read_cache(cache, "recipe 2") is None


@given(st.integers(0, 20_000), st.integers(1, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_anywhere_in_a_cache_is_noticed_and_said(cache, at, change):
    write_cache(cache, "recipe 1", ARRAYS)
    content = bytearray(cache.read_bytes())
    content[at % len(content)] ^= change
    cache.write_bytes(content)
    with pytest.warns(UserWarning, match=r"digits.npz is damaged \(.*\), so its content is made anew\.$"):
        assert read_cache(cache, "recipe 1") is None


def archived(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """A cache whose digest is right, and whose .npz has these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue() + hashlib.sha256(file.getvalue()).digest()


def npy(header: str, content: bytes = b"") -> bytes:
    """An array as NumPy's format writes it."""
    padded = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + content


PICKLE = b"cos\nsystem\n(S'touch harm'\ntR."
FORGED_CACHES = {
    "no zip": hashlib.sha256(b"").digest() + b"x",
    "not even a digest": b"x",
    "packed arrays": archived(zipfile.ZIP_DEFLATED, a=npy("{}")),
    "an array of pickles": archived(a=npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", PICKLE)),
    "a claim of 2^60 bytes": archived(
        a=npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**60},)}}")
    ),
    "a deep header": archived(a=npy("(" * 5000)),
    "no header": archived(a=b"\x93NUMPY"),
    "no array": archived(a=b"text"),
}


@pytest.mark.parametrize("kind", FORGED_CACHES)
def test_a_forged_cache_is_made_anew(kind, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache.write_bytes(FORGED_CACHES[kind])
    with pytest.warns(UserWarning, match=r"digits.npz is damaged"):
        assert read_cache(cache, "recipe 1") is None
    assert not (tmp_path / "harm").exists()


def test_a_full_disk_is_one_sentence_and_the_old_cache_stays(cache):
    write_cache(cache, "recipe 1", {"images": np.arange(3)})
    with full_disk(2000), pytest.raises(DataError, match=r"no space is left for .*MB are free.*make room"):
        write_cache(cache, "recipe 2", ARRAYS)
    assert read_cache(cache, "recipe 1") is not None
    assert os.listdir(cache.parent) == ["digits.npz"]


def test_waiting_for_another_process_has_an_end(small_mnist):
    folder = writable_folder()
    with (
        filelock.FileLock(folder / "cache" / "lock"),
        pytest.raises(DataError, match=r"another process has been .* more than 0 s \(it holds .*/lock\)"),
        machine_lock(folder, 0.2),
    ):
        pass
    with machine_lock(folder, 0.2):  # it is free again
        pass


def test_the_checkout_comes_first_then_the_user_then_tmp(small_mnist, tmp_path):
    temporary = tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    assert data_folders() == [small_mnist.data, tmp_path / "user" / "course_lib", temporary]
    assert writable_folder() == small_mnist.data


def test_a_home_that_cannot_be_made_is_passed_over(small_mnist, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(storage, "CHECKOUT_DATA", tmp_path / "file" / "data")
    assert writable_folder() == tmp_path / "user" / "course_lib"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert writable_folder() == tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert writable_folder() is None


def test_a_folder_that_another_user_made_in_tmp_is_no_home(small_mnist, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    temporary.mkdir(parents=True, mode=0o700)
    assert temporary in data_folders()
    temporary.chmod(0o777)
    assert temporary not in data_folders(), "others may have put something there"
    temporary.chmod(0o700)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    temporary.rename(tmp_path / "tmp" / f"course_lib-{mine + 1}")
    assert len(data_folders()) == 2


def test_a_path_is_shown_as_it_is_on_any_machine(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    assert shown(small_mnist.data / "mnist") == "data/mnist"
    assert shown(tmp_path / "ada" / ".cache" / "course_lib") == "~/.cache/course_lib"
    assert shown(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")


def test_a_link_in_tmp_is_not_followed_and_our_folder_there_is_ours_alone(small_mnist, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    temporary.symlink_to(tmp_path / "elsewhere")
    assert temporary not in data_folders()
    temporary.unlink()
    monkeypatch.setattr(storage, "CHECKOUT_DATA", None)
    (tmp_path / "user").write_text("no folder")
    assert writable_folder() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_outside_a_checkout_the_users_cache_is_used(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CHECKOUT_DATA", None)
    assert writable_folder() == tmp_path / "user" / "course_lib"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(storage.sys, "platform", "linux")
    assert storage.user_cache() == tmp_path / ".cache"
    monkeypatch.setattr(storage.sys, "platform", "darwin")
    assert storage.user_cache() == tmp_path / "Library" / "Caches"


def test_downloads_go_to_course_data_if_it_can_be_written_to(small_mnist, tmp_path, monkeypatch):
    assert storage.download_folder() == small_mnist.data
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mine"))
    assert storage.download_folder() == tmp_path / "mine"
    monkeypatch.setattr(storage.os, "access", lambda path, mode: tmp_path / "mine" not in (path, path.parent))
    assert storage.download_folder() == small_mnist.data
