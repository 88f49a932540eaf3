"""The throwaway MPI job that checks one answer: `python -m course_lib.exercises.judge FOLDER` on four ranks.

FOLDER holds `answer.py` (the learner's cell) and `exercise` (its id). Every rank writes what happens, a line
of JSON each, to `rank-R.jsonl`: so that a deadlock, a killed rank or garbage can be read about afterwards.
Cases run smallest first, on 1, 2, 3 and 4 ranks; then once more with random pauses before every MPI call.
"""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from mpi4py import MPI

from course_lib.comm import recorder
from course_lib.exercises.model import Exercise, Question, Wrong

PAUSE_SECONDS = 0.003


def find_exercise(id: str) -> Exercise | Question:
    """The exercise or question with this id ("04.1"); raises LookupError when there is none."""
    lesson = id.partition(".")[0]
    try:
        module = importlib.import_module(f"course_lib.exercises.lesson_{lesson}")
    except ModuleNotFoundError:
        raise LookupError(f"there is no lesson {lesson!r} with exercises") from None
    for exercise in module.EXERCISES:
        if exercise.id == id:
            return exercise
    known = ", ".join(exercise.id for exercise in module.EXERCISES)
    raise LookupError(f"there is no exercise {id!r}; lesson {lesson} has {known}")


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


def load_answer(source: str) -> SimpleNamespace:
    """What the learner's cell defines; the cell runs with `np` and `MPI` at hand, as in the notebook."""
    import numpy as np

    names: dict[str, Any] = {"__name__": "answer", "np": np, "MPI": MPI}
    exec(compile(source, "answer.py", "exec"), names)
    return SimpleNamespace(**names)


def judge(exercise: Exercise, source: str, log: TextIO) -> None:
    """Run all cases of `exercise` on this rank and log each."""
    world = MPI.COMM_WORLD

    def note(event: str, **details: Any) -> None:
        log.write(json.dumps({"event": event, **details}) + "\n")
        log.flush()

    try:
        answer = load_answer(source)
    except BaseException as error:  # the learner's code: whatever it raises is the verdict
        note("raised", step=0, **_described(error))
        return
    step = 0
    for pause in (False, True):
        for size in exercise.sizes:
            for number, case in enumerate(exercise.cases):
                step += 1
                world.Barrier()
                small = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
                if world.rank >= size:
                    continue
                comm = PausingComm(small) if pause else recorder.RecordedComm(small)
                note("began", step=step, size=size, case=number, pause=pause, pid=os.getpid())
                try:
                    exercise.check(answer, comm, case)
                    _no_message_left(small)
                    note("right", step=step)
                except Wrong as wrong:
                    note("wrong", step=step, message=str(wrong))
                except BaseException as error:
                    note("raised", step=step, **_described(error))
    note("done", step=step)


def _no_message_left(comm: MPI.Comm) -> None:
    """Raise Wrong when a message to this rank on `comm` was sent and never received."""
    comm.Barrier()
    status = MPI.Status()
    if comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
        raise Wrong(f"a message from rank {status.source}, tag {status.tag}, was sent and never received.")


def _described(error: BaseException) -> dict[str, Any]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "answer.py"]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    first = (str(error).splitlines() or [""])[0]
    return {"error": type(error).__name__, "message": first, "line": line}


def main() -> None:
    """Judge the answer in the folder named on the command line."""
    folder = Path(sys.argv[1])
    recorder.install(folder)
    exercise = find_exercise((folder / "exercise").read_text())
    assert isinstance(exercise, Exercise)
    with open(folder / f"rank-{MPI.COMM_WORLD.rank}.jsonl", "w") as log:
        judge(exercise, (folder / "answer.py").read_text(), log)


if __name__ == "__main__":
    main()
