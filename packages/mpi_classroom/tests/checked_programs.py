"""Runs the programs of a module one after the other on all ranks, and prints what is said of each, as JSON.

python -m mpi_classroom.launch 3 -m packages.mpi_classroom.tests.checked_programs silent_mistakes.MISTAKES
"""

import faulthandler
import importlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpi_classroom.mistake_words import Words
from mpi_classroom.mistakes import Comparison
from mpi_classroom.recording import checks, mailbox, recorder


def program_of(entry):
    """The program of an entry of `MISTAKES` or of `RIGHT`."""
    return entry if isinstance(entry, str) else entry[1]


def run(name, source):
    """Run one program; return this rank's log."""
    comm = MPI.COMM_WORLD
    names = {"np": np, "MPI": MPI, "comm": comm, "rank": comm.rank, "size": comm.size}
    try:
        exec(compile(source.strip("\n"), name, "exec"), names)
    except Exception as error:
        print(f"{name}: {error!r}", file=sys.stderr)
    log = checks.collect()
    names.clear()
    return log


def in_words(logs, source):
    """What is said of a program whose ranks left `logs`."""
    lines = source.splitlines()
    words = Words(lambda line: (f"line {line[1]}", lines[line[1] - 1].strip()), lambda file: source)
    return [mistake.line() for mistake in Comparison().compare(dict(enumerate(logs)), words)]


def main():
    module, attribute = sys.argv[1].split(".")
    programs = getattr(importlib.import_module(f"packages.mpi_classroom.tests.{module}"), attribute)
    faulthandler.dump_traceback_later(int(sys.argv[2]) if len(sys.argv) > 2 else 60, exit=True)
    plain = MPI.COMM_WORLD.Dup()
    with tempfile.TemporaryDirectory() as folder:
        recorder.install(Path(folder))
        said = {}
        for name, entry in programs.items():
            logs = plain.gather(run(name, program_of(entry)))
            if plain.rank == 0:
                said[name] = in_words(logs, program_of(entry).strip("\n"))
            plain.barrier()
            mailbox.receive_all()
            checks.collect()
            plain.barrier()
    if plain.rank == 0:
        print(json.dumps(said))


if __name__ == "__main__":
    main()
