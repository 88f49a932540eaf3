"""A rank of a program whose calls are checked: `python -m mpi_classroom.checked FOLDER PROGRAM ARGUMENTS…`.

It runs the program as `python PROGRAM ARGUMENTS…` would, and leaves what it noted of its MPI calls in FOLDER.
There `launch --check` compares the ranks when all have ended.
"""

import atexit
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks, recorder

GRACE_SECONDS = 0.5  # in which ranks that are about to end leave their logs


def log_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` leaves its log."""
    return folder / f"rank-{rank}.log"


def main() -> None:
    """Run the program named on the command line, and write the log when it ends."""
    folder, program = Path(sys.argv[1]), sys.argv[2]
    finalize = MPI.Finalize
    recorder.install(folder)
    rank = MPI.COMM_WORLD.rank

    def leave_log(*_: Any) -> None:
        path = log_file(folder, rank)
        if not path.exists():
            path.with_suffix(".part").write_bytes(checks.collect(last=True))
            os.replace(path.with_suffix(".part"), path)

    def end() -> None:
        leave_log()
        finalize()

    MPI.Finalize = end
    atexit.register(leave_log)  # for a program that ends by sys.exit
    try:
        names = _run(program, sys.argv[2:])  # kept: requests in them live until the log is written
        leave_log()
        del names
    except Exception:
        traceback.print_exc()
        leave_log()
        sys.stderr.flush()
        time.sleep(GRACE_SECONDS)
        MPI.COMM_WORLD.Abort(1)  # the others may wait for this rank for ever


def _run(program: str, arguments: list[str]) -> dict[str, Any]:
    """Run a program; return its names."""
    if program == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        return runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    sys.argv = arguments
    sys.path[0] = str(Path(program).resolve().parent)
    return runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
