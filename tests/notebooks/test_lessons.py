"""The lessons in the repository are what their sources say, and keep the anatomy of a lesson."""

import pytest

from course.paths import NOTEBOOKS
from course.tools.build import lesson_sources
from course.tools.lint import lint_lesson, strangers

COURSE = lesson_sources()


@pytest.mark.parametrize("number", range(len(COURSE)), ids=[source.stem for source in COURSE])
def test_a_lesson_has_no_findings(number: int) -> None:
    assert [str(finding) for finding in lint_lesson(COURSE[number], COURSE)] == []


def test_every_notebook_has_a_source() -> None:
    assert strangers(NOTEBOOKS) == []
