"""The throwaway MPI job that checks one answer: `python -m mpi_classroom.judge FOLDER` on four ranks.

FOLDER holds `answer.py` (the learner's cell) and `exercise`, which says `module:attribute`. Every rank writes
what happens, a line of JSON each, to `rank-R.jsonl`: so that a deadlock, a killed rank or garbage can be
reported afterwards.
Cases run smallest first, on 1, 2, 3 and 4 ranks; then once more with random pauses before every MPI call.
"""

import base64
import dis
import importlib
import itertools
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, TextIO

import psutil
from mpi4py import MPI

from mpi_classroom.exercises import Exercise, Wrong
from mpi_classroom.job_output import event_file
from mpi_classroom.lessons import load
from mpi_classroom.recording import checks, recorder

PAUSE_SECONDS = 0.003
MEMORY_BYTES = (2**29, 2**31)  # at least, at most, beside what a rank has when the answer starts


class PausingComm(recorder.RecordedComm):
    """A communicator that pauses for a random moment before every call, differently on every rank."""


def _pausing(name: str) -> Any:
    original = getattr(recorder.RecordedComm, name)

    def call(self: MPI.Intracomm, *args: Any, **kwargs: Any) -> Any:
        seed = (MPI.COMM_WORLD.rank * 7919 + int(MPI.Wtime() * 1e6)) % 1000
        time.sleep(PAUSE_SECONDS * seed / 1000)
        return original(self, *args, **kwargs)

    return call


for _name in recorder.CALLS:
    setattr(PausingComm, _name, _pausing(_name))


def pausing(comm: recorder.RecordedComm) -> PausingComm:
    """`comm` with pauses; its calls are compared as those of `comm` are."""
    paused = PausingComm(comm)
    paused._checked = comm._checked
    return paused


def load_answer(source: str, names: dict[str, Any]) -> SimpleNamespace:
    """What the learner's cell defines when it runs with `names` at hand, as on the ranks of the notebook."""
    defined = {"__name__": "answer", **names}
    exec(compile(source, "answer.py", "exec"), defined)
    return SimpleNamespace(**defined)


def limit_memory() -> None:
    """Let this rank take no more than its share of the free memory: then NumPy and torch raise an error.

    Without a limit the system may end the notebook instead. It counts the memory that is this process's alone
    (RLIMIT_DATA); a limit on addresses (RLIMIT_AS) would count libraries and shared memory that nobody uses.
    """
    if sys.platform != "linux":
        return  # other systems do not count what malloc takes
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    share = psutil.virtual_memory().available // MPI.COMM_WORLD.size
    limit = pages * resource.getpagesize() + min(max(share, MEMORY_BYTES[0]), MEMORY_BYTES[1])
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def names_at_hand(imports: str) -> dict[str, Any]:
    """`np`, `MPI`, and what the lines `imports` bind."""
    names: dict[str, Any] = {}
    exec("\n".join(["import numpy as np", "from mpi4py import MPI", imports]), names)
    return names


def imports_of(check: Any) -> set[str]:
    """The modules that a check, and what it calls in modules of its own package, import when they run.

    To import torch takes seconds, on a busy machine many: they are not the answer's.
    """
    package = check.__module__.partition(".")[0]
    found, seen, waiting = set[str](), set[Any](), [check]
    while waiting:
        function = waiting.pop()
        mine = str(getattr(function, "__module__", "")).startswith(package)
        if not (mine and isinstance(function, FunctionType)) or function in seen:
            continue
        seen.add(function)
        for code in _codes(function.__code__):
            found |= {each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}
            waiting += [function.__globals__.get(name) for name in code.co_names]
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of all functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def judge(exercise: Exercise, source: str, log: TextIO) -> None:
    """Run all cases of `exercise` on this rank and log each."""
    world = MPI.COMM_WORLD.Dup()  # the learner's calls on COMM_WORLD must not meet ours

    def note(event: str, **details: Any) -> None:
        log.write(json.dumps({"event": event, **details}) + "\n")
        log.flush()

    names = names_at_hand(exercise.imports)
    for module in sorted(imports_of(exercise.check)):
        importlib.import_module(module)
    limit_memory()
    note("ready", step=0, pid=os.getpid())  # what took time until here was not the learner's
    try:
        answer = load_answer(source, names)
    except BaseException as error:  # the learner's code: whatever it raises is the verdict
        note("raised", step=0, **_described(error))
        return
    step = 0
    for pause, size, number in steps(exercise):
        step += 1
        world.Barrier()
        small = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
        if world.rank >= size:
            continue
        note("began", step=step, size=size, case=number, pause=pause, pid=os.getpid())
        checks.collect()
        event, details = outcome(exercise, answer, small, number, pause)
        note("calls", step=step, log=base64.b64encode(checks.collect()).decode())
        note("returned" if event == "right" else event, step=step, **details)
        small.Barrier()  # where ranks that are done wait, whatever came out
        if event == "right":
            left = left_over(small)
            note("wrong" if left else "right", step=step, message=left)
    note("done", step=step)


def steps(exercise: Exercise) -> Iterator[tuple[bool, int, int]]:
    """All that is tried, in this order: with pauses or without, on how many ranks, which case."""
    return itertools.product((False, True), exercise.sizes, range(len(exercise.cases)))


def outcome(
    exercise: Exercise, answer: SimpleNamespace, comm: Any, number: int, pause: bool
) -> tuple[str, dict[str, Any]]:
    """What the check of one case says on this rank: right, wrong or raised, and the details."""
    try:
        exercise.check(answer, pausing(comm) if pause else comm, exercise.cases[number])
    except Wrong as wrong:
        return "wrong", {"message": str(wrong)}
    except BaseException as error:
        return "raised", _described(error)
    return "right", {}


def left_over(comm: MPI.Comm) -> str:
    """In words, a message to this rank on `comm` that was sent and never received; "" when there is none."""
    status = MPI.Status()
    if not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
        return ""
    return f"was sent a message by rank {status.source} (tag {status.tag}) that it never received."


def _described(error: BaseException) -> dict[str, Any]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "answer.py"]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    first = (str(error).splitlines() or [""])[0]
    name = error.name if isinstance(error, NameError) else ""
    return {"error": type(error).__name__, "message": first, "line": line, "name": name}


def main() -> None:
    """Judge the answer in the folder named on the command line."""
    folder = Path(sys.argv[1])
    recorder.install(folder)
    exercise = load((folder / "exercise").read_text())
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  an endless loop of prints must not fill the disk
    with open(event_file(folder, MPI.COMM_WORLD.rank), "w") as log:
        judge(exercise, (folder / "answer.py").read_text(), log)


if __name__ == "__main__":
    main()
