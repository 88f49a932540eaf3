"""What a lesson goes on with: the learner's solution where it is right, else the course's own.

loop, whose = yours_or_ours(comm, TRAIN, globals())     # on all ranks of the lesson
"""

import ast
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

from mpi_classroom.exercises import Exercise


def yours_or_ours(
    comm: MPI.Intracomm, exercise: Exercise, names: Mapping[str, Any]
) -> tuple[Callable[..., Any], str]:
    """The learner's function if it passes the first case of `exercise` on all ranks of `comm`, else ours.

    `names` are those of the rank; the learner's function is there if its cell has run. With the function
    comes a sentence that says whose it is, and for the course's own its code. All ranks get the same.
    """
    name = next(node.name for node in ast.parse(exercise.stub).body if isinstance(node, ast.FunctionDef))
    try:
        exercise.check(SimpleNamespace(**{name: names[name]}), comm, exercise.cases[0])
        passed = True
    except Exception:  # a learner's code: the cell of the exercise has said what is wrong with it
        passed = False
    if comm.allreduce(passed, MPI.LAND):
        return names[name], f"Your own `{name}` of exercise {exercise.id}."
    own: dict[str, Any] = {}
    exec("\n".join([exercise.imports, exercise.solution]), own)
    return own[
        name
    ], f"{exercise.id} is not solved yet: this is the course's `{name}`.\n\n{exercise.solution}"
