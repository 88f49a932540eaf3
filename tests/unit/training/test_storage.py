"""Files appear whole or not at all, and one process a machine makes them."""

import os
import resource
import tempfile
from contextlib import contextmanager

import filelock
import numpy as np
import pytest

from course_lib.training import storage
from course_lib.training.storage import (
    DataError,
    homes,
    machine_lock,
    read_npz,
    shown,
    writable_home,
    write_npz,
)


@pytest.fixture
def cache(small_mnist):
    return writable_home() / "cache" / "digits.npz"


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
    write_npz(cache, "recipe 1", ARRAYS)
    back = read_npz(cache, "recipe 1")
    assert back is not None and sorted(back) == ["images", "labels"]
    np.testing.assert_array_equal(back["images"], ARRAYS["images"])
    assert os.listdir(cache.parent) == ["digits.npz"]


def test_a_cache_of_another_recipe_is_none(cache):
    write_npz(cache, "recipe 1", ARRAYS)
    assert read_npz(cache, "recipe 2") is None


def test_no_truncation_of_a_cache_goes_unnoticed(cache):
    write_npz(cache, "recipe 1", ARRAYS)
    whole = cache.read_bytes()
    for kept in range(0, len(whole), 97):
        cache.write_bytes(whole[:kept])
        assert read_npz(cache, "recipe 1") is None


def test_a_changed_byte_in_an_array_is_noticed(cache):
    write_npz(cache, "recipe 1", ARRAYS)
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 1
    cache.write_bytes(content)
    assert read_npz(cache, "recipe 1") is None


def test_a_full_disk_is_one_sentence_and_the_old_cache_stays(cache):
    write_npz(cache, "recipe 1", {"images": np.arange(3)})
    with full_disk(2000), pytest.raises(DataError, match=r"no space is left for .*MB are free.*make room"):
        write_npz(cache, "recipe 2", ARRAYS)
    assert read_npz(cache, "recipe 1") is not None
    assert os.listdir(cache.parent) == ["digits.npz"]


def test_waiting_for_another_process_has_an_end(small_mnist):
    home = writable_home()
    with (
        filelock.FileLock(home / "cache" / "lock"),
        pytest.raises(DataError, match=r"another process has been .* more than 0 s \(it holds .*/lock\)"),
        machine_lock(home, 0.2),
    ):
        pass
    with machine_lock(home, 0.2):  # it is free again
        pass


def test_the_checkout_comes_first_then_the_user_then_tmp(small_mnist, tmp_path):
    temporary = tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    assert homes() == [small_mnist.data, tmp_path / "user" / "course_lib", temporary]
    assert writable_home() == small_mnist.data


def test_a_home_that_cannot_be_made_is_passed_over(small_mnist, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(storage, "DATA", tmp_path / "file" / "data")
    assert writable_home() == tmp_path / "user" / "course_lib"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert writable_home() == tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert writable_home() is None


def test_a_folder_that_another_user_made_in_tmp_is_no_home(small_mnist, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp" / f"course_lib-{os.getuid()}"
    temporary.mkdir(parents=True)
    assert temporary in homes()
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    temporary.rename(tmp_path / "tmp" / f"course_lib-{mine + 1}")
    assert len(homes()) == 2


def test_a_path_is_shown_as_it_is_on_any_machine(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    assert shown(small_mnist.data / "mnist") == "data/mnist"
    assert shown(tmp_path / "ada" / ".cache" / "course_lib") == "~/.cache/course_lib"
    assert shown(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")
