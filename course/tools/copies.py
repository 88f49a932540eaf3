"""`my_course/`, the learner's own copy of the lessons: no outputs, theirs to edit, never overwritten.

A copy remembers in its metadata which version of the lesson it was made from. When the lesson has changed
since, an update says so and leaves the copy alone; `course reset 04` makes a fresh one and keeps the old
one beside it, as 04_collectives.2026-11-20-1530.ipynb. A copy of the second edition is another lesson: it is
kept as 04_collectives.second-edition.ipynb, and the new lesson takes its place.

The programs to take home are the learner's own: `my_course/code` starts with nothing but their data.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from course.paths import MY_COURSE, NOTEBOOKS
from course.tools.catalogue import Lesson, resolve
from course.version import EDITION
from mpi_classroom.errors import CourseError

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
DATA = Path("code", "data")  # what the programs to take home read


class CopyError(CourseError):
    """A lesson cannot be copied: what is wrong with it, and what to do."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an update of the learner's folder found, as stems of lessons."""

    added: tuple[str, ...]
    outdated: tuple[str, ...]  # kept, and the lesson has changed since the copy was made
    unreadable: tuple[str, ...]  # kept, and no longer a notebook
    aside: tuple[str, ...]  # of the second edition, each beside the new lesson now

    def sentences(self) -> list[str]:
        """One line for everything the learner should know; empty when there is nothing."""
        lines = [f"Added to your copy: {', '.join(self.added)}."] if self.added else []
        if self.aside:
            lines.append(f"The lessons are new. Your copies of the second edition: {', '.join(self.aside)}.")
        for stem in self.outdated:
            lines.append(
                f"{stem} has changed since your copy was made. Your copy stays as it is. "
                f"To get the new lesson: course reset {stem[:2]} (your copy is kept beside it)"
            )
        for stem in self.unreadable:
            lines.append(
                f"Your {stem}.ipynb is damaged. To get a fresh copy: course reset {stem[:2]} "
                "(the damaged one is kept beside it)"
            )
        return lines


def clean_copy(lesson: Lesson) -> str:
    """The lesson as a learner gets it: the text of a notebook without outputs, counts and test marks.

    Raises CopyError when the lesson is not a readable notebook.
    """
    try:
        notebook = json.loads(lesson.path.read_text(encoding="utf-8"))
        cells = [_clean_cell(cell) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CopyError(f"{lesson.path} is not a readable notebook ({error}); restore it with git") from None
    metadata = {name: value for name, value in notebook.get("metadata", {}).items() if name != "widgets"}
    made_from = {"copy_of": lesson.stem, "version": _version(cells), "edition": EDITION}
    metadata |= {"kernelspec": KERNEL, "course": made_from}
    copy = {
        "cells": cells,
        "metadata": metadata,
        "nbformat": notebook.get("nbformat", 4),
        "nbformat_minor": notebook.get("nbformat_minor", 5),
    }
    return json.dumps(copy, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def update_copies(source: Path = NOTEBOOKS, target: Path = MY_COURSE) -> Update:
    """Add to `target` every lesson and data file of `source` that is missing there; overwrite nothing.

    A copy of the second edition that differs from today's lesson is put aside.
    """
    found: dict[str, list[str]] = {"added": [], "outdated": [], "unreadable": [], "aside": []}
    for lesson in resolve([], source):
        path, fresh = target / lesson.path.name, clean_copy(lesson)
        if not path.exists():
            _place(path, fresh)
            found["added"].append(lesson.stem)
            continue
        try:
            copy = _made_from(path.read_text(encoding="utf-8"))
        except ValueError:
            copy = {}
            found["unreadable"].append(lesson.stem)
        changed = copy.get("version") not in (None, _made_from(fresh)["version"])
        if changed and "edition" not in copy:
            aside = _aside(path, "second-edition")
            _place(path, fresh, aside)
            found["aside"].append(aside.name)
            continue
        if changed:
            found["outdated"].append(lesson.stem)
    _add_data(source / DATA, target / DATA)
    return Update(**{name: tuple(names) for name, names in found.items()})


def _add_data(source: Path, target: Path) -> None:
    """Copy the files of `source`, in its folders too, that `target` does not have."""
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        copy = target / file.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            partial = copy.with_name(f".{file.name}.{os.getpid()}.part")
            try:
                shutil.copyfile(file, partial)
                partial.replace(copy)
            finally:
                partial.unlink(missing_ok=True)


def reset_copies(
    names: Sequence[str], source: Path = NOTEBOOKS, target: Path = MY_COURSE, *, now: datetime | None = None
) -> list[tuple[Path, Path | None]]:
    """Replace the copies of the lessons `names` (none: all) by fresh ones.

    Returns, for each, the fresh copy and where the old one was put aside: None when there was none, or when
    it was the same as the fresh one to the letter.
    """
    done: list[tuple[Path, Path | None]] = []
    for lesson in resolve(names, source):
        path, fresh = target / lesson.path.name, clean_copy(lesson)
        aside = None
        if path.exists() and path.read_bytes() != fresh.encode():
            aside = _aside(path, f"{now or datetime.now():%Y-%m-%d-%H%M}")
        _place(path, fresh, aside)
        done.append((path, aside))
    _add_data(source / DATA, target / DATA)
    return done


def _clean_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """`cell` without what a run or a test left in it."""
    metadata = {key: value for key, value in cell.get("metadata", {}).items() if key != "execution"}
    if "tags" in metadata:
        metadata["tags"] = [tag for tag in metadata["tags"] if not tag.startswith("nbval-")]
        if not metadata["tags"]:
            del metadata["tags"]
    clean = cell | {"metadata": metadata, "source": "".join(cell["source"]).splitlines(keepends=True)}
    if cell["cell_type"] == "code":
        clean |= {"outputs": [], "execution_count": None}
    return clean


def _version(cells: list[dict[str, Any]]) -> str:
    """A fingerprint of what a learner reads and runs: kinds and sources, not ids, outputs or tags."""
    content = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _made_from(text: str) -> dict[str, Any]:
    """What a copy says it was made from; empty when it says nothing. Raises ValueError when unreadable."""
    notebook = json.loads(text)
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError("not a notebook")
    made_from = notebook.get("metadata", {}).get("course", {})
    return made_from if isinstance(made_from, dict) else {}


def _aside(path: Path, label: str) -> Path:
    """A free name beside `path` with the label in it: 04_collectives.second-edition.ipynb, then …-2.ipynb."""
    names = (f"{path.stem}.{label}{f'-{number}' if number > 1 else ''}.ipynb" for number in count(1))
    return next(aside for name in names if not (aside := path.with_name(name)).exists())


def _place(path: Path, text: str, aside: Path | None = None) -> None:
    """Write `path`, moving what is there to `aside` first; a full disk changes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        if aside is not None:
            path.rename(aside)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
