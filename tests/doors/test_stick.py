"""The folder for a stick, on Debian 13 as it is: an ordinary user, no network, no python3-venv, no compiler.

Where PyTorch has no CPU build for this Python, the folder gets a build for an accelerator without what that
needs: everything is installed and MPI runs, and no lesson is run.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from debian_13 import inside

from course.tools.bundle import make
from course.version import course_version

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]
SUM = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(10 ** MPI.COMM_WORLD.rank), flush=True)"


def write_bundle(folder: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write the folder for Linux and `python`; whether PyTorch's CPU build is in it."""
    system = "linux-x86_64"
    try:
        make.make_bundle(folder, systems=[system], pythons=[python])
        return True
    except make.BundleError as error:
        if "accelerator" not in str(error):
            raise
    monkeypatch.setattr(make, "check_torch", lambda wheel, environment: None)
    make.make_bundle(folder, systems=[system], pythons=[python])
    return False


def test_an_ordinary_user_installs_from_a_stick(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (python,) = re.findall(r"Python (3\.\d+)", inside(debian, "python3 --version").stdout)
    cpu = write_bundle(tmp_path / "stick", python, monkeypatch)
    inside(debian, "id learner || useradd --create-home --shell /bin/bash learner")

    def learner(script: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        line = f"su learner -c 'cd && export COURSE_OFFLINE=1 && {script}'"
        return inside(debian, line, seconds, stick=tmp_path / "stick")

    try:
        assert learner("python3 -m venv plain").returncode, (
            "this Debian has python3-venv; the test asks nothing"
        )
        assert learner("command -v cc || command -v gcc").returncode
        installed = learner("python3 /mnt/install.py")
        assert installed.returncode == 0, installed.stdout
        assert "The course is in /home/learner/mpi-course" in installed.stdout
        assert course_version() in learner("mpi-course/.venv/bin/course --version").stdout
        ran = learner(f'mpi-course/.venv/bin/python -m mpi_classroom.launch 4 -c "{SUM}"')
        assert ran.stdout.split() == ["1111"] * 4, ran.stdout
        if cpu:
            lessons = learner("mpi-course/.venv/bin/course run 00 02")
            assert lessons.returncode == 0 and "2 lessons ran" in lessons.stdout, lessons.stdout
        again = learner("python3 /mnt/install.py")
        assert again.returncode == 0 and "installed already" in again.stdout, again.stdout
    finally:
        shutil.rmtree(debian / "home" / "learner" / "mpi-course", ignore_errors=True)
