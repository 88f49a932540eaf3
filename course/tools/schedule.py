"""Schedules with a clock: `course schedule`, and docs/teaching/schedules.md.

    python -m course.tools.schedule     # writes the page

A lesson takes the minutes of its core (`course.tools.times`), and five more for the vote and the questions at
its end. Then everybody has three minutes to open the next one, unless there is a break. A session of more
than two and a half hours has two breaks. What is left is slack, at least five minutes of each session: a
workshop without it ends late. A demonstration that does not fit is shown if nobody needed the slack.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations, pairwise

from course.paths import ROOT
from course.tools.build import lesson_sources
from course.tools.catalogue import find_lessons
from course.tools.times import DEMONSTRATION, TRACKS, Track, core_minutes
from mpi_classroom.errors import CourseError

PAGE = ROOT / "docs" / "teaching" / "schedules.md"
SESSION = 210  # minutes without a meal, at most
ARRIVAL, DISCUSSION, CHANGE, LEAST_SLACK = 10, 5, 3, 5
WITHOUT_BREAK, WITH_ONE_BREAK = 90, 150  # minutes of a session, at most
BREAK, MEAL = 10, 60
PART_OF_MORE, LONG_CHOICE = 20, 45  # minutes that are enough for a part of one; for a break before it
CHOICE = "Exercises and More, of your own choice"
SLACK = "Slack: questions, late laptops"


@dataclass(frozen=True, slots=True)
class Slot:
    """What happens in `minutes` minutes of a session; a lesson is opened before it begins."""

    minutes: int
    what: str
    lesson: bool = False


PAUSE, NEXT = "Break", "Change lessons"
CLOSE = Slot(10, "Close: the post-test with the survey, `course progress`, where to go on")


def sessions(track: Track, cores: Mapping[str, int], titles: Mapping[str, str]) -> list[list[Slot]]:
    """The sessions of a track, which together take exactly its hours.

    `cores` and `titles` give the minutes and the title of each lesson by number. A lesson without a title is
    not written yet, and left out. Raises CourseError if the lessons do not fit into the hours.
    """
    count = -(-int(track.hours * 60) // SESSION)
    length = int(track.hours * 60) // count
    slots = [Slot(ARRIVAL, "Arrive; everybody's `course doctor` says *ok*")]
    slots += [lesson_slot(number, cores, titles) for number in sorted(track.lessons) if number in titles]
    parts = shares([*slots, CLOSE], count)
    shown = demonstration(track, titles)
    return [filled(part, length, shown if part is parts[-1] else None, track.name) for part in parts]


def demonstration(track: Track, titles: Mapping[str, str]) -> Slot | None:
    """What the instructor of a track shows at its end."""
    if track.demonstration not in titles:
        return None
    title = titles[track.demonstration]
    return Slot(DEMONSTRATION, f"Demonstration: {track.demonstration} {title}, run by you", lesson=True)


def filled(slots: Sequence[Slot], length: int, shown: Slot | None, track: str) -> list[Slot]:
    """A session of `length` minutes: `slots`, breaks, changes, what is shown, slack, and then the close."""
    closing = [slot for slot in slots if slot is CLOSE]
    rest = slots[: len(slots) - len(closing)]
    plain = arranged(rest, length)
    whole = arranged([*rest, shown], length) if shown else plain
    left = length - sum(slot.minutes for slot in [*whole, *closing])
    text = CHOICE if left >= PART_OF_MORE else SLACK
    if shown and left < LEAST_SLACK:
        whole, left = plain, length - sum(slot.minutes for slot in [*plain, *closing])
        text = f"{SLACK}. If nobody needs it, {shown.what[0].lower()}{shown.what[1:]}"
    if left < LEAST_SLACK:
        needed = f"{LEAST_SLACK - left} minutes more than a session of {length} has"
        raise CourseError(f"the lessons of {track} take {needed}; leave one out")
    return [*whole, Slot(left, text), *closing]


def arranged(slots: Sequence[Slot], length: int) -> list[Slot]:
    """`slots` of a session of `length` minutes with its breaks, and a change between two lessons."""
    found = with_breaks(slots, length)
    result = found[:1]
    for before, slot in pairwise(found):
        result += [Slot(CHANGE, NEXT)] if before.lesson and slot.lesson else []
        result.append(slot)
    return result


def lesson_slot(number: str, cores: Mapping[str, int], titles: Mapping[str, str]) -> Slot:
    """A lesson's core, the vote and the questions."""
    return Slot(cores[number] + DISCUSSION, f"{number} {titles[number]}", lesson=True)


def shares(slots: Sequence[Slot], count: int) -> list[list[Slot]]:
    """`slots` in order, in `count` parts that take about the same time."""
    whole, parts = sum(slot.minutes for slot in slots), [list[Slot]() for _ in range(count)]
    before = 0.0
    for slot in slots:
        middle = before + slot.minutes / 2
        parts[min(count - 1, int(middle * count / whole))].append(slot)
        before += slot.minutes
    return parts


def with_breaks(slots: Sequence[Slot], length: int) -> list[Slot]:
    """`slots` with the breaks of a session of `length` minutes, where they make the longest stretch short.

    The last break may come after the last of them if much time is left, which learners use as they like.
    """
    count = (length > WITHOUT_BREAK) + (length > WITH_ONE_BREAK)
    after = length - sum(slot.minutes for slot in slots) - count * BREAK
    places = range(1, len(slots) + (after >= LONG_CHOICE))

    def stretches(places: tuple[int, ...]) -> list[int]:
        cuts = zip((0, *places), (*places, len(slots)), strict=True)
        *earlier, last = (sum(slot.minutes for slot in slots[begin:end]) for begin, end in cuts)
        return sorted([*earlier, last + after], reverse=True)

    chosen = min(combinations(places, min(count, len(places))), key=stretches)
    cuts = (0, *chosen, len(slots))
    parts = [list(slots[begin:end]) for begin, end in pairwise(cuts)]
    return [*parts[0], *(each for part in parts[1:] for each in (Slot(BREAK, PAUSE), *part))]


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


def table(parts: Sequence[Sequence[Slot]], starts: Sequence[str]) -> list[str]:
    """The lines of a Markdown table of some sessions, which begin at `starts`, in turn, day after day."""
    lines = ["| time | minutes | what |", "|---|---|---|"]
    for n, slots in enumerate(parts):
        day, half = divmod(n, len(starts))
        if len(parts) > 1:
            lines.append(f"| | | **Day {day + 1}, {'morning' if half == 0 else 'afternoon'}** |")
        lines += [
            f"| {time} | {slot.minutes or ''} | {slot.what} |" for time, slot in clock(slots, starts[half])
        ]
    return lines


@cache
def today() -> tuple[Mapping[str, int], Mapping[str, str]]:
    """The minutes of the core and the title of each lesson, by number."""
    return core_minutes(lesson_sources(())), {lesson.number: lesson.title for lesson in find_lessons()}


def lines_of(track: Track, start: str, afternoon: str = "") -> list[str]:
    """The table of `track`; days begin at `start`, afternoons at `afternoon` or after a meal."""
    parts = sessions(track, *today())
    if len(parts) == 1:
        return table(parts, (start,))
    *_, (end, _) = clock(parts[0], start)
    return table(parts, (start, afternoon or later(end, MEAL)))


def later(time: str, minutes: int) -> str:
    """The time of day so many minutes after `time`."""
    return f"{datetime.strptime(time, '%H:%M') + timedelta(minutes=minutes):%H:%M}"


def page() -> str:
    """docs/teaching/schedules.md."""
    text = [
        "# Schedules",
        "",
        "`course schedule` writes such a table for your own hours, for example",
        '`course schedule "three hours" --start 13:30`.',
        "",
        "The minutes of a lesson are those of its core, and five for the vote and the questions at its end.",
        "They come from a reader's speed and the measured run time (`course/tools/times.py`). The warm-up is",
        "left out: it repeats what the class has just done. To change lessons takes three minutes: shut down",
        "the kernel, open the next lesson. Before and after a break there are none. A session of more than",
        "two and a half hours has two breaks.",
    ]
    for track in TRACKS:
        meals = " (meals apart)" if track.hours * 60 > SESSION else ""
        text += ["", f"## {track.name.capitalize()}{meals}", "", *lines_of(track, "09:00")]
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
