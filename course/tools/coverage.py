"""Practice covers the lesson: every objective has an item, every misconception is aimed at.

An item is an exercise, a question or a prediction that stands in the lesson. Each says which objectives of
the header it serves and which misconceptions it is aimed at (`exercises/model.py`, `misconceptions.py`).
"""

import ast
import re
from collections.abc import Callable, Iterator

from course.lessons.shared.misconceptions import MISCONCEPTIONS
from course.tools.lesson import LessonSource, Problem
from course.tools.parts import in_core
from course.tools.practice import MAGIC
from mpi_classroom.exercises import Exercise, Prediction, Question
from mpi_classroom.lessons import exercises_of, predictions_of

Item = Exercise | Question | Prediction
KNOWN = {name for beliefs in MISCONCEPTIONS.values() for name in beliefs}
QUESTIONS = (2, 3)  # so many has a quiz


def objectives(lesson: LessonSource) -> list[str]:
    """What the header says that the reader will be able to do, one by one."""
    text = lesson.cells[0].source if lesson.cells else ""
    row = re.search(r"^\| \*\*You will be able to\*\* \| (.+?) \|$", text, re.MULTILINE)
    return [objective.strip() for objective in row[1].split(";")] if row else []


def items(lesson: LessonSource) -> list[tuple[int, Item]]:
    """The exercises, questions and predictions of this lesson that stand in it, with their cells."""
    exercises = {item.id: item for item in exercises_of(lesson.number)}
    predictions = {item.question: item for item in predictions_of(lesson.number)}
    found: list[tuple[int, Item]] = []
    for n, cell in lesson.code:
        match = MAGIC.match(cell.source)
        if match and match[1] in exercises:
            found.append((n, exercises[match[1]]))
        for question in asked(cell.source, "predict"):
            if question in predictions:
                found.append((n, predictions[question]))
    return found


def asked(source: str, function: str) -> list[str]:
    """The first arguments of the calls of `function` in a cell."""
    if source.startswith("%%"):
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    first = [call.args[0] for call in named if call.args]
    return [str(argument.value) for argument in first if isinstance(argument, ast.Constant)]


# -------------------------------------------------------------------- rules


def objectives_have_items(lesson: LessonSource) -> Iterator[Problem]:
    """Every objective is practised, and every item serves one."""
    wanted = objectives(lesson)
    practised = {number for _, item in items(lesson) for number in item.objectives}
    for number, objective in enumerate(wanted, 1):
        if number not in practised:
            yield 1, f"nothing practises objective {number}, {objective!r}; write an item that does"
    for n, item in items(lesson):
        unknown = [number for number in item.objectives if not 1 <= number <= len(wanted)]
        if unknown:
            yield n, f"{item.id} serves objective {unknown[0]}; the header has {len(wanted)}"
        if not item.objectives:
            yield n, f"{item.id} serves no objective of the header; give it objectives=(…)"


def misconceptions_are_targeted(lesson: LessonSource) -> Iterator[Problem]:
    """Every misconception of the lesson is the target of an item in it."""
    aimed_at = {name for _, item in items(lesson) for name in item.targets}
    for name, belief in MISCONCEPTIONS.get(lesson.number, {}).items():
        if name not in aimed_at:
            yield 1, f"nothing is aimed at the misconception {name!r} ({belief}); make it an item's target"


def items_have_targets(lesson: LessonSource) -> Iterator[Problem]:
    """Wrong options, predictions and spotted bugs each stand for a known misconception."""
    for n, item in items(lesson):
        for name in item.targets:
            if name not in KNOWN:
                yield (
                    n,
                    f"{item.id} is aimed at {name!r}, which misconceptions.py does not have; add it there",
                )
        if isinstance(item, Question):
            for letter in item.options.keys() - {item.right} - item.beliefs.keys():
                yield n, f"option {letter} of {item.id} stands for no misconception; name it in beliefs"
            if item.right in item.beliefs:
                yield n, f"option {item.right} of {item.id} is right and cannot stand for a misconception"
        elif not item.targets and (isinstance(item, Prediction) or item.spot_the_bug):
            yield n, f"{item.id} is aimed at no misconception; name one in its targets"


def predictions(lesson: LessonSource) -> Iterator[Problem]:
    """Every prediction is known, and compared with what comes out."""
    known = {prediction.question for prediction in predictions_of(lesson.number)}
    compared = {(question, n) for n, cell in lesson.code for question in asked(cell.source, "outcome")}
    for n, cell in lesson.code:
        for question in asked(cell.source, "predict"):
            if question not in known:
                yield n, f"{question!r} is not in PREDICTIONS of the quiz.py of the lesson; add it there"
            if not any(other == question and later > n for other, later in compared):
                yield n, f"no later cell calls outcome({question!r}, …); compare the guess with a measurement"


def practice_is_complete(lesson: LessonSource) -> Iterator[Problem]:
    """One exercise in the core, and everywhere a prediction, a bug to spot, and a quiz."""
    core, here = in_core(lesson.cells), items(lesson)
    exercises = [(n, item) for n, item in here if isinstance(item, Exercise)]
    of_core = [item.id for n, item in exercises if core[n - 1]]
    if len(of_core) != 1:
        yield 1, f"the core has {len(of_core)} exercises; keep one, and move the others to More"
    if not any(item.spot_the_bug for _, item in exercises):
        yield 1, "no exercise is called 'Spot the bug: …'; make one of a mistake that is often made"
    if not any(isinstance(item, Prediction) for _, item in here):
        yield 1, "nothing is predicted; put predict(…, None) before a measurement, and outcome(…) after it"
    questions = sum(isinstance(item, Question) for _, item in here)
    if questions not in QUESTIONS:
        yield 1, f"the quiz has {questions} questions; ask {QUESTIONS[0]} or {QUESTIONS[1]}"


COVERAGE_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (
    objectives_have_items,
    misconceptions_are_targeted,
    items_have_targets,
    predictions,
    practice_is_complete,
)
