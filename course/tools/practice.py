"""The cells to practise in a lesson say what the exercises say: stub, question, options, lines of a puzzle.

They are written twice, for a lesson has to be readable by itself; these rules hold the two together.
"""

import re
from collections.abc import Callable, Iterator

from course.tools.lesson import LessonSource, Problem
from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.lessons import find_exercise

MAGIC = re.compile(r"%%exercise(?: +(\S+))?\s*(?:\n|$)")


def exercise_cells(lesson: LessonSource) -> Iterator[Problem]:
    """An exercise cell holds the stub of its exercise, and the cell before it says what is asked."""
    seen: set[str] = set()
    for n, cell in lesson.code:
        match = MAGIC.match(cell.source)
        if match is None:
            continue
        try:
            exercise = find_exercise(match[1] or "")
        except LookupError as error:
            yield n, f"{error}; correct the number, or write the exercise"
            continue
        if not exercise.id.startswith(f"{lesson.number}."):
            yield n, f"{exercise.id} is an exercise of another lesson; take one of lesson {lesson.number}"
        if exercise.id in seen:
            yield n, f"{exercise.id} is in this lesson twice; remove one of the cells"
        seen.add(exercise.id)
        if cell.source[match.end() :].strip("\n") != stub(exercise):
            yield n, f"the cell is not the stub of {exercise.id} in the exercises.py of the lesson; copy that"
        before = lesson.cells[n - 2].source if n > 1 and lesson.cells[n - 2].cell_type == "markdown" else ""
        for words in announced(exercise):
            if _plain(words) not in _plain(before):
                yield n, f"the text cell before {exercise.id} does not say {words!r}; write it there"


def stub(exercise: Exercise | Question) -> str:
    """What a learner finds in the cell of an exercise."""
    return 'answer("")' if isinstance(exercise, Question) else exercise.stub.strip("\n")


def announced(exercise: Exercise | Question) -> list[str]:
    """What the text before an exercise must say, apart from what it says in its own words."""
    if isinstance(exercise, Question):
        options = [f"({letter}) {words}" for letter, words in exercise.options.items()]
        return [f"Quiz {exercise.id}", exercise.question, *options]
    lines = [f"{letter} {block}" for letter, block in exercise.blocks.items()]
    opening = [exercise.opening] if exercise.opening else []
    return [f"Exercise {exercise.id}", *opening, *lines]


def _plain(text: str) -> str:
    return " ".join(text.split())


PRACTICE_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (exercise_cells,)
