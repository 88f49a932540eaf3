"""The pytest session of many ranks tells every failure, tells it once, and never hangs.

Each case is a test file that must fail, run on two ranks with the plug-in of the rank tests as its conftest.
"""

import os
import re
from pathlib import Path

import pytest

from course.paths import ROOT
from mpi_classroom.launch import run_ranks

HEAD = "import pytest\n\n\n"


def run(tmp_path: Path, body: str, seconds: str = "240.0") -> tuple[int, str]:
    """Exit code and plain output of a session with `body` as its only test file, read within `seconds`."""
    conftest = (ROOT / "tests" / "ranks_together.py").read_text()
    assert "BEGIN_SECONDS = 240.0" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("SECONDS = 240.0", f"SECONDS = {seconds}"))
    (tmp_path / "test_it.py").write_text(HEAD + body)
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds to import
    done = run_ranks(2, arguments, timeout=60, environment=plain)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


MIXED = """
def test_sum(comm):
    assert comm.allreduce(1) == comm.size


def test_last(comm):
    assert comm.rank == 0, "not me"


def test_skip(comm):
    if comm.rank:
        pytest.skip("I am tired")


def test_sum_again(comm):
    assert comm.allreduce(1) == comm.size
"""


def test_what_fails_on_one_rank_fails_on_all_and_is_told_once(tmp_path: Path):
    code, output = run(tmp_path, MIXED)
    assert code != 0
    assert output.count("2 failed, 2 passed") == 1
    assert "failed on ranks [1]" in output and "AssertionError: not me" in output
    assert "not all ranks skipped it" in output


def test_a_rank_that_fails_before_a_collective_does_not_hang_the_others(tmp_path: Path):
    code, output = run(
        tmp_path,
        "def test_it(comm):\n    if comm.rank:\n        raise ValueError('boom')\n    comm.Barrier()\n",
    )
    assert code != 0
    assert "ValueError: boom" in output and "the others do not come" in output
    assert re.search(r"rank 0 stands at.*\n.*test_it\.py\", line 7 in test_it", output)


def test_a_test_that_hangs_is_ended_at_its_deadline_with_every_stack(tmp_path: Path):
    body = "@pytest.mark.deadline(1)\ndef test_it(comm):\n    comm.recv(source=(comm.rank + 1) % comm.size)\n"
    code, output = run(tmp_path, body)
    assert code != 0
    assert "is not done after 1 s" in output
    assert len(re.findall(r"rank \d stands at.*\n.*test_it\.py\", line 6 in test_it", output)) == 2


def test_a_file_that_one_rank_does_not_come_to_the_end_of_ends_the_session_with_every_stack(tmp_path: Path):
    body = "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    time.sleep(1000)\n"
    code, output = run(tmp_path, body, "4.0")
    assert code != 0
    assert "not all tests are collected after 4 s" in output
    assert re.search(r"rank 1 stands at.*\n.*test_it\.py\", line 6 in <module>", output)


def test_a_file_that_one_rank_cannot_import_ends_the_session(tmp_path: Path):
    body = "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    import nonsense\n"
    code, output = run(tmp_path, body)
    assert code != 0
    assert "ranks [1] did not collect" in output and "No module named 'nonsense'" in output


@pytest.mark.slow
def test_a_call_that_lets_no_other_thread_run_ends_with_its_stack(tmp_path: Path):
    body = "import ctypes\n@pytest.mark.deadline(1)\ndef test_it(comm):\n    ctypes.PyDLL(None).sleep(1000)\n"
    code, output = run(tmp_path, body)
    assert code != 0
    assert re.search(r"Timeout[\s\S]*test_it\.py\", line 7 in test_it", output)
