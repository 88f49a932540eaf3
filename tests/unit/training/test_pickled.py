"""Pickles are read as data: those of CIFAR-10 as unpickling reads them, all others not at all."""

import pickle
import struct
import warnings
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.training.pickled import Call, PickleError, read_pickle, to_bytes_array
from tests.unit.training.cifar_files import (
    DTYPE,
    NDARRAY,
    PIXELS,
    RECONSTRUCT,
    array,
    dict_of,
    list_of,
    number,
    pickled,
    text,
)

ROWS = np.random.default_rng(0).integers(0, 10, (3, 1 + PIXELS)).astype(np.uint8)


def unpickled(content: bytes):
    """What Python makes of it; our own pickles only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy.core is numpy._core by now
        return pickle.loads(content, encoding="latin1")


def test_a_batch_is_what_unpickling_it_gives():
    content = pickled(ROWS)
    expected, found = unpickled(content), read_pickle(content)
    assert list(found) == ["batch_label", "labels", "data", "filenames"]
    for key in ("batch_label", "labels", "filenames"):
        assert found[key] == expected[key]
    np.testing.assert_array_equal(to_bytes_array(found["data"], PIXELS), expected["data"])
    np.testing.assert_array_equal(expected["data"], ROWS[:, 1:])


def test_objects_are_shared_as_unpickling_shares_them():
    content = b"\x80\x02](]q\x05K\x01ah\x05h\x05e."
    found = read_pickle(content)
    assert found == unpickled(content) == [[1], [1], [1]] and found[0] is found[1]


PLAIN = st.recursive(
    st.none() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=100, deadline=None)
def test_plain_data_comes_back(item):
    assert read_pickle(pickle.dumps(item, protocol=2)) == item


def calling(module: str, name: str, *arguments: bytes) -> bytes:
    """Push the result of a call."""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


COMMAND = "echo harm > {canary}"
CODE = "open({canary!r}, 'w').close()"
HARMFUL = {
    "os.system": b"\x80\x02cposix\nsystem\n(@command@tR.",
    "builtins.eval": b"\x80\x02cbuiltins\neval\n(@code@tR.",
    "python 2's eval": b"\x80\x02c__builtin__\neval\n(@code@tR.",
    "in the data": dict_of(labels=list_of([]), data=b"cposix\nsystem\n(@command@tR"),
    "in a key": b"\x80\x02}(cposix\nsystem\n(@command@tRK\x01u.",
    "behind the object": b"\x80\x02}cposix\nsystem\n(@command@tR0.",
    "as arguments of numpy's": b"\x80\x02" + RECONSTRUCT + b"(cposix\nsystem\n(@command@tRtR.",
    "INST": b"(@command@iposix\nsystem\n.",
    "OBJ": b"\x80\x02(cposix\nsystem\n@command@o.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x06system\x93(@command@tR.",
    "BUILD of a class": b"\x80\x02cbuiltins\neval\n(@code@tR}b.",
    "a name in a name": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93(@code@tR.",
}


def harmful(kind: str, canary) -> bytes:
    """A pickle that makes `canary` when Python unpickles it."""
    content = HARMFUL[kind]
    for mark, value in ((b"@command@", COMMAND), (b"@code@", CODE)):
        filled = value.format(canary=str(canary)).encode()
        content = content.replace(mark, b"X" + struct.pack("<I", len(filled)) + filled)
    return content


@pytest.mark.parametrize("kind", HARMFUL)
def test_nothing_in_a_pickle_is_called(kind, tmp_path):
    content = harmful(kind, tmp_path / "canary")
    with pytest.raises(PickleError):
        read_pickle(content)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("kind", HARMFUL)
def test_these_pickles_do_harm_when_python_unpickles_them(kind, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with suppress(TypeError, pickle.UnpicklingError, AttributeError):  # they come too late
            unpickled(harmful(kind, tmp_path / "canary"))
    assert (tmp_path / "canary").exists()


BOMBS = {
    "keys that take for ever to be hashed": b"\x80\x02}()" + b"2\x86" * 60 + b"Nu.",
    "a string that claims 2 GB": b"\x80\x02T\xff\xff\xff\x7fabc.",
    "a string of a negative length": b"\x80\x02T\xff\xff\xff\xffabc.",
    "bytes that claim 2⁶³": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "a frame that claims 2⁶³ bytes": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    "a number with a million digits": b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
    "a million lists": b"\x80\x02" + b"]" * 1_000_000 + b".",
    "an array as large as its claim": b"\x80\x02" + NDARRAY + number(2**31 - 1) + b"\x85R.N",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_does_not_go_off(kind):
    with pytest.raises(PickleError):
        read_pickle(BOMBS[kind])


def test_a_memo_is_not_as_large_as_its_largest_index():
    assert read_pickle(b"\x80\x02(]r\xf0\xff\xff\xffj\xf0\xff\xff\xfft.") == ([], [])


def test_lists_of_lists_of_lists_take_no_room():
    layers = b"".join(b"](h%ch%ch%ch%ceq%c" % (i, i, i, i, i + 1) for i in range(60))
    found = read_pickle(b"\x80\x02(]q\x00" + layers + b"t.")
    assert len(found) == 61  # and the last has 4⁶⁰ leaves, were they copied


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (b"", "truncated or damaged"),
        (b".", "truncated or damaged|more or less than one object"),
        (b"\x80\x02N", "truncated or damaged"),
        (b"\x80\x02NN.", "more or less than one object"),
        (b"\x80\x02N.N", "more or less than one object"),
        (b"\x80\x02Nt.", "an instruction lacks its mark"),
        (b"\x80\x02\x87.", "an instruction lacks its operands"),
        (b"\x80\x02h\x07.", "truncated or damaged"),
        (b"\x80\x02(.", "more or less than one object"),
        (b"\x80\x02(\x85.", "a mark is left over"),
        (b"\x80\x02NK\x01a.", "a list is needed where there is a NoneType"),
        (b"\x80\x02}K\x01K\x02s.", "a str is needed where there is a int"),
        (b"\x80\x02}(U\x01au.", "truncated or damaged"),
        (b"\x80\x02K\x01)R.", "a Call is needed where there is a int"),
        (b"\x80\x02" + NDARRAY + b"K\x01R.", "a tuple is needed where there is a int"),
        (b"\x80\x02K\x01Nb.", "a Call is needed where there is a int"),
        (b"\x80\x02P1\n.", "PERSID"),
        (b"\x80\x02NQ.", "BINPERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02" + NDARRAY + b")\x81.", "NEWOBJ"),
        (b"\x80\x04" + NDARRAY + b")}\x92.", "NEWOBJ_EX"),
        (b"\x80\x02cos\nsystem\n.", "asks for 'os system'"),
        (b"\x80\x02cnumpy\nload\n.", "asks for 'numpy load'"),
        (b"\x80\x02c_codecs\nencode\n.", "asks for '_codecs encode'"),
    ],
)
def test_what_is_no_batch_is_refused(content, clause):
    with pytest.raises(PickleError, match=clause):
        read_pickle(content)


VALID = pickled(ROWS[:1])


@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_damage_anywhere_is_an_error_or_other_data(changes):
    content = bytearray(VALID)
    for position, value in changes:
        content[position] = value
    with suppress(PickleError):
        read_pickle(bytes(content))


@given(st.integers(0, len(VALID) - 1))
@settings(max_examples=100, deadline=None)
def test_every_truncated_batch_is_refused(length):
    with pytest.raises(PickleError):
        read_pickle(VALID[:length])


@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")
@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_data_or_an_error(content):
    with suppress(PickleError):
        read_pickle(content)


def read_array(pushed: bytes) -> np.ndarray:
    return to_bytes_array(read_pickle(b"\x80\x02" + pushed + b"."), 4)


def test_an_array_is_read():
    np.testing.assert_array_equal(read_array(array((2, 4), bytes(range(8)))), np.arange(8).reshape(2, 4))
    assert read_array(array((0, 4), b"")).shape == (0, 4)


def other_dtype(code: bytes) -> bytes:
    return DTYPE.replace(b"u1", code)


@pytest.mark.parametrize(
    ("pushed", "clause"),
    [
        (array((2, 5), bytes(10)), r"the shape \(2, 5\) where \(images, 4\)"),
        (array((8,), bytes(8)), r"the shape \(8,\)"),
        (array((1, 2, 4), bytes(8)), "the shape"),
        (array((-2, 4), bytes(8)), "the shape"),
        (array((2**31 - 1, 4), bytes(8)), "do not have the 2147483647 × 4 bytes"),
        (array((2, 4), bytes(7)), "do not have the 2 × 4 bytes"),
        (array((2, 4), bytes(9)), "do not have the 2 × 4 bytes"),
        (array((2, 4), bytes(8), dtype=other_dtype(b"O8")), "not bytes in rows"),
        (array((2, 4), bytes(8), dtype=other_dtype(b"i8")), "not bytes in rows"),
        (array((2, 4), bytes(8), dtype=b"N"), "not bytes in rows"),
        (array((2, 4), bytes(8), fortran=b"\x88"), "not bytes in rows"),
        (text("pixels"), "no array"),
        (list_of([number(1)]), "no array"),
        (RECONSTRUCT, "no array"),
        (DTYPE, "no array"),
    ],
)
def test_other_arrays_are_refused(pushed, clause):
    with pytest.raises(PickleError, match=clause):
        read_array(pushed)


def test_a_call_keeps_its_name_and_what_it_was_given():
    call = read_pickle(b"\x80\x02" + DTYPE + b".")
    assert isinstance(call, Call)
    assert (call.name, call.arguments, call.state[0]) == ("numpy dtype", ("u1", 0, 1), 3)
