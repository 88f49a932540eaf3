"""`continue_with("04.1")`: the next cells run the learner's answer where it is right, else the course's."""

from collections.abc import Sequence

from mpi_classroom.answer_job import check
from mpi_classroom.exercises import Exercise
from mpi_classroom.lessons import find_exercise
from mpi_classroom.practice import current_practice


def continue_with(id: str) -> None:
    """Define the course's solution of an exercise unless the learner's is right, and say whose runs next.

    Raises LookupError when there is no such exercise.
    """
    exercise, practice = find_exercise(id), current_practice()
    if not isinstance(exercise, Exercise) or practice is None:
        raise LookupError(f"{id} is no exercise with code to continue with, or there is no cluster yet")
    cell = last_answer(practice.shell.history_manager.input_hist_raw, id)
    if cell and check(exercise, cell).state == "right":
        print(f"{id} is right: the next cells run your own code.")
    else:
        practice.define(exercise.solution)
        print(f"{id} is not solved yet: the next cells run the course's solution.")


def last_answer(history: Sequence[str], id: str) -> str:
    """The code of the last cell in `history` that answers this exercise; "" when there is none."""
    for cell in reversed(history):
        first, _, code = cell.partition("\n")
        if first.split() == ["%%exercise", id]:
            return code
    return ""
