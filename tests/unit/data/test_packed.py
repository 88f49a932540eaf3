"""Packed files are unpacked within limits, and recognised by their digests."""

import gzip
import hashlib
import lzma
import resource
import time
import zlib

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


def gzipped_zeros(megabytes: int, *, before: bytes = b"") -> bytes:
    """So many megabytes of zeros after other bytes, as a gzip stream that has no end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * megabytes


BOMBS = {"gzip": lambda: gzipped_zeros(1024), "xz": lambda: lzma.compress(bytes(1 << 28), preset=0)}


@pytest.fixture
def little_memory():
    """128 MB more than there are now: a bomb that goes off is a MemoryError."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 27), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("packing", BOMBS)
def test_a_bomb_is_refused_before_it_is_unpacked(packing, put, request):
    path = put(BOMBS[packing]())
    assert path.stat().st_size < 2_000_000
    request.getfixturevalue("little_memory")
    with pytest.raises(DataError, match="unpacks to more than the 1000 bytes"):
        read_within(path, 1000, REMEDY)


def test_a_bomb_that_goes_off_is_noticed(put, little_memory):
    path = put(gzipped_zeros(1024))
    with pytest.raises(MemoryError):
        read_within(path, 1 << 30, REMEDY)


def test_an_xz_file_that_asks_for_too_much_memory_is_refused(put, monkeypatch):
    monkeypatch.setattr(packed_module, "XZ_MEMORY", 1 << 20)
    path = put(lzma.compress(CONTENT, preset=6))  # 8 MiB of dictionary
    with pytest.raises(DataError, match=r"damaged and cannot be unpacked \(Memory usage limit"):
        read_within(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@pytest.mark.parametrize("more", [b"x", b"\x1f\x8b", bytes(range(50))])
def test_what_follows_a_packed_stream_is_not_passed_over(packing, more, put):
    packed = PACKERS[packing](CONTENT)
    with pytest.raises(DataError, match=r"is (damaged|truncated)"):
        read_within(put(packed + more), len(CONTENT), REMEDY)
    with pytest.raises(DataError):
        read_within(put(packed + packed), len(CONTENT), REMEDY)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        read_within(tmp_path, 10, REMEDY)
    with pytest.raises(DataError, match=r"none cannot be read \(No such file"):
        read_within(tmp_path / "none", 10, REMEDY)


@given(st.binary(max_size=1500))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_that_begin_as_a_packed_file_are_refused(put, content):
    for prefix in (packed_module.GZIP_MAGIC, packed_module.XZ_MAGIC):
        with pytest.raises(DataError):
            read_within(put(prefix + content), 1000, REMEDY)


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
