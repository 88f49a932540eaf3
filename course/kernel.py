"""What every kernel of `course lab` loads: words before the Setup cell, and help for old copies.

An import of ours that no longer exists means that the learner's copy is older than the course.
"""

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any

from mpi_classroom import before_setup
from mpi_classroom.errors import CourseError

OURS = ("course", "course_lib", "mpi_classroom")


class OldCopyError(CourseError):
    """This copy of a lesson imports what the course no longer has."""


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython, in a new kernel."""
    before_setup.load_ipython_extension(shell)
    shell.set_custom_exc((ImportError,), explain)


def explain(
    shell: Any,
    kind: type[BaseException],
    error: ImportError,
    traceback: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show an import error; in one sentence with its remedy when the import is one of ours."""
    if (error.name or "").partition(".")[0] in OURS:
        shell.showtraceback((OldCopyError, OldCopyError(sentence(error.name or "")), None))
    else:
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def sentence(module: str) -> str:
    """What a learner reads whose copy imports `module`, which is gone."""
    lesson = re.match(r"\d\d(?=_)", Path(os.environ.get("JPY_SESSION_NAME", "")).name)
    command = f"course reset {lesson[0]}" if lesson else "course reset"
    return (
        f"this copy of the lesson is older than the course, which has no such name in {module} any more. "
        f"Type in a terminal: {command}. It makes a fresh copy and keeps yours beside it; "
        "what you passed stays passed."
    )
