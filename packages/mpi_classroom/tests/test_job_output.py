"""What a job wrote is read in one way, whoever started it."""

import json

import pytest

from mpi_classroom.job_output import (
    event_file,
    last_error,
    last_line,
    marked_lines,
    read_deaths,
    read_events,
)
from mpi_classroom.launch import run_ranks
from mpi_classroom.snapshot import Death

EXITED = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-here-12@2,3]
   Exit code:    7
"""


@pytest.mark.parametrize(
    ("output", "deaths"),
    [
        ("rank 0 on node here exited on signal 11", [Death(0, "crash", 11)]),
        (EXITED, [Death(3, "exit", exit_code=7, job=2)]),
        ("", []),
        ("all is well on rank 3", []),
    ],
)
def test_what_open_mpi_says_of_a_rank_that_died(output, deaths):
    assert read_deaths(output) == deaths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "death"),
    [
        ("os.kill(os.getpid(), 9)", Death(1, "signal", 9)),
        ("os._exit(7)", Death(1, "exit", exit_code=7)),
        ("os._exit(0)", Death(1, "left")),
        ("MPI.COMM_WORLD.Abort(3)", Death(1, "abort")),
    ],
)
def test_it_is_what_this_open_mpi_says(code, death):
    program = f"import os, time\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: {code}\ntime.sleep(60)"
    job = run_ranks(2, ["-c", program], timeout=60)
    assert read_deaths(job.stderr) == [death]


def test_the_last_error_is_without_its_module_and_not_mpiexecs():
    trace = "Traceback …\nValueError: first\n  line\nnumpy.linalg.LinAlgError: singular\n   Exit code: 1\n---"
    assert last_error(trace) == "LinAlgError: singular"
    assert last_error("nothing raised, no Errors here") == ""


def test_the_last_line_is_no_rule_of_dashes():
    assert last_line("one\ntwo\n-----\n\n") == "two"
    assert last_line("---\n") == ""


def test_an_event_that_is_being_written_is_not_read_yet(tmp_path):
    assert read_events(tmp_path, 0) == []
    event_file(tmp_path, 0).write_text('{"event": "ready"}\n{"event": "don')
    assert read_events(tmp_path, 0) == [{"event": "ready"}]


def test_marked_lines_are_results_and_others_are_not():
    output = "\n".join(["hello", "result: " + json.dumps({"a": 1}), "result: [2]", "bye"])
    assert marked_lines(output, "result: ") == [{"a": 1}, [2]]
