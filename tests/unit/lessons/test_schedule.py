"""A schedule fills its hours exactly, in the order of the lessons, and says what does not fit."""

import pytest

from course.tools.schedule import clock, find_track, sessions, table
from course.tools.times import TRACKS, Track
from mpi_classroom.errors import CourseError

CORES = {f"{number:02d}": 21 for number in range(18)}
TITLES = {number: f"Lesson {number}" for number in CORES}


@pytest.mark.parametrize("track", TRACKS, ids=lambda track: track.name)
def test_every_track_fills_its_hours_and_has_all_its_lessons(track: Track) -> None:
    slots = [slot for session in sessions(track, CORES, TITLES) for slot in session]
    assert sum(slot.minutes for slot in slots) == track.hours * 60
    assert [slot.what[:2] for slot in slots if slot.what[:2] in CORES] == sorted(track.lessons)
    assert all(slot.minutes > 0 for slot in slots)


def test_a_lesson_that_is_not_written_leaves_its_time_to_the_learners() -> None:
    titles = {number: title for number, title in TITLES.items() if number != "07"}
    (session,) = sessions(find_track("three hours"), CORES, titles)
    assert [slot.minutes for slot in session if "own choice" in slot.what] == [35]


def test_lessons_that_do_not_fit_are_refused_with_the_minutes() -> None:
    with pytest.raises(CourseError, match="30 minutes more than a session of 120; leave one out"):
        sessions(find_track("two hours"), CORES | {"01": 60}, TITLES)


def test_the_clock_goes_on_from_the_start() -> None:
    (session,) = sessions(find_track("two hours"), CORES, TITLES)
    times = [time for time, _ in clock(session, "13:30")]
    assert (times[0], times[-1]) == ("13:30", "15:30")


@pytest.mark.parametrize("start", ("25:00", "noon", "9"))
def test_what_is_no_time_is_refused(start: str) -> None:
    with pytest.raises(CourseError, match="no time of day; write it like 9:00"):
        list(clock([], start))


def test_a_track_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(CourseError, match="there are: two hours, three hours"):
        find_track("a week")


def test_days_and_halves_are_named() -> None:
    lines = table(find_track("two days"), CORES, TITLES, ("09:00", "13:00"))
    assert [line for line in lines if "Day" in line] == [
        f"| | | **Day {day}, {half}** |" for day in (1, 2) for half in ("morning", "afternoon")
    ]
