"""Practice covers the lesson: every objective has an item, every misconception is aimed at.

An item is an exercise, a question or a prediction that stands in the lesson. Each says which objectives of
the frame it serves and which misconceptions it is aimed at (`mpi_classroom.exercises`, `misconceptions.py`).
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping

from course.lessons.shared.misconceptions import MISCONCEPTIONS
from course.tools.lesson import LessonSource, Problem
from course.tools.parts import in_core
from mpi_classroom.exercises import Exercise, Prediction, Question
from mpi_classroom.lessons import exercises_of, predictions_of

COMMAND = re.compile(r"^([ \t]*)(?:\w+ = )?(?:!(?!=)|%[a-z]).*", re.MULTILINE)  # !mpiexec …
MAGIC = re.compile(r"%%exercise +(\S+)")
Item = Exercise | Question | Prediction
KNOWN = {name for beliefs in MISCONCEPTIONS.values() for name in beliefs}
MOST_QUESTIONS = 2  # of a core
OFTEN = 3  # so many items of the whole course are aimed at one misconception, and of those below:
OFTENER: Mapping[str, int] = {
    "n-ranks-n-times": 6, "every-stage-an-nth": 5, "stage-3-is-free": 5, "every-layer-needs-a-sum": 4,
    "timed-out-rank-is-guilty": 4,
}  # fmt: skip


def items(lesson: LessonSource) -> list[tuple[int, Item]]:
    """The exercises, questions and predictions of this lesson that stand in it, with their cells."""
    exercises = {item.id: item for item in exercises_of(lesson.number)}
    predictions = {item.question: item for item in predictions_of(lesson.number)}
    found: list[tuple[int, Item]] = []
    for n, cell in lesson.code:
        match = MAGIC.match(cell.source)
        if match and match[1] in exercises:
            found.append((n, exercises[match[1]]))
        found += [(n, predictions[asks]) for asks in asked(cell.source, "predict") if asks in predictions]
    return found


def asked(source: str, function: str) -> list[str]:
    """The first arguments of the calls of `function` in a cell."""
    if source.startswith("%%"):
        return []
    python = COMMAND.sub(r"\1pass", source)
    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call) and node.args]
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    return [str(argument.value) for argument in named if isinstance(argument, ast.Constant)]


def objectives_have_items(lesson: LessonSource) -> Iterator[Problem]:
    """Every objective is practised, those of the core in the core, and every item serves one."""
    of_core, with_more = lesson.frame.able, lesson.frame.more
    core, here = in_core(lesson.cells), items(lesson)
    practised = {number: core[n - 1] for n, item in reversed(here) for number in item.objectives}
    for number, objective in enumerate(lesson.frame.objectives, 1):
        if number not in practised:
            yield 1, f"nothing practises objective {number}, {objective!r}; write an item that does"
        elif with_more and number <= len(of_core) and not practised[number]:
            yield 1, f"objective {number}, {objective!r}, is practised in More only; list it under `more`"
    for n, item in here:
        if not item.objectives or max(item.objectives) > len(lesson.frame.objectives):
            yield (
                n,
                f"{item.id} serves {item.objectives}; there are {len(lesson.frame.objectives)} objectives",
            )


def misconceptions_are_targeted(lesson: LessonSource) -> Iterator[Problem]:
    """Every misconception of the lesson is the target of an item; each wrong option stands for one."""
    here = items(lesson)
    aimed_at = {name for _, item in here for name in item.targets}
    for name, belief in MISCONCEPTIONS.get(lesson.number, {}).items():
        if name not in aimed_at:
            yield 1, f"nothing is aimed at the misconception {name!r} ({belief}); make it an item's target"
    for n, item in here:
        for name in set(item.targets) - KNOWN:
            yield n, f"{item.id} is aimed at {name!r}, which misconceptions.py does not have; add it there"
        if isinstance(item, Question):
            if any(option.right == bool(option.belief) for option in item.options):
                yield n, f"in {item.id}, the wrong options stand for misconceptions, the right one for none"
        elif not item.targets and (isinstance(item, Prediction) or item.spot_the_bug):
            yield n, f"{item.id} is aimed at no misconception; name one in its targets"


def nothing_is_asked_too_often(lesson: LessonSource) -> Iterator[Problem]:
    """In the whole course, few items are aimed at the same misconception: learners know it by then."""
    course = [item for number in MISCONCEPTIONS for item in (*exercises_of(number), *predictions_of(number))]
    for n, item in items(lesson):
        for name in item.targets:
            aimed = [other.id for other in course if name in other.targets]
            most = OFTENER.get(name, OFTEN)
            if item.id in aimed[most:]:
                yield n, f"{item.id} asks about {name!r} after {', '.join(aimed[:most])}; ask something new"


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
    """Each exercise of the lesson stands in it once; a core has one (that of 00 none), and few questions."""
    core, here = in_core(lesson.cells), items(lesson)
    ids = [item.id for _, item in here if not isinstance(item, Prediction)]
    for item in exercises_of(lesson.number):
        if ids.count(item.id) != 1:
            yield 1, f"{item.id} stands in the lesson {ids.count(item.id)} times; it belongs there once"
    exercises = [item.id for n, item in here if isinstance(item, Exercise) and core[n - 1]]
    if len(exercises) != (due := 0 if lesson.number == "00" else 1):
        yield 1, f"the core has {len(exercises)} exercises; have {due} there, and the others in More"
    if not any(isinstance(item, Exercise) and item.spot_the_bug for _, item in here):
        yield 1, "no exercise is called 'Spot the bug: …'; make one of a mistake that is often made"
    if not any(isinstance(item, Prediction) for _, item in here):
        yield 1, "nothing is predicted; put predict(…, None) before a measurement, and outcome(…) after it"
    questions = sum(isinstance(item, Question) and core[n - 1] for n, item in here)
    if questions > MOST_QUESTIONS:
        yield 1, f"the core has {questions} questions; move some to More"


COVERAGE_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (
    objectives_have_items,
    misconceptions_are_targeted,
    nothing_is_asked_too_often,
    predictions,
    practice_is_complete,
)
