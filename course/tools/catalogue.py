"""Which lessons there are: the notebooks `NN_topic.ipynb` in `notebooks/`.

A learner names a lesson as it comes to mind: 4, 04, collectives, 04_collectives, 04_collectives.ipynb.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course.paths import NOTEBOOKS
from mpi_classroom.errors import CourseError

_STEM = re.compile(r"(\d\d)_\w+")


class UnknownLesson(CourseError):
    """There is no lesson of that name; the message lists those there are."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson: `04`, `04_collectives`, `Collectives`, and where its notebook is."""

    number: str
    stem: str
    title: str
    path: Path


def find_lessons(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons in `folder`, in the order of the course."""
    paths = sorted(path for path in folder.glob("*.ipynb") if _STEM.fullmatch(path.stem))
    return [Lesson(path.stem[:2], path.stem, _title(path), path) for path in paths]


def resolve(names: Sequence[str], folder: Path = NOTEBOOKS) -> list[Lesson]:
    """The lessons called `names`, each once, as ordered there; all lessons when `names` is empty.

    Raises UnknownLesson, also when there are no lessons at all.
    """
    lessons = find_lessons(folder)
    if not lessons:
        raise UnknownLesson(f"there are no lessons in {folder}; build them with: make notebooks")
    chosen = [_resolve_one(name, lessons) for name in names] or lessons
    return list(dict.fromkeys(chosen))


def _resolve_one(name: str, lessons: list[Lesson]) -> Lesson:
    wanted = Path(name).name.removesuffix(".ipynb").removesuffix(".py").lower()
    for lesson in lessons:
        if wanted in (lesson.stem, lesson.stem[3:], lesson.number, str(int(lesson.number))):
            return lesson
    raise UnknownLesson(f'there is no lesson "{name}"; there are ' + ", ".join(each.stem for each in lessons))


def _title(path: Path) -> str:
    """The words after `# 04 · ` in the first heading; the file's name where there is no such heading."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        headings = (re.match(r"#\s+\d\d · (.+)", "".join(cell["source"])) for cell in cells)
        return next(heading[1].strip() for heading in headings if heading)
    except (
        ValueError,
        KeyError,
        TypeError,
        StopIteration,
    ):  # running or copying it says what is wrong with it
        return path.stem[3:].replace("_", " ")
