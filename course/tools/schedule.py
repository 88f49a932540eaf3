"""Schedules with a clock: `course schedule`, and docs/teaching/schedules.md.

    python -m course.tools.schedule     # writes the page

A lesson takes the minutes of its core (`course.tools.times`), rounded to five, and five more for the vote and
the questions at its end. What a session has left is slack: a workshop without it ends late.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from course.paths import ROOT
from course.tools.build import lesson_sources
from course.tools.catalogue import find_lessons
from course.tools.times import TRACKS, Track, core_minutes
from mpi_classroom.errors import CourseError

PAGE = ROOT / "docs" / "teaching" / "schedules.md"
SESSION = 210  # minutes without a meal, at most
ARRIVAL, DISCUSSION, DEMONSTRATION = 10, 5, 10
WITHOUT_BREAK = 100  # a session that is longer has a break in its middle
BREAK = 15
PART_OF_MORE = 20  # so many minutes are enough for one
CHOICE = "Exercises and More, of your own choice"
SLACK = "Slack: questions, late laptops"


@dataclass(frozen=True, slots=True)
class Slot:
    """What happens in `minutes` minutes of a session."""

    minutes: int
    what: str


CLOSE = Slot(10, "Close: `course progress`, the survey, where to go on")


def sessions(track: Track, cores: Mapping[str, int], titles: Mapping[str, str]) -> list[list[Slot]]:
    """The sessions of a track, which together take exactly its hours.

    `cores` and `titles` give the minutes and the title of each lesson by number. A lesson without a title is
    not written yet, and left out. Raises CourseError if the lessons do not fit into the hours.
    """
    count = -(-int(track.hours * 60) // SESSION)
    length = int(track.hours * 60) // count
    slots = [Slot(ARRIVAL, "Arrive; everybody's `course doctor` says *ok*")]
    slots += [lesson_slot(number, cores, titles) for number in sorted(track.lessons) if number in titles]
    if track.demonstrations:
        slots.append(Slot(DEMONSTRATION, "Demonstration: the core of 13, run by you"))
    result = []
    for part in shares([*slots, CLOSE], count):
        closing = [slot for slot in part if slot is CLOSE]
        rest = part[: len(part) - len(closing)]
        filled = with_break(rest) if length > WITHOUT_BREAK else rest
        left = length - sum(slot.minutes for slot in [*filled, *closing])
        if left < 0:
            needed = f"{-left} minutes more than a session of {length}"
            raise CourseError(f"the lessons of {track.name} take {needed}; leave one out")
        spare = [Slot(left, CHOICE if left >= PART_OF_MORE else SLACK)] if left else []
        result.append([*filled, *spare, *closing])
    return result


def lesson_slot(number: str, cores: Mapping[str, int], titles: Mapping[str, str]) -> Slot:
    """A lesson's core, the vote and the questions."""
    return Slot(max(5, 5 * round(cores[number] / 5)) + DISCUSSION, f"{number} {titles[number]}")


def shares(slots: Sequence[Slot], count: int) -> list[list[Slot]]:
    """`slots` in order, in `count` parts that take about the same time."""
    whole, parts = sum(slot.minutes for slot in slots), [list[Slot]() for _ in range(count)]
    before = 0.0
    for slot in slots:
        middle = before + slot.minutes / 2
        parts[min(count - 1, int(middle * count / whole))].append(slot)
        before += slot.minutes
    return parts


def with_break(slots: Sequence[Slot]) -> list[Slot]:
    """`slots` with a break after the one that ends nearest to their middle."""
    half = sum(slot.minutes for slot in slots) / 2
    ends = [sum(slot.minutes for slot in slots[: n + 1]) for n in range(len(slots) - 1)]
    if not ends:
        return list(slots)
    best = min(range(len(ends)), key=lambda n: abs(ends[n] - half)) + 1
    return [*slots[:best], Slot(BREAK, "Break"), *slots[best:]]


def clock(slots: Sequence[Slot], start: str) -> Iterator[tuple[str, Slot]]:
    """Every slot with the time at which it begins; `start` is a time such as 9:00.

    Raises CourseError if `start` is no time of day.
    """
    try:
        time = datetime.strptime(start, "%H:%M")
    except ValueError:
        raise CourseError(f"{start!r} is no time of day; write it like 9:00 or 13:30") from None
    for slot in slots:
        yield f"{time:%H:%M}", slot
        time += timedelta(minutes=slot.minutes)
    yield f"{time:%H:%M}", Slot(0, "End")


def find_track(name: str) -> Track:
    """The track called `name`; raises CourseError, which lists those there are."""
    for track in TRACKS:
        if name == track.name:
            return track
    raise CourseError(f"there is no track {name!r}; there are: " + ", ".join(each.name for each in TRACKS))


def table(
    track: Track, cores: Mapping[str, int], titles: Mapping[str, str], starts: Sequence[str]
) -> list[str]:
    """The lines of a Markdown table of one track; sessions begin at `starts`, in turn, day after day."""
    lines = ["| time | minutes | what |", "|---|---|---|"]
    parts = sessions(track, cores, titles)
    for n, slots in enumerate(parts):
        day, half = divmod(n, len(starts))
        if len(parts) > 1:
            lines.append(f"| | | **Day {day + 1}, {'morning' if half == 0 else 'afternoon'}** |")
        lines += [
            f"| {time} | {slot.minutes or ''} | {slot.what} |" for time, slot in clock(slots, starts[half])
        ]
    return lines


def lines_of(track: Track, start: str, afternoon: str) -> list[str]:
    """The table of `track` for this course; days begin at `start`, afternoons at `afternoon`."""
    cores = core_minutes(lesson_sources(()))
    titles = {lesson.number: lesson.title for lesson in find_lessons()}
    starts = (start, afternoon) if track.hours * 60 > SESSION else (start,)
    return table(track, cores, titles, starts)


def page() -> str:
    """docs/teaching/schedules.md."""
    text = [
        "# Schedules",
        "",
        "`course schedule` writes such a table for your own hours, for example",
        '`course schedule "three hours" --start 13:30`.',
        "",
        "The minutes of a lesson are those of its core, and five for the vote and the questions at its",
        "end. They come from a reader's speed and the measured run time (`course/tools/times.py`). The",
        "warm-up is left out: it repeats what the class has just done.",
    ]
    for track in TRACKS:
        meals = " (meals apart)" if track.hours * 60 > SESSION else ""
        text += ["", f"## {track.name.capitalize()}{meals}", "", *lines_of(track, "09:00", "13:00")]
    return "\n".join(text) + "\n"


def stale() -> Iterator[str]:
    """A sentence with the remedy, if the lessons take other times now than the page says."""
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        yield f"{PAGE.relative_to(ROOT)} is out of date; run python -m course.tools.schedule"


def main() -> int:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
