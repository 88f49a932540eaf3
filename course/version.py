"""Which course this is: the version and, in a git clone, the commit. Thirty laptops can be compared by it."""

import subprocess
from importlib.metadata import version
from pathlib import Path

from course.paths import ROOT

GIT_SECONDS = 10.0


def course_version(root: Path = ROOT) -> str:
    """For example `0.1.0, commit 753fc8c1b2d3 of 2026-11-25, with local changes`.

    The version alone where `root` is no git clone, where git is missing, and where git refuses to read it
    because the folder belongs to somebody else. A change is one of a file that git knows.
    """
    number = version("course-lib")
    try:
        commit = _git(root, "log", "-1", "--abbrev=12", "--format=commit %h of %cs")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return number
    return f"{number}, {commit}" + (", with local changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    """What git prints about the clone at `root`; of a repository around it, it knows nothing."""
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=GIT_SECONDS)
    return done.stdout.strip()
