"""What a lesson goes on with: the learner's solution where it is right, else the course's own.

train, whose = yours_or_ours(comm, TRAIN, train)     on all ranks of the lesson
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

from mpi_classroom.exercises import Exercise


def yours_or_ours(
    comm: MPI.Intracomm, exercise: Exercise, yours: Callable[..., Any]
) -> tuple[Callable[..., Any], str]:
    """`yours` if the first case of `exercise` is right with it on all ranks of `comm`, else the solution's.

    With it comes a sentence that says whose it is, and for the course's own its code. All ranks get the same.
    """
    name = yours.__name__
    try:
        exercise.check(SimpleNamespace(**{name: yours}), comm, exercise.cases[0])
        passed = True
    except Exception:  # a learner's code: the cell of the exercise has said what is wrong with it
        passed = False
    if comm.allreduce(passed, MPI.LAND):
        return yours, f"Your own `{name}` of exercise {exercise.id}."
    names: dict[str, Any] = {}
    exec("\n".join([exercise.imports, exercise.solution]), names)
    return names[
        name
    ], f"{exercise.id} is not solved yet: this is the course's `{name}`.\n\n{exercise.solution}"
