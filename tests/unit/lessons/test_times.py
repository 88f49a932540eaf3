"""What a lesson takes is added up from its parts, and compared with its header and with the tracks."""

import json
from pathlib import Path

import pytest

from course.tools.build import notebook_of
from course.tools.lesson import LessonSource
from course.tools.parts import RUN_SECONDS, least, run_seconds, seconds_by_part
from course.tools.times import (
    ALIKE,
    code_and_words,
    count_words,
    header_time,
    late_tracks,
    minutes,
)
from tests.unit.lessons.sources import HEADER, write_source

pytestmark = pytest.mark.usefixtures("without_frame")
CODE = "".join(f"x = {n}\n" for n in range(15))
SOURCE = f"""\
# %% [markdown]
# ## Warm-up
#
# {"word " * 180}

# %% [markdown]
# ## 1 · Step
#
# {"word " * 720}

# %% tags=["exercise: 01.1"]

# %%
# %%px
{CODE}
# %% [markdown]
# ## Discuss

# %% [markdown] tags=["more"]
# ## More
# {"word " * 1800}

# %% tags=["exercise: 01.q5"]
"""


@pytest.fixture
def lesson(tmp_path: Path) -> LessonSource:
    """A lesson of 1 + 3·2 min of warm-up, 4 + 6 + 2 + 1 min of core and 10 + 2 + 2 min of More."""
    return written(tmp_path, HEADER + SOURCE)


def written(folder: Path, text: str) -> LessonSource:
    """The lesson of this source; its notebook says how long it ran."""
    source = write_source(folder, text)
    metadata = {"course": {RUN_SECONDS: {"core": 60, "more": 120}}}
    notebook_of(source).write_text(json.dumps({"metadata": metadata}))
    return LessonSource(source)


def test_minutes_are_added_up_by_part(lesson: LessonSource) -> None:
    assert minutes(lesson) == {"warm-up": 7, "core": 16, "more": 13}
    assert list(header_time(lesson)) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("core: 16", "core: 10", "the header says core 10 min, and it takes about 16"),
        ("more: 13", "more: 30", "the header says more 30 min, and it takes about 13"),
    ],
)
def test_a_header_that_is_off_by_more_than_its_tolerance_is_found(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in HEADER
    lesson = written(tmp_path, HEADER.replace(old, new, 1) + SOURCE)
    (problem,) = header_time(lesson)
    assert problem[0] == 1 and words in problem[1]


def test_words_are_those_that_are_read() -> None:
    assert count_words("One [two](three_four.ipynb#five) <b>three</b>\n| four | – |\n|---|---|") == 4
    assert count_words("one <!-- not shown --> two") == 2


def test_docstrings_and_comments_are_words_and_magics_are_neither() -> None:
    cell = '%%px\ndef f(x):\n    """Say it\n\n    in words."""\n    # and why\n    return x  # here\n\nf(1)\n'
    assert code_and_words(cell) == (["def f(x):", "    return x  # here", "f(1)"], 6)
    assert code_and_words("import time\n!ls\nfroms = 1\n") == (["!ls", "froms = 1"], 0)


def test_setup_is_new_in_the_first_lesson_only(tmp_path: Path) -> None:
    cells = "\n".join(f"# %%\n{code}" for code in (ALIKE, "x = 1\ny = 2\nz = 3"))
    first = LessonSource(write_source(tmp_path, HEADER + cells, "00_first"))
    assert minutes(first)["core"] == 3  # runs, and eight lines of 5 s
    later = LessonSource(write_source(tmp_path, HEADER + cells))
    assert minutes(later)["core"] == 2  # runs, and three lines


def test_a_track_is_late_when_its_cores_fill_more_than_two_thirds_of_its_hours() -> None:
    assert list(late_tracks({})) == []
    assert list(late_tracks({"00": 40, "12": 30, "01": 40})) == [], "what is shown is no core"
    assert list(late_tracks({"00": 40, "12": 30, "01": 41})) == [
        "the cores of the track two hours take about 81 min of 80; shorten some"
    ]
    assert len(list(late_tracks({"01": 481}))) == 5


def test_seconds_are_given_to_the_part_of_their_cell_and_rounded() -> None:
    assert seconds_by_part([True, True, False], [0.0, 10.0, 21.0, 34.0]) == {"core": 20, "more": 15}


def test_a_busy_machine_does_not_make_a_lesson_longer() -> None:
    assert least({"core": 40, "more": 20}, {"core": 15, "more": 25}) == {"core": 15, "more": 20}
    assert least({"core": 40, "more": 20}, {}) == {"core": 40, "more": 20}


@pytest.mark.parametrize("text", ["", '{"metadata": {"course": 3}}'])
def test_a_notebook_that_says_nothing_of_its_run_has_no_run_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.ipynb").write_text(text)
    assert run_seconds(tmp_path / "x.ipynb") == {} == run_seconds(tmp_path / "y.ipynb")
