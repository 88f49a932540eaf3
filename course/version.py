"""Which course this is: version and commit, and whether files differ. Thirty laptops can be compared by it.

A clone asks git. A folder that was installed from a bundle has MADE_FROM: the bundle's commit, and the sha256
of each file.
"""

import hashlib
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from course.paths import ROOT

GIT_SECONDS = 10.0
MADE_FROM = "made_from.txt"
CHANGED = ", with local changes"
EDITION = 3  # of the lessons; copies and progress of earlier ones do not say theirs


def course_version(root: Path = ROOT) -> str:
    """For example `0.1.0, commit 753fc8c1b2d3 of 2026-11-25, with local changes`.

    The version alone where `root` is neither a clone nor from a bundle, where git is missing, and where git
    refuses to read it because the folder belongs to somebody else. A change is one of a file that git knows.
    """
    number = version("course-lib")
    try:
        commit = _git(root, "log", "-1", "--abbrev=12", "--format=commit %h of %cs")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return number + _from_bundle(root)
    return f"{number}, {commit}" + (CHANGED if changed else "")


def made_from(root: Path, files: Iterable[Path]) -> str:
    """The text of MADE_FROM for `files` of the clone at `root`."""
    _, _, commit = course_version(root).partition(", ")
    return "\n".join(
        [commit or "no commit", *(f"{_sha256(path)}  {path.relative_to(root)}" for path in files)]
    )


def _from_bundle(root: Path) -> str:
    """What MADE_FROM adds to the version; empty where there is none."""
    try:
        commit, *lines = (root / MADE_FROM).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    changed = any(_sha256(root / line[66:]) != line[:64] for line in lines)
    return f", {commit}" + (CHANGED if changed and not commit.endswith(CHANGED) else "")


def _sha256(path: Path) -> str:
    """The digest of a file; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _git(root: Path, *arguments: str) -> str:
    """What git prints about the clone at `root`; of a repository around it, it knows nothing."""
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=GIT_SECONDS)
    return done.stdout.strip()
