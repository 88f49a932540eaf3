"""What a learner has tried and passed: a file that the course names; it is sent nowhere.

    {"01.1": {"passed": true, "tries": 3, "hints": 1}, "02.p1": {"said": 3.5, "came_out": 1.9}}

Exercises and questions have `passed` and `tries`, predictions what was said and what came out. A course whose
lessons were written anew says its `edition`. Then the file has it, too, as {"edition": {"number": 3}}, and
what an earlier edition noted is kept as "edition 2 · 01.1": its 01.1 may have been another exercise. A file
that cannot be read is put aside under another name before a new one begins, so nothing is ever lost.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from mpi_classroom.errors import CourseError
from mpi_classroom.exercises import Exercise, Prediction, Question
from mpi_classroom.lessons import course_of, exercises_of, lessons, predictions_of

EDITION = "edition"


class DamagedProgress(CourseError):
    """The file is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class Note:
    """What is remembered of one exercise, question or prediction."""

    passed: bool = False
    tries: int = 0
    hints: int = 0
    said: float | None = None
    came_out: float | None = None


def read_progress(path: Path, edition: int = 1) -> dict[str, Note]:
    """What was noted, by id; empty when there is no file. Raises DamagedProgress.

    `edition` is that of the course: notes of an earlier one have names such as "edition 2 · 01.1".
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        of = entries.pop(EDITION, {}).get("number", edition - 1)
        notes = {id: _note(entry) for id, entry in entries.items()}
        return notes if of in (0, edition) else {_earlier(id, of): note for id, note in notes.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise DamagedProgress(
            f"{path} cannot be read. Your lessons are not affected, and the file stays as it is: "
            "the next exercise that you run puts it aside and begins a new one"
        ) from None


def _earlier(id: str, edition: int) -> str:
    return id if id.startswith(EDITION) else f"{EDITION} {edition} · {id}"


def _note(entry: Any) -> Note:
    if isinstance(entry, bool):  # as it was first written
        return Note(passed=entry, tries=1)
    known = [field.name for field in fields(Note)]
    return Note(**{name: value for name, value in entry.items() if name in known})


def note_try(id: str, passed: bool) -> None:
    """An exercise or question was tried; what was once passed stays passed."""
    _change(id, lambda old: replace(old, tries=old.tries + 1, passed=old.passed or passed))


def note_hint(id: str, level: int) -> None:
    """So many hints of an exercise were seen."""
    _change(id, lambda old: replace(old, hints=max(old.hints, level)))


def note_prediction(id: str, said: float) -> None:
    """A prediction was made; what came out for an earlier one does not count for it."""
    _change(id, lambda old: replace(old, said=said, came_out=None))


def note_outcome(id: str, value: float) -> None:
    """What was predicted has come out."""
    _change(id, lambda old: replace(old, came_out=value))


def _change(id: str, change: Any) -> None:
    """Write the file anew with one note changed; an unattended run is nobody's progress."""
    course = course_of(id.partition(".")[0])
    if course is None or course.progress is None or "IPP_NONINTERACTIVE" in os.environ:
        return
    path, edition = course.progress, course.edition
    try:
        notes = _read_or_put_aside(path, edition)
        notes[id] = change(notes.get(id, Note()))
        path.parent.mkdir(exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.new")
        entries = {id: _entry(note) for id, note in notes.items()}
        if edition > 1:
            entries[EDITION] = {"number": edition}
        scratch.write_text(json.dumps(entries, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(scratch, path)
    except OSError as error:
        print(f"(Your progress could not be saved in {path.name}: {error.strerror}.)")


def _entry(note: Note) -> dict[str, Any]:
    """What differs from an empty note."""
    empty = asdict(Note())
    return {name: value for name, value in asdict(note).items() if value != empty[name]}


def _read_or_put_aside(path: Path, edition: int) -> dict[str, Note]:
    try:
        return read_progress(path, edition)
    except DamagedProgress:
        number = 1
        while (aside := path.with_name(f"{path.stem}.damaged-{number}.json")).exists():
            number += 1
        path.rename(aside)
        print(f"(Your progress file could not be read. It is kept as {aside.name}, and a new one begins.)")
        return {}


# -------------------------------------------------------------------- what `course progress` exports

COLUMNS = ("lesson", "id", "kind", "title", "state", "tries", "hints", "said", "came_out")
EVIDENCE = "Noted by the learner's own notebook: a self-report, which anyone can edit. It is no proof."


class UnknownFormat(CourseError):
    """A file of this kind cannot be written."""


def export_progress(notes: Mapping[str, Note], titles: Mapping[str, str], path: Path) -> int:
    """Write one row per exercise, question and prediction of the lessons in `titles`; their number.

    The suffix of `path` decides: .csv, or .json with a few words around the rows. What was not attempted
    has a row, too: the files of two learners have the same rows in the same order. Raises UnknownFormat.
    """
    rows = list(_rows(notes, titles))
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    elif path.suffix == ".json":
        whole = {"exported": date.today().isoformat(), "evidence": EVIDENCE, "items": rows}
        content = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    else:
        raise UnknownFormat(f"{path.name} is neither .csv nor .json; name the file progress.csv, for example")
    path.write_text(content, encoding="utf-8")
    return len(rows)


def _rows(notes: Mapping[str, Note], titles: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for lesson in (number for number in titles if number in lessons()):
        for item in (*exercises_of(lesson), *predictions_of(lesson)):
            note = notes.get(item.id, Note())
            kind = type(item).__name__.lower()
            state = "passed" if note.passed else "not passed" if note.tries else "not attempted"
            if isinstance(item, Prediction):
                state = "not attempted" if note.said is None else "predicted"
            values = (lesson, item.id, kind, _short(_words(item), 80), state)
            numbers = (note.tries, note.hints, note.said, note.came_out)
            yield dict(zip(COLUMNS, (*values, *numbers), strict=True))


def _words(item: Any) -> str:
    return item.title if isinstance(item, Exercise) else item.question


# -------------------------------------------------------------------- what `course progress` shows


def report(notes: Mapping[str, Note], titles: Mapping[str, str]) -> list[str]:
    """One line for every exercise, question and prediction of the lessons in `titles` (number → title)."""
    lines, known = list[str](), set[str]()
    for lesson in (number for number in titles if number in lessons()):
        items = [*exercises_of(lesson), *predictions_of(lesson)]
        known |= {item.id for item in items}
        lines += [f"{lesson} · {titles[lesson]}", *(_line(item, notes.get(item.id)) for item in items), ""]
    if gone := list(_gone(sorted(id for id in notes.keys() - known if notes[id].passed), titles)):
        lines += [*gone, ""]
    exercises = [item for lesson in titles for item in exercises_of(lesson)]
    for kind, name in ((Exercise, "exercises"), (Question, "questions")):
        ids = [item.id for item in exercises if isinstance(item, kind)]
        lines.append(f"{sum(id in notes and notes[id].passed for id in ids)} of {len(ids)} {name} passed")
    return lines


def _gone(ids: Sequence[str], titles: Mapping[str, str]) -> Iterator[str]:
    """One line for what was passed and is no longer there, one for each earlier edition."""
    found = dict[str, list[str]]()
    for before, _, id in (each.rpartition(" · ") for each in ids):
        if id.partition(".")[0] in titles:
            found.setdefault(f" ({before})" if before else "", []).append(id)
    for before, there in found.items():
        yield f"passed before the lessons changed{before}: {', '.join(there)}"


def _line(item: Any, note: Note | None) -> str:
    kind = "" if isinstance(item, Exercise) else "quiz: " if isinstance(item, Question) else "prediction: "
    mark = "✓" if note and (note.passed or note.said is not None) else "·" if note is None else "–"
    return f"  {mark} {item.id:6} {_short(kind + _words(item)):44}  {_state(item, note)}".rstrip()


def _state(item: Any, note: Note | None) -> str:
    if note is not None and note.said is not None:
        came_out = f", it was {note.came_out:.3g}" if note.came_out is not None else ""
        return f"you said {note.said:g}{came_out}"
    if note is None or not (note.tries or note.hints):
        return "not attempted"
    hints = f", {note.hints} hint{'s' * (note.hints > 1)}" if note.hints else ""
    if not note.tries:
        return f"not attempted{hints}"
    tries = "1 try" if note.tries == 1 else f"{note.tries} tries"
    return f"{'passed' if note.passed else 'not passed yet'}, {tries}{hints}"


def _short(text: str, length: int = 44) -> str:
    text = text.replace("`", "")
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
