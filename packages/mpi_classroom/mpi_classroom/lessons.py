"""Which lessons there are: those of the courses that have registered, found from any folder.

A course says in its `pyproject.toml` where its `Course` is:

    [project.entry-points."mpi_classroom.lessons"]
    my_course = "my_course.lessons:COURSE"

A notebook without a distribution calls `register(Course(…))` instead.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from mpi_classroom.exercises import Exercise, Prediction, Question

GROUP = "mpi_classroom.lessons"


@dataclass(frozen=True, slots=True)
class Course:
    """A course: which module has the exercises of each lesson, and where its files are.

    `exercises` maps the number of a lesson ("04") to the name of a module with EXERCISES and, where the
    lesson has some, PREDICTIONS. `notebooks` is the folder of the lessons as they were published, for
    `catch_up`; `progress` is the file that remembers what the learner has passed. Both may be left out.
    `edition` grows when exercises get ids that others have had: then earlier progress is kept apart.
    """

    exercises: Mapping[str, str]
    notebooks: Path | None = None
    progress: Path | None = None
    edition: int = 1


_registered: list[Course] = []


def register(course: Course) -> None:
    """Make the lessons of `course` known to this process; they come before those of installed courses."""
    _registered.insert(0, course)


def courses() -> list[Course]:
    """All courses: those that were registered in this process, then those that are installed."""
    return [*_registered, *_installed()]


@functools.cache
def _installed() -> tuple[Course, ...]:
    return tuple(entry.load() for entry in entry_points(group=GROUP))


def course_of(lesson: str) -> Course | None:
    """The course that has a lesson ("04"); None when no course has it."""
    return next((course for course in courses() if lesson in course.exercises), None)


def lessons() -> list[str]:
    """The numbers of the lessons that have exercises, in order: "00", "01", …"""
    return sorted({lesson for course in courses() for lesson in course.exercises})


def _module_of(lesson: str) -> ModuleType | None:
    course = course_of(lesson)
    return importlib.import_module(course.exercises[lesson]) if course else None


def exercises_of(lesson: str) -> tuple[Exercise | Question, ...]:
    """The exercises and questions of a lesson ("04"), in its order; none where there is no such lesson."""
    return tuple(getattr(_module_of(lesson), "EXERCISES", ()))


def find_exercise(id: str) -> Exercise | Question:
    """The exercise or question with this id ("04.1"); raises LookupError when there is none."""
    lesson = id.partition(".")[0]
    found = exercises_of(lesson)
    if not found:
        there = ", ".join(lessons()) or "none: no course is installed"
        raise LookupError(f"there is no lesson {lesson!r} with exercises; there are {there}")
    for exercise in found:
        if exercise.id == id:
            return exercise
    known = ", ".join(exercise.id for exercise in found)
    raise LookupError(f"there is no exercise {id!r}; lesson {lesson} has {known}")


def reference(id: str) -> str:
    """Where the exercise with this id is, as `module:attribute`; raises LookupError when it is nowhere."""
    module = _module_of(id.partition(".")[0])
    if module is not None:
        for name, value in vars(module).items():
            if isinstance(value, Exercise) and value.id == id:
                return f"{module.__name__}:{name}"
    raise LookupError(f"no variable of a lesson's module is exercise {id!r}; give it a name beside EXERCISES")


def load(reference: str) -> Exercise:
    """The exercise at `module:attribute`; raises LookupError when there is none."""
    module, _, name = reference.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, Exercise):
        raise LookupError(f"{reference} is no exercise")
    return found


def predictions_of(lesson: str) -> tuple[Prediction, ...]:
    """The predictions of a lesson ("04"), in order."""
    return tuple(getattr(_module_of(lesson), "PREDICTIONS", ()))


def find_prediction(question: str) -> Prediction | None:
    """The prediction that asks this; None when it is nobody's."""
    everywhere = (prediction for lesson in lessons() for prediction in predictions_of(lesson))
    return next((prediction for prediction in everywhere if prediction.question == question), None)
