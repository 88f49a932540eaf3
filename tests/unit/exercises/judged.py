"""The exercises, what is judged of an answer, and one job of four ranks that judges many."""

import json
from collections.abc import Mapping
from pathlib import Path

from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.launch import run_ranks
from mpi_classroom.lessons import exercises_of, lessons
from mpi_classroom.practice import argument

EXERCISES = [item for lesson in lessons() for item in exercises_of(lesson) if isinstance(item, Exercise)]

RIGHT = ("solution", "synchronous")  # answers that wait for a rank that is late, not for ever
Words = dict[tuple[str, str], list[str]]  # what is wrong, by exercise and by what was changed


def name(item: object) -> str:
    """What a parameter is called in a test's id."""
    return item.id if isinstance(item, Exercise | Question) else str(item)


def program(exercise: Exercise, cell: str) -> str:
    """What is judged when this is the cell."""
    return exercise.assemble(argument(cell, "order")) if exercise.blocks else cell


def judge(answers: Mapping[tuple[str, str], str], folder: Path) -> Words:
    """What is wrong with every one of `answers`, judged after each other in one job of four ranks."""
    timed = [(id, source, 5.0 if what in RIGHT else 0.4) for (id, what), source in answers.items()]
    (folder / "answers").write_text(json.dumps(timed))
    script = Path(__file__).with_name("batch.py")
    done = run_ranks(4, [str(script), str(folder / "answers"), str(folder / "results")], timeout=540)
    assert (folder / "results").exists(), done.stderr[-2000:]
    return dict(zip(answers, json.loads((folder / "results").read_text()), strict=True))
