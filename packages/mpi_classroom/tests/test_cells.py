"""A cell knows what it binds, which tells what a restart of the ranks loses."""

import pytest
from ipykernel.compiler import get_file_name

from mpi_classroom.cells import Cell, cell_numbers, hint


def assigned(text):
    return Cell(text, 1, 1, False).assigned()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = 1", {"x"}),
        ("a, (b, *c) = f()\nd: int = 2\ne += 1", {"a", "b", "c", "d", "e"}),
        ("for i in range(3):\n    last = i", {"i", "last"}),
        ("with open(p) as file:\n    text = file.read()", {"file", "text"}),
        ("if (n := 3) > 2:\n    big = True\nelse:\n    small = True", {"n", "big", "small"}),
        ("import numpy as np, os.path\nfrom mpi4py import MPI", {"np", "os", "MPI"}),
        ("from math import *", set()),
        ("def f(a, b=1):\n    inner = 2\n    return lambda c: c", {"f"}),
        ("class Net:\n    depth = 3\n    def forward(self): x = 1", {"Net"}),
        ("squares = [k * k for k in range(3)]\ntable = {k: v for k, v in d}", {"squares", "table"}),
        ("total = sum(term for term in terms)\nf = lambda z: z", {"total", "f"}),
        ("model.weight = 3\nlosses[0] = 1\nprint(model)", set()),
        ("_private = 1\n__all__ = []", set()),
        ("comm.Barrier()", set()),
    ],
)
def test_what_a_cell_binds_at_its_top_level(text, names):
    assert assigned(text) == names


def test_magics_and_commands_in_a_cell_do_not_hide_what_it_binds():
    assert assigned("%matplotlib inline\nx = 1\n!ls\ny = %pwd") >= {"x", "y"}


def test_the_engines_call_the_file_of_a_cell_as_we_expect():
    """This is how ipykernel names cells; a dump of the stack names them so."""
    text = "import time\ntime.sleep(1)\n"
    assert get_file_name(text).endswith(Cell(text, 3, 1, False).file_name())
    assert Cell(text, 3, 1, False).file_name() != Cell(text + " ", 3, 1, False).file_name()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([4], "cell [4]"),
        ([2, 5, 6, 7, 9, 12, 13], "cells [2], [5]–[7], [9], [12]–[13]"),
    ],
)
def test_numbers_of_cells_in_words(numbers, words):
    assert cell_numbers(numbers) == words


SETUP = Cell("comm, rank = world()", 3, 1, True)


def hinted(problem, text, *earlier):
    return hint(f"rank 0 raised {problem}", Cell(text, 9, 1, False), earlier)


def test_a_builtin_that_became_a_variable_is_named_where_it_is_called():
    earlier = Cell("print = 3", 4, 1, False), Cell("x = 1", 5, 1, False)
    problem = "TypeError: 'int' object is not callable"
    words = "print is a variable of yours since cell [4]; `%px del print` brings Python's own back."
    assert hinted(problem, "print(x)", *earlier) == words
    assert hinted(problem, "x()", *earlier) == ""
    assert hinted("ValueError: x", "print(x)", *earlier) == ""


def test_a_name_that_is_gone_is_told_with_the_cell_it_came_from():
    problem = "NameError: name 'comm' is not defined"
    assert hinted(problem, "comm.Barrier()", SETUP) == "comm comes from cell [3]: run that cell again."
    assert hinted(problem, "comm.Barrier()") == ""
    assert hinted("NameError: name 'com' is not defined", "com.Barrier()", SETUP) == ""
    raised = hint(f"rank 0 raised {problem}", Cell("comm.Barrier()", 9, 1, False), [SETUP], raised={3})
    assert raised == "comm comes from cell [3], which raised an error: repair that cell first."


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("NameError: name '__file__' is not defined", "--save"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/home/me/code/data/digits.npz'", "copy"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'mine.txt'", ""),
    ],
)
def test_what_a_cell_lacks_outside_a_lesson_is_told_with_its_remedy(problem, remedy):
    assert remedy in hinted(problem, "open()") and bool(hinted(problem, "open()")) == bool(remedy)


def test_running_a_cell_again_is_no_advice_where_its_condition_leaves_ranks_out():
    secret = Cell("if rank == 0:\n    secret = 43523", 4, 1, False)
    words = "Cell [4] sets `secret` inside an `if`; only the ranks that entered it have `secret`."
    problem = "NameError: name 'secret' is not defined"
    assert hint(f"ranks 1, 2, 3 raised {problem}", Cell("print(secret)", 9, 1, False), [secret]) == words
    everywhere = Cell("if rank == 0:\n    secret = 1\nelse:\n    secret = 2", 4, 1, False)
    assert hinted(problem, "print(secret)", everywhere) == "secret comes from cell [4]: run that cell again."
    nested = Cell(
        "if debug:\n    if rank == 0:\n        secret = 1\n    else:\n        secret = 2", 4, 1, False
    )
    assert hinted(problem, "print(secret)", nested) == words


def test_no_cell_is_to_run_again_where_rank_0_has_the_name():
    earlier = [Cell("secret = 43523", 4, 1, False)]  # of %%px --targets 0, say
    problem = "ranks 1, 2, 3 raised NameError: name 'secret' is not defined"
    assert hint(problem, Cell("print(secret)", 9, 1, False), earlier) == ""


@pytest.mark.parametrize(
    ("problem", "begins"),
    [
        ("MPI_ERR_TRUNCATE: message truncated", "More data came than the receive buffer holds: compare"),
        ("UnpicklingError: invalid load key, '\\x00'.", "`recv` got data that `Send` had sent unpickled"),
    ],
)
def test_errors_of_mpi_that_do_not_say_what_they_mean_are_explained(problem, begins):
    words = hinted(problem, "comm.Recv(x)")
    assert words.startswith(begins) and words.endswith("`Send` pairs with `Recv`, `send` with `recv`.")


def test_a_name_of_a_setup_cell_that_has_another_value_now_is_told():
    problem = "AttributeError: 'int' object has no attribute 'Barrier'"
    taken = Cell("comm = 5", 4, 1, False)
    words = "comm was given another value in cell [4]; cell [3] brings it back."
    assert hinted(problem, "comm.Barrier()", SETUP, taken) == words
    assert hinted(problem, "comm.Barrier()", SETUP, taken, SETUP) == ""
    assert hinted(problem, "rank.Barrier()", SETUP, taken) == ""
