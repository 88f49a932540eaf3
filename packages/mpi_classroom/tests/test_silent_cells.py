"""Silent mistakes in `%%px` cells of a real notebook are said, and the next cell works; right cells go on."""

import pytest

from packages.mpi_classroom.tests.kernel import open_notebook
from packages.mpi_classroom.tests.silent_mistakes import MISTAKES

pytestmark = pytest.mark.timeout(240)

START = "from mpi_classroom.cluster import start_cluster\ncluster = start_cluster(n=3)"
SETUP = """%%px --setup
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size"""
FEW = [
    "integers are received as floats",
    "a request that is lost",
    "a receive buffer that is read before its wait",
]


@pytest.fixture(scope="module")
def notebook():
    with open_notebook() as opened:
        opened.run(START)
        assert opened.run(SETUP).text.strip() == ""
        yield opened


def moved(words):
    """The words with lines numbered as in a cell, where `%%px` is line 1."""
    for number in range(9, 0, -1):
        words = words.replace(f"line {number}:", f"line {number + 1}:")
    return words


def test_a_message_of_one_cell_may_be_received_in_the_next(notebook):
    sent = notebook.run("%%px\nif rank == 0: comm.send('x', 1); comm.Send(np.arange(3), 1, 7)")
    assert sent.error == "" and "not received yet" in sent.output
    got = notebook.run("%%px\nb = np.empty(3)\nif rank == 1: comm.Recv(b, 0, 7); comm.recv(source=0)")
    assert "rank 0 sent 3 int64 (cell [" in got.error and "line 3: if rank == 1" in got.error, got.text


def test_a_request_may_be_waited_for_in_the_next_cell(notebook):
    start = "b = np.empty(2)\nrequest = comm.Irecv(b, (rank - 1) % size)"
    ran = notebook.run(f"%%px\n{start}\ncomm.Send(np.ones(2), (rank + 1) % size)")
    assert "not waited yet" in ran.output
    ran = notebook.run("%%px\ndone = request.Wait()")
    assert ran.text.strip() == ""


def test_a_cell_that_fails_leaves_nothing_that_a_later_cell_is_blamed_for(notebook):
    ran = notebook.run("%%px\nif rank == 0: comm.Send(np.arange(3), 1)\nif rank == 1: 1 / 0")
    assert "ZeroDivisionError" in ran.error
    right = "%%px\nb = np.empty(3)\nif rank == 0: comm.Send(np.ones(3), 1)\nif rank == 1: comm.Recv(b, 0)"
    assert notebook.run(right).text.strip() == ""


@pytest.mark.parametrize("name", FEW)
def test_a_cell_with_a_silent_mistake_says_it_and_the_next_cell_works(notebook, name):
    words, program = MISTAKES[name]
    ran = notebook.run("%%px\n" + program.strip("\n"))
    for part in words:
        part = moved(part).removeprefix("Mistake: ")
        assert part in ran.text, ran.text
    after = notebook.run("%%px\nprint(comm.allreduce(rank))")
    assert after.error == "" and after.output.count("3") >= 3, after.text


def test_two_runs_show_whether_messages_from_any_source_come_in_one_order(notebook):
    late = "import time; time.sleep(0.1 * (rank if runs == 0 else 3 - rank))"  # then the other is late
    program = f"runs = globals().get('runs', -1) + 1\nif rank: {late}; comm.send(rank, 0)"
    ran = notebook.run(f"%%px --twice\n{program}\nelse: first = [comm.recv() for _ in range(2)]")
    assert "Note: rank 0 received from any source (line 4: else: first" in ran.output, ran.text
    fixed = "if rank: comm.send(rank, 0)\nelse: both = [comm.recv(source=i) for i in (1, 2)]"
    assert notebook.run(f"%%px --twice\n{fixed}").text.strip() == ""
