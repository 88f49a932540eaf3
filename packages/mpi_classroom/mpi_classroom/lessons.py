"""Which exercises and questions there are: those of the modules `lesson_NN`, found by their ids."""

import importlib
import re
from pathlib import Path

from mpi_classroom.exercises import Exercise, Prediction, Question

_MODULE = re.compile(r"lesson_(\d\d)\.py")


def lessons() -> list[str]:
    """The numbers of the lessons that have exercises, in order: "00", "01", …"""
    names = sorted(path.name for path in Path(__file__).parent.iterdir())
    return [match[1] for name in names if (match := _MODULE.fullmatch(name))]


def exercises_of(lesson: str) -> tuple[Exercise | Question, ...]:
    """The exercises and questions of a lesson ("04"), in its order; none where there is no such lesson."""
    if lesson not in lessons():
        return ()
    module = importlib.import_module(f"course_lib.exercises.lesson_{lesson}")
    return tuple(module.EXERCISES)


def find_exercise(id: str) -> Exercise | Question:
    """The exercise or question with this id ("04.1"); raises LookupError when there is none."""
    lesson = id.partition(".")[0]
    found = exercises_of(lesson)
    if not found:
        raise LookupError(f"there is no lesson {lesson!r} with exercises; there are {', '.join(lessons())}")
    for exercise in found:
        if exercise.id == id:
            return exercise
    known = ", ".join(exercise.id for exercise in found)
    raise LookupError(f"there is no exercise {id!r}; lesson {lesson} has {known}")


def predictions_of(lesson: str) -> tuple[Prediction, ...]:
    """The predictions of a lesson ("04"): those of its `quiz_04`, in order."""
    if lesson not in lessons():
        return ()
    module = importlib.import_module(f"course_lib.exercises.quiz_{lesson}")
    return tuple(getattr(module, "PREDICTIONS", ()))


def find_prediction(question: str) -> Prediction | None:
    """The prediction that asks this; None when it is nobody's."""
    everywhere = (prediction for lesson in lessons() for prediction in predictions_of(lesson))
    return next((prediction for prediction in everywhere if prediction.question == question), None)
