"""Packed files are unpacked within limits, and recognised by their digests."""

import gzip
import hashlib
import lzma
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.data import packed as packed_module
from course_lib.data.packed import has_digest, read_within
from course_lib.data.storage import DataError

CONTENT = bytes(range(256)) * 40
REMEDY = "get another"
PACKERS = {"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress}


@pytest.fixture
def put(tmp_path):
    """Write bytes to a file."""

    def write(content: bytes, name: str = "file"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("packing", PACKERS)
def test_a_file_is_unpacked_whatever_its_name(packing, put):
    assert read_within(put(PACKERS[packing](CONTENT)), len(CONTENT), REMEDY) == CONTENT
    assert read_within(put(PACKERS[packing](b"")), 0, REMEDY) == b""


@pytest.mark.parametrize("packing", PACKERS)
def test_one_byte_too_many_is_refused(packing, put):
    path = put(PACKERS[packing](CONTENT + b"x"))
    with pytest.raises(DataError, match=rf"{path} unpacks to more than the 10240 bytes .*; get another"):
        read_within(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@given(st.integers(7, 10_000))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused(packing, put, length):
    packed = PACKERS[packing](CONTENT)
    path = put(packed[: length % (len(packed) - 7) + 7])
    with pytest.raises(DataError, match=rf"{path} is (truncated|damaged).*; get another"):
        read_within(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@given(st.integers(12, 10_000), st.integers(1, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_or_the_same(packing, put, at, change):
    packed = bytearray(PACKERS[packing](CONTENT))
    packed[12 + at % (len(packed) - 12)] ^= change
    path = put(bytes(packed))
    try:
        assert read_within(path, len(CONTENT), REMEDY) == CONTENT
    except DataError as error:
        assert str(path) in str(error)


def test_an_xz_file_that_asks_for_too_much_memory_is_refused(put, monkeypatch):
    monkeypatch.setattr(packed_module, "XZ_MEMORY", 1 << 20)
    path = put(lzma.compress(CONTENT, preset=6))  # 8 MiB of dictionary
    with pytest.raises(DataError, match=r"damaged and cannot be unpacked \(Memory usage limit"):
        read_within(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
def test_what_follows_a_packed_stream_is_not_passed_over(packing, put):
    packed = PACKERS[packing](CONTENT)
    with pytest.raises(DataError, match=r"is (damaged|truncated)"):
        read_within(put(packed + b"x"), len(CONTENT), REMEDY)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        read_within(tmp_path, 10, REMEDY)
    with pytest.raises(DataError, match=r"none cannot be read \(No such file"):
        read_within(tmp_path / "none", 10, REMEDY)


def test_a_file_of_many_empty_gzip_streams_is_refused_at_once(put):
    path = put(gzip.compress(b"") * 500_000)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"damaged and cannot be unpacked \(something follows its gzip"):
        read_within(path, 1000, REMEDY)
    assert time.monotonic() - began < 1


def test_content_is_known_by_any_of_its_digests():
    md5, sha256 = (f"{name}:{hashlib.new(name, CONTENT).hexdigest()}" for name in ("md5", "sha256"))
    other = f"sha256:{'0' * 64}"
    assert has_digest(CONTENT, [md5]) and has_digest(CONTENT, [other, sha256])
    assert not has_digest(CONTENT, [other]) and not has_digest(CONTENT, [])
    assert not has_digest(CONTENT + b"x", [md5, sha256])
