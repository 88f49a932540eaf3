"""mpi4py's own tests are right programs by those who know MPI best: the checks call none a mistake."""

import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1200)
slow, release = pytest.mark.slow, pytest.mark.release

# All but those that start other jobs. `test_util_dtlib` sends nothing; it converts 100,000 types for minutes.
# `test_objmodel` frees MPI.COMM_WORLD, which is no constant when it is recorded: all after it would fail.
HALVES = {
    "messages and collectives": ("-i", "p2p|cco"),
    "everything else": ("-e", "p2p|cco|spawn|dynproc|util_dtlib|objmodel"),
}
TEXT = {"capture_output": True, "text": True, "errors": "replace"}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of mpi4py's tests, of the version that is installed."""
    folder, name = tmp_path_factory.mktemp("mpi4py"), f"mpi4py=={version('mpi4py')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-binary=mpi4py", f"--dest={folder}", name],
        capture_output=True,
        text=True,
        timeout=120,
    )
    archives = list(folder.glob("mpi4py-*.tar.gz"))
    if done.returncode or not archives:
        pytest.skip(f"the source of {name} cannot be had here: {done.stderr.strip()[-200:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("mpi4py-*/test"))


@pytest.mark.parametrize(
    ("half", "ranks"),
    [
        pytest.param("messages and collectives", 3, marks=slow),
        pytest.param("everything else", 4, marks=release),
        pytest.param("messages and collectives", 4, marks=release),
        pytest.param("everything else", 3, marks=release),
    ],
)
def test_of_the_tests_of_mpi4py_none_is_a_mistake(suite, half, ranks, capsys):
    check = [sys.executable, "-m", "mpi_classroom.launch", "--check", str(ranks)]
    command = [*check, "main.py", "--no-builddir", "-q", *HALVES[half]]
    done = subprocess.run(command, cwd=suite, timeout=1100, **TEXT)
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    said = done.stderr.partition("MPI calls checked:")[2].splitlines()
    assert ran and said, done.stderr[-2000:]
    with capsys.disabled():
        print(f"\n{half}, {ranks} ranks: {ran[1]} tests, {said[0].strip()}")
    assert not [line for line in said if line.startswith("Mistake")]
