"""One line for every way in which a cell can fail; the forms are what ipyparallel 9.2 really sends."""

import pytest

from course.tools.failures import LONGEST, Failure, cell_failure, one_line

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
        (
            "CompositeError",
            "one or more exceptions raised in: _pull\n[3:apply]NameError: nope",
            3,
            "NameError: nope",
        ),
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


def test_a_mute_error_without_a_displayed_traceback_is_reported_as_it_is():
    assert cell_failure(2, "AlreadyDisplayedError", "2 errors") == Failure(
        "AlreadyDisplayedError: 2 errors", 2
    )


def test_outputs_of_a_cell_that_failed_in_the_notebook_are_not_taken_for_its_error():
    printed = {"output_type": "stream", "text": "[1:execute]ValueError: printed on purpose"}
    assert cell_failure(5, "TypeError", "no", [printed]).rank is None


def test_a_failure_reads_as_where_and_what():
    assert str(Failure("ValueError: boom", cell=7, rank=2)) == "cell 7, rank 2: ValueError: boom"
    assert str(Failure("the kernel did not start")) == "the kernel did not start"


def test_one_line_is_one_line_without_colours_and_not_too_long():
    assert one_line("\n  \x1b[31mfirst\x1b[39m \nsecond") == "first"
    assert one_line("") == ""
    long = one_line("x" * 1000)
    assert len(long) == LONGEST
    assert long.endswith("…")
