"""Silent mistakes are said, with lines and types; of right programs nothing is said."""

import functools
import json

import pytest

from mpi_classroom.launch import run_ranks
from packages.mpi_classroom.tests.right_programs import RIGHT
from packages.mpi_classroom.tests.silent_mistakes import MISTAKES, ON_ANY_NUMBER_OF_RANKS


@functools.cache
def said_of(programs: str, ranks: int = 3) -> dict[str, list[str]]:
    """What is said of each program, all in one job."""
    done = run_ranks(ranks, ["-m", "packages.mpi_classroom.tests.checked_programs", programs], timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_silent_mistake_is_said(name):
    said = said_of("silent_mistakes.MISTAKES")[name]
    assert any(all(part in line for part in MISTAKES[name][0]) for line in said), said


@pytest.mark.parametrize("name", RIGHT)
def test_of_a_right_program_nothing_is_said(name):
    assert said_of("right_programs.RIGHT")[name] == []


@pytest.mark.parametrize(
    "ranks", [2, 3, pytest.param(4, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_the_same_is_said_on_any_number_of_ranks(ranks):
    said = said_of("silent_mistakes.ON_ANY_NUMBER_OF_RANKS", ranks)
    for name, (words, _) in ON_ANY_NUMBER_OF_RANKS.items():
        found = [line for line in said[name] if all(part in line for part in words)]
        assert found if words else said[name] == [], (name, said[name])
