"""Logs are compared as MPI matches messages; a receive buffer's early read is found in the source."""

import subprocess
import sys
from array import array

import pytest

from mpi_classroom.early_reads import early_read
from mpi_classroom.mistake_words import Words
from mpi_classroom.mistakes import Comparison, agree
from mpi_classroom.recording.log import packed

WORDS = Words(lambda line: (f"line {line[1]}", ""), lambda file: "")
FLOATS, INTEGERS = ((("f8", 1),), 4), ((("i8", 1),), 4)


def send(what, line=1, tag=0):
    return ("s", 0, 1, tag, what, 32, "Send", ("cell", line))


def receive(what, line=2, tag=0, arrived=32):
    return ("r", 0, 0, tag, what, 32, arrived, "Recv", ("cell", line))


def a_log(*entries):
    table = list(dict.fromkeys(entries))
    return packed(table, array("I", [table.index(entry) for entry in entries]), [], False)


def said(comparison, *logs_of_ranks):
    return [mistake.text for mistake in comparison.compare(dict(enumerate(logs_of_ranks)), WORDS)]


def test_messages_are_matched_in_the_order_of_their_channel():
    sends = a_log(send(FLOATS), send(INTEGERS, tag=1), send(INTEGERS, line=5))
    receives = a_log(receive(INTEGERS, tag=1), receive(FLOATS), receive(FLOATS, line=9))
    (text,) = said(Comparison(), sends, receives)
    assert "4 int64 (line 5" in text and "4 float64 (line 9" in text


def test_a_receive_from_any_source_holds_those_after_it_until_its_message_is_known():
    comparison = Comparison()
    posted = a_log(("o", 0, 77), receive(FLOATS, line=3))
    assert said(comparison, a_log(send(INTEGERS), send(FLOATS)), posted) == []
    assert said(comparison, b"", a_log(("d", 0, 77, receive(INTEGERS)))) == []


def test_messages_that_do_not_belong_together_accuse_nobody():
    assert said(Comparison(), a_log(send(INTEGERS)), a_log(receive(FLOATS, arrived=8))) == []


def test_a_communicator_that_another_thread_uses_is_not_compared():
    comparison = Comparison()
    assert said(comparison, a_log(("x", 0), send(INTEGERS)), a_log(receive(FLOATS))) == []
    said(comparison, a_log(send(INTEGERS)), b"")
    assert comparison.never_received(WORDS) == []


@pytest.mark.parametrize(
    ("what", "into", "verdict"),
    [
        (((("f8", 3), ("i4", 1)), 2), ((("f8", 3), ("i4", 1), ("f8", 3), ("i4", 1)), 1), ""),
        (((("f8", 3), ("i4", 1)), 2), ((("f8", 4), ("i4", 1)), 2), "error"),
        (((("f8", 1),), 5), FLOATS, "error"),
    ],
)
def test_types_agree_by_their_parts(what, into, verdict):
    assert agree(what, into, prefix=True) == verdict


# -------------------------------------------------------------------- programs

PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
b = np.empty(2)
request = comm.Isend(np.ones(2, sys.argv[1]), 1 - comm.rank)
comm.Recv(b, 1 - comm.rank)
if sys.argv[2:]: request.Wait()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["int64"], 1, ["sent 2 int64 (program.py, line 7:", "never waited for the request of Isend"]),
        (["float64", "wait"], 0, ["0 mistakes, 0 to look at"]),
    ],
)
def test_a_program_is_checked_with_its_arguments_and_ends_with_a_report(tmp_path, arguments, status, said):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mpi_classroom.launch", "--check", "2", "program.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, errors="replace")
    assert done.returncode == status, done.stderr
    assert all(words in done.stderr for words in said), done.stderr


# -------------------------------------------------------------------- early reads

START = "request = comm.Irecv(b, 0)\n"


@pytest.mark.parametrize(
    ("between", "line"),
    [
        ("total = b.sum()", 2),
        ("x = 1\nprint(b[0])", 3),
        ("n = b.size + len(b)", None),
        ("b = np.zeros(3)\nprint(b)", None),
        ("def later():\n    return c", None),
        ("c = a.sum()", None),
    ],
)
def test_a_read_between_a_receive_and_its_wait_is_found(between, line):
    source = f"{START}{between}\nrequest.Wait()"
    found = early_read(source, 1, source.count("\n") + 1)
    assert (found.line if found else None) == line


@pytest.mark.parametrize(
    "source",
    [
        "if rank:\n    request = comm.Irecv(b, 0)\nelse:\n    print(b)\nif rank: request.Wait()",
        "request = comm.Irecv(b[1:], 0)\nprint(b[:1])\nx = 1\ny = 2\nrequest.Wait()",
        "while True:\n    request = comm.Irecv(b, 0)\n    break\nprint(b)\nrequest.Wait()",
    ],
)
def test_what_may_not_run_between_them_or_is_another_part_is_no_read(source):
    start = 1 + source[: source.index("Irecv")].count("\n")
    assert early_read(source, start, source.count("\n") + 1) is None
