"""Lessons are found and named."""

import json

import pytest

from course.tools.catalogue import UnknownLesson, find_lessons, resolve


@pytest.fixture
def folder(tmp_path):
    for name, heading in {
        "04_collectives": "# 04 · Collectives\n\n*All ranks at once.*",
        "00_start_here": "no heading",
        "11_zero": "# 11 · ZeRO from scratch",
    }.items():
        cells = [{"cell_type": "markdown", "source": heading.splitlines(keepends=True)}]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (tmp_path / "Untitled.ipynb").write_text("{}")
    (tmp_path / "04_collectives.2026-11-20-1530.ipynb").write_text("{}")
    return tmp_path


def test_lessons_come_in_the_order_of_the_course_with_their_titles(folder):
    found = [(lesson.number, lesson.stem, lesson.title) for lesson in find_lessons(folder)]
    assert found == [
        ("00", "00_start_here", "start here"),
        ("04", "04_collectives", "Collectives"),
        ("11", "11_zero", "ZeRO from scratch"),
    ]


@pytest.mark.parametrize(
    "name",
    ["4", "04", "collectives", "notebooks/04_collectives.ipynb"],
)
def test_a_lesson_has_many_names(folder, name):
    assert [lesson.stem for lesson in resolve([name], folder)] == ["04_collectives"]


def test_no_names_are_all_lessons_and_a_repeated_one_is_run_once(folder):
    assert len(resolve([], folder)) == 3
    assert [lesson.number for lesson in resolve(["11", "4", "zero"], folder)] == ["11", "04"]


@pytest.mark.parametrize("name", ["1", "", "040"])
def test_an_unknown_lesson_lists_those_there_are(folder, name):
    with pytest.raises(UnknownLesson, match="there are 00_start_here, 04_collectives, 11_zero"):
        resolve([name], folder)


def test_a_damaged_notebook_does_not_hide_the_others(folder):
    (folder / "07_ddp.ipynb").write_text('{"cells": [')
    assert [lesson.stem for lesson in find_lessons(folder)][2] == "07_ddp"
