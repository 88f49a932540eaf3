"""The pytest session of many ranks tells every failure, tells it once, and never hangs.

Each case is a test file that must fail, run on two ranks with the plug-in of the rank tests as its conftest.
"""

import os
import re
import shutil
from pathlib import Path

from course.paths import ROOT
from mpi_classroom.launch import run_ranks

HEAD = "import pytest\n\n\n"


def run(tmp_path: Path, body: str) -> tuple[int, str]:
    """Exit code and plain output of a session with `body` as its only test file."""
    shutil.copyfile(ROOT / "tests" / "ranks_together.py", tmp_path / "conftest.py")
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
