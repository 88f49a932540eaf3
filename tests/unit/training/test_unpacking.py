"""Packed files are unpacked within limits, and an archive's members are read or refused, never extracted."""

import bz2
import gzip
import io
import lzma
import resource
import tarfile
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.training import unpacking
from course_lib.training.storage import DataError
from course_lib.training.unpacking import read_members, unpack
from tests.unit.training.cifar_files import tar_of

CONTENT = bytes(range(256)) * 40
REMEDY = "get another"
PACKERS = {"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress}
KNOWN = {"set/a": 100, "set/b": 100, "set/readme": 50}
MEMBERS = {"set/a": b"A" * 100, "set/readme": b"hello", "set/b": b"B" * 60}


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
    assert unpack(put(PACKERS[packing](CONTENT)), len(CONTENT), REMEDY) == CONTENT
    assert unpack(put(PACKERS[packing](b"")), 0, REMEDY) == b""


@pytest.mark.parametrize("packing", PACKERS)
def test_one_byte_too_many_is_refused(packing, put):
    path = put(PACKERS[packing](CONTENT + b"x"))
    with pytest.raises(DataError, match=rf"{path} unpacks to more than the 10240 bytes .*; get another"):
        unpack(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@given(st.integers(7, 10_000))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused(packing, put, length):
    packed = PACKERS[packing](CONTENT)
    path = put(packed[: length % (len(packed) - 7) + 7])
    with pytest.raises(DataError, match=rf"{path} is (truncated|damaged).*; get another"):
        unpack(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@given(st.integers(12, 10_000), st.integers(1, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_or_the_same(packing, put, at, change):
    packed = bytearray(PACKERS[packing](CONTENT))
    packed[12 + at % (len(packed) - 12)] ^= change
    path = put(bytes(packed))
    try:
        assert unpack(path, len(CONTENT), REMEDY) == CONTENT
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
        unpack(path, 1000, REMEDY)


def test_a_bomb_that_goes_off_is_noticed(put, little_memory):
    path = put(gzipped_zeros(1024))
    with pytest.raises(MemoryError):
        unpack(path, 1 << 30, REMEDY)


def test_an_xz_file_that_asks_for_too_much_memory_is_refused(put, monkeypatch):
    monkeypatch.setattr(unpacking, "XZ_MEMORY", 1 << 20)
    path = put(lzma.compress(CONTENT, preset=6))  # 8 MiB of dictionary
    with pytest.raises(DataError, match=r"damaged and cannot be unpacked \(Memory usage limit"):
        unpack(path, len(CONTENT), REMEDY)


@pytest.mark.parametrize("packing", ["gzip", "xz"])
@pytest.mark.parametrize("more", [b"x", b"\x1f\x8b", bytes(range(50))])
def test_what_follows_a_packed_stream_is_not_passed_over(packing, more, put):
    packed = PACKERS[packing](CONTENT)
    with pytest.raises(DataError, match=r"is (damaged|truncated)"):
        unpack(put(packed + more), len(CONTENT), REMEDY)
    with pytest.raises(DataError):
        unpack(put(packed + packed), len(CONTENT), REMEDY)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        unpack(tmp_path, 10, REMEDY)
    with pytest.raises(DataError, match=r"none cannot be read \(No such file"):
        unpack(tmp_path / "none", 10, REMEDY)


def members(path, wanted=("set/a", "set/b")) -> dict[str, bytes]:
    return read_members(path, wanted, KNOWN, REMEDY)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_wanted_members_are_read(mode, put):
    path = put(tar_of(MEMBERS, mode=mode))
    assert members(path) == {"set/a": MEMBERS["set/a"], "set/b": MEMBERS["set/b"]}
    assert members(path, ["set/b"]) == {"set/b": MEMBERS["set/b"]}
    assert members(path, []) == {}


def test_the_folder_of_the_members_may_be_a_member(put):
    folder = tarfile.TarInfo("set")
    folder.type = tarfile.DIRTYPE
    assert len(members(put(tar_of(MEMBERS, folder)))) == 2


def odd(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    """A member that no original has."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


ODD = {
    "a path upwards": (odd("../outside"), "a member '../outside'"),
    "a path upwards from its folder": (odd("set/../../outside"), "a member 'set/../../outside'"),
    "an absolute path": (odd("/tmp/outside"), "a member '/?tmp/outside'"),
    "another name": (odd("set/c"), "a member 'set/c'"),
    "a name of another case": (odd("set/A"), "a member 'set/A'"),
    "a folder upwards": (odd("..", tarfile.DIRTYPE), "a member"),
    "another folder": (odd("other", tarfile.DIRTYPE), "a member 'other'"),
    "a symbolic link": (odd("set/a", tarfile.SYMTYPE, "/etc/passwd"), "set/a is no plain file"),
    "a hard link": (odd("set/a", tarfile.LNKTYPE, "set/b"), "set/a is no plain file"),
    "a link as the folder": (odd("set", tarfile.SYMTYPE, "/etc"), "a member 'set'"),
    "a device": (odd("set/a", tarfile.CHRTYPE), "set/a is no plain file"),
    "a block device": (odd("set/a", tarfile.BLKTYPE), "set/a is no plain file"),
    "a pipe": (odd("set/a", tarfile.FIFOTYPE), "set/a is no plain file"),
    "a claim of 100 GB": (odd("set/a", size=100 << 30), "set/a claims 107374182400 bytes"),
    "one byte too many": (odd("set/a", size=101), "set/a claims 101 bytes"),
    "the same twice": (odd("set/readme"), "it has set/readme twice"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_archive_with_an_odd_member_is_refused(kind, put, tmp_path):
    member, clause = ODD[kind]
    path = put(tar_of(MEMBERS, member))
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(DataError, match=rf"{path} is not the original archive: .*{clause}.*; get another"):
        members(path)
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_a_sparse_member_is_refused(put):
    sparse = odd("set/a", size=10)
    sparse.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": "100"}
    sparse.pax_headers |= {"GNU.sparse.map": "0,10", "GNU.sparse.numblocks": "1"}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(sparse, io.BytesIO(b"x" * 10))
    with pytest.raises(DataError, match="set/a is no plain file"):
        members(put(file.getvalue()))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_is_a_bomb_is_refused(kind, put, little_memory):
    header = odd("header", kind, size=1 << 30).tobuf(tarfile.GNU_FORMAT)
    path = put(gzipped_zeros(1024, before=header))
    with pytest.raises(DataError, match=rf"{path} unpacks to more than the archive may hold"):
        members(path)


def test_a_missing_member_is_named(put):
    with pytest.raises(DataError, match="truncated or not the original: it lacks set/b; get another"):
        members(put(tar_of({"set/a": b"A" * 100})))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_every_truncated_archive_is_refused(mode, put):
    whole = tar_of({"set/a": b"A" * 100, "set/b": bytes(range(100))}, mode=mode)
    needed = 3 * 512 + 100  # two headers, the block of the first and the bytes of the second
    for length in range(0, len(whole), 64 if mode == "w" else 3):
        path = put(whole[:length])
        try:
            found = members(path)
        except DataError as error:
            assert str(path) in str(error) and REMEDY in str(error)
        else:  # what is wanted was there, only the end of the archive is missing
            assert found["set/b"] == bytes(range(100)) and (mode != "w" or length >= needed)


@given(st.lists(st.tuples(st.integers(0, 1535), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_in_the_headers_is_an_error_or_harmless(put, changes):
    content = bytearray(tar_of({"set/a": b"A" * 100, "set/b": b"B" * 100}, mode="w"))
    for at, value in changes:
        content[at] = value
    try:
        found = members(put(bytes(content)))
    except DataError:
        return
    assert set(found) == {"set/a", "set/b"}


@given(st.binary(max_size=1500))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused(put, content):
    for prefix in (b"", unpacking.GZIP_MAGIC, unpacking.XZ_MAGIC):
        with pytest.raises(DataError):
            members(put(prefix + content))


def test_bzip2_is_not_known(put):
    with pytest.raises(DataError):
        members(put(bz2.compress(tar_of(MEMBERS, mode="w"))))
