"""A schedule fills its hours exactly, in the order of the lessons, and says what does not fit."""

import itertools

import pytest

from course.tools import schedule
from course.tools.schedule import LEAST_SLACK, PAUSE, Slot, clock, find_track, lines_of, sessions
from course.tools.times import TRACKS, Track
from mpi_classroom.errors import CourseError

CORES = {f"{number:02d}": 19 for number in range(18)}
TITLES = {number: f"Lesson {number}" for number in CORES}


@pytest.fixture(scope="module")
def real() -> dict[str, list[list[Slot]]]:
    """The sessions of every track with the lessons as they are today."""
    return {track.name: sessions(track, *schedule.today()) for track in TRACKS}


def impossible(session: list[Slot]) -> list[str]:
    """What nobody can do in a session: lessons without a change, too long without a break, no slack."""
    pairs = itertools.pairwise(session)
    found = [f"no change before {after.what}" for before, after in pairs if before.lesson and after.lesson]
    length = sum(slot.minutes for slot in session)
    wanted = (length > 90) + (length > 150)
    breaks = [slot for slot in session if slot.what == PAUSE]
    found += [f"{len(breaks)} breaks of {wanted}"] * (len(breaks) != wanted)
    cuts = [n for n, slot in enumerate(session) if slot.what == PAUSE]
    edges = zip([0, *cuts], [*cuts, len(session)], strict=True)
    stretch = max(sum(slot.minutes for slot in session[begin:end]) for begin, end in edges)
    found += [f"{stretch} minutes without a break"] * (stretch > 95)
    spare = sum(slot.minutes for slot in session if slot.what.startswith((schedule.SLACK, schedule.CHOICE)))
    return found + [f"{spare} minutes of slack"] * (spare < LEAST_SLACK)


@pytest.mark.parametrize("track", TRACKS, ids=lambda track: track.name)
def test_every_track_fills_its_hours_with_its_lessons_and_can_be_held(
    real: dict[str, list[list[Slot]]], track: Track
) -> None:
    found = real[track.name]
    assert [impossible(session) for session in found] == [[]] * len(found)
    slots = [slot for session in found for slot in session]
    assert sum(slot.minutes for slot in slots) == track.hours * 60
    named = [slot.what[:2] for slot in slots if slot.lesson and not slot.what.startswith("Demonstration")]
    assert named == sorted(track.lessons)


def test_a_break_comes_before_a_long_time_of_own_choice_and_not_after_one_lesson() -> None:
    lessons = [Slot(minutes, f"Lesson {minutes}", lesson=True) for minutes in (22, 24, 23, 25)]
    session = schedule.filled([Slot(10, "Arrive"), *lessons], 180, None, "a track")
    whats = [slot.what for slot in session]
    assert whats[-2:] == [PAUSE, schedule.CHOICE] and whats.index(PAUSE) > 3


def test_a_demonstration_without_a_place_is_shown_in_slack_that_nobody_needs() -> None:
    (session,) = sessions(find_track("three hours"), CORES, TITLES)
    (slack,) = [slot for slot in session if slot.what.startswith(schedule.SLACK)]
    assert not any(slot.what.startswith("Demonstration") for slot in session)
    assert slack.what.endswith("If nobody needs it, demonstration: 12 Lesson 12, run by you")
    (session,) = sessions(find_track("three hours"), dict.fromkeys(CORES, 15), TITLES)
    assert any(slot.what.startswith("Demonstration: 12") for slot in session)


def test_lessons_that_do_not_fit_are_refused_with_the_minutes() -> None:
    with pytest.raises(CourseError, match="31 minutes more than a session of 120 has; leave one out"):
        sessions(find_track("two hours"), CORES | {"01": 60}, TITLES)


def test_afternoons_begin_an_hour_after_the_morning_has_ended_or_when_you_say() -> None:
    starts = [
        [line for line in lines_of(find_track("one day"), "08:30", asked) if line.endswith("End |")]
        for asked in ("", "14:00")
    ]
    assert starts == [
        ["| 11:45 |  | End |", "| 16:00 |  | End |"],
        ["| 11:45 |  | End |", "| 17:15 |  | End |"],
    ]


@pytest.mark.parametrize("start", ("25:00", "noon"))
def test_what_is_no_time_is_refused(start: str) -> None:
    with pytest.raises(CourseError, match="no time of day; write it like 9:00"):
        list(clock([], start))


def test_a_track_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(CourseError, match="there are: two hours, three hours"):
        find_track("a week")
