"""One line for every way in which a cell can fail; the forms are what ipyparallel 9.2 really sends."""

import pytest

from course.tools.failures import Failure, cell_failure

COMPOSITE = "one or more exceptions raised in: %px\n[1:execute]ValueError: boom"
TRACEBACK = [
    "[2:execute]:",
    "\x1b[31m---------------------------------------------------------------------------\x1b[39m",
    "\x1b[31mKeyError\x1b[39m                                  Traceback (most recent call last)",
    "\x1b[36mCell\x1b[39m\x1b[36m \x1b[39m\x1b[32mIn[2]\x1b[39m\x1b[32m, line 3\x1b[39m",
    "\x1b[32m----> \x1b[39m\x1b[32m3\x1b[39m raise KeyError('weights')",
    "",
    "\x1b[31mKeyError\x1b[39m: 'weights'",
    "",
    "[3:execute]:",
    "ValueError: another rank's",
]


def test_an_error_of_the_notebook_names_no_rank():
    assert cell_failure(4, "NameError", "name 'x' is not defined") == Failure(
        "NameError: name 'x' is not defined", cell=4
    )


@pytest.mark.parametrize(
    ("name", "value", "rank", "text"),
    [
        ("CompositeError", COMPOSITE, 1, "ValueError: boom"),
        ("CompositeError", "one or more\n[0:execute]: OSError: a\n[1:execute]: OSError: b", 0, "OSError: a"),
        ("HangError", "rank 0  waiting in Allreduce\nrank 2  raised ValueError: boom", 2, "ValueError: boom"),
        ("HangError", "[rank 1] waiting in Recv from rank 0, tag 5", 1, "waiting in Recv from rank 0, tag 5"),
        ("RuntimeError", "[rank 3]: OSError: no space", 3, "OSError: no space"),
    ],
)
def test_the_rank_and_its_error_are_found_in_every_form(name, value, rank, text):
    assert cell_failure(7, name, value) == Failure(text, cell=7, rank=rank)


def test_a_mute_error_is_explained_by_the_traceback_displayed_before_it():
    shown = {"output_type": "error", "ename": "RemoteError", "evalue": "", "traceback": TRACEBACK}
    assert cell_failure(2, "AlreadyDisplayedError", "2 errors", [shown]) == Failure(
        "KeyError: 'weights'", 2, 2
    )


UNSHOWN = {
    "output_type": "error",
    "ename": "NoneType",
    "evalue": "None",
    "traceback": [
        *TRACEBACK[1:5],
        "\x1b[31mRuntimeError\x1b[39m: Failed to process string with tex\nlatex: no",
    ],
}


def test_an_error_while_a_value_was_shown_is_that_error_and_not_none():
    failure = cell_failure(16, "NoneType", "None", [{"output_type": "stream", "text": "x"}, UNSHOWN])
    assert str(failure) == "cell 16: RuntimeError: Failed to process string with tex"
    assert "NoneType" not in str(cell_failure(16, "NoneType", "None"))
