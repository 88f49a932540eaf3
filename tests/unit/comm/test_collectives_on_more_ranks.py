"""The collectives on more ranks than the suite starts: a prime, and a power of two.

Each is a job with a deadline; on two cores its ranks share a core.
"""

import os
import subprocess

import pytest

from course.paths import ROOT
from mpi_classroom.launch import run_ranks

DEADLINE = 280
SESSION = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "tests/ranks/test_collectives.py"]


def run(size: int, chosen: str) -> "subprocess.CompletedProcess[str]":
    """Those of the ranks' tests whose names match, on `size` ranks, from the project's folder."""
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": f"--rootdir={ROOT}"}
    session = [*SESSION[:-1], str(ROOT / SESSION[-1])]
    return run_ranks(size, [*session, "-k", chosen], timeout=DEADLINE, environment=plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "chosen"),
    [
        (7, "(does_what_mpi_does and complex128) or mistake"),
        pytest.param(
            *(8, "(does_what_mpi_does and float32) or barrier or same_bits"), marks=pytest.mark.release
        ),
    ],
)
def test_the_collectives_are_mpis_on_seven_and_eight_ranks(size: int, chosen: str):
    done = run(size, chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "failed" not in done.stdout
