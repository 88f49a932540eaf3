"""Runs a program as `python FILE` does where none of the course's packages is installed.

python -m mpi_classroom.launch 3 tests/without_ours.py notebooks/code/06_by_hand.py
"""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

OURS = ("course", "course_lib", "mpi_classroom", "benchmarks", "tests")


class NotInstalled:
    """Finds none of our packages, before others find them."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    sys.meta_path.insert(0, NotInstalled())  # type: ignore[arg-type]
    runpy.run_path(sys.argv[0], run_name="__main__")
