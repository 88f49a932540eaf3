"""Pythons that no test of ours runs on: pip finds a file for every pinned package, PyTorch included.

This says that the course can be set up there, and no more. 3.11 runs in every `make test`; 3.13 on Debian 13
in `make test-release`; the hosted matrix has 3.12 to 3.14.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from course.tools.bundle.make import tags, wanted_pins
from course.tools.pins import LOCK, pins

UNTRIED = ("3.12", "3.14")


@pytest.mark.release
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", UNTRIED)
@pytest.mark.parametrize("system", ["linux-x86_64", "linux-aarch64", "macos-arm64"])
def test_every_pin_has_a_file_for_this_python(python: str, system: str, tmp_path: Path) -> None:
    lock = LOCK.read_text()
    wanted = tmp_path / "pins.txt"
    wanted.write_text(wanted_pins(lock, system, python))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--no-build-isolation", "--dest", str(tmp_path / "files"), "--implementation", "cp"]
    pip += ["--python-version", python, *(f"--platform={tag}" for tag in tags(system))]
    done = subprocess.run(
        [*pip, "--require-hashes", "--requirement", str(wanted)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    torch = f"torch=={pins(lock)['torch']}"
    done = subprocess.run([*pip, "--only-binary", ":all:", torch], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "files").iterdir())) == wanted.read_text().count("==") + 1
