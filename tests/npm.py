"""Programs that npm installs, for tests that need one: from the path, or into build/tools/node."""

import shutil
import subprocess

import pytest

from course.paths import ROOT

FOLDER = ROOT / "build" / "tools" / "node"


def program(package: str, name: str) -> str:
    """The path of a program; npm installs what is missing. Skips, with the reason, without npm."""
    installed = FOLDER / "node_modules" / ".bin" / name
    if found := shutil.which(name) or (str(installed) if installed.exists() else None):
        return found
    if not shutil.which("npm"):
        pytest.skip(f"neither {name} nor npm is installed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        ["npm", "install", "--no-save", "--prefix", FOLDER, package],
        text=True,
        capture_output=True,
        timeout=300,
    )
    if ran.returncode or not installed.exists():
        pytest.skip(
            f"npm could not install {package}: {(ran.stderr.strip() or 'no reason').splitlines()[-1]}"
        )
    return str(installed)
