"""What `conda env create` installs with pip: in an empty environment, without conda and its channels.

conda writes the lines below `pip:` into a file and gives it to the environment's pip, in the folder of
environment.yml. Python, which conda brings, is the one that runs this test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from course.paths import ROOT
from course.tools.pins import pins

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]
PACKAGES = ["jupyterlab", "ipyparallel", "mpi4py", "torch", "deepspeed", "matplotlib", "nbval"]
OURS = ["torch_mpi4py", "mpi_classroom", "course_lib", "course.tools"]


def test_what_conda_gives_pip_installs_the_course_and_runs_lessons(tmp_path: Path) -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (lines,) = [each["pip"] for each in environment["dependencies"] if isinstance(each, dict)]
    (tmp_path / "condaenv.requirements.txt").write_text("\n".join(lines) + "\n")
    prefix = tmp_path / "course"
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", prefix], check=True)

    # As `conda activate` leaves it; where PyTorch's index cannot be reached, pip shall not wait for it.
    activated = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    activated |= {
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "CONDA_PREFIX": str(prefix),
        "PIP_RETRIES": "0",
    }
    activated |= {"COURSE_HOME": str(tmp_path / "home"), "COURSE_OFFLINE": "1"}

    def run(*words: object) -> str:
        command = [str(word) for word in words]
        ran = subprocess.run(command, cwd=ROOT, env=activated, text=True, stdout=-1, stderr=subprocess.STDOUT)
        assert ran.returncode == 0, ran.stdout[-5000:]
        return ran.stdout

    run(
        "python", "-m", "pip", "install", "--upgrade", "--requirement", tmp_path / "condaenv.requirements.txt"
    )
    assert run("python", "-m", "pip", "check").strip() == "No broken requirements found."
    found = run("python", "-c", f"import {', '.join([*PACKAGES, *OURS])}; print(torch.__version__)")
    pinned = pins((ROOT / "requirements.lock").read_text())
    assert found.split()[-1].partition("+")[0] == pinned["torch"]
    assert "1 lesson ran" in run("course", "run", "01")
