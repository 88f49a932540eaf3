"""Each mutation still changes the library: its text occurs once, and the tests it names exist and run."""

import ast

import pytest

from course.paths import ROOT
from tests.mutations import FAILURE, MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.mistake)
def test_a_mutation_changes_one_place_into_another_program(mutation: Mutation) -> None:
    right = (ROOT / "course_lib" / mutation.file).read_text()
    assert right.count(mutation.old) == 1, f"{mutation.file} has changed: say the mutation anew"
    assert ast.dump(ast.parse(right)) != ast.dump(ast.parse(right.replace(mutation.old, mutation.new)))
    file, _, test = mutation.test.partition("::")
    assert f"\ndef {test}(" in (ROOT / "tests" / "ranks" / file).read_text()


@pytest.mark.parametrize(
    "line",
    [
        "FAILED tests/ranks/test_a.py::test_it[1 2] - AssertionError",
        "rank 1 of 3: tests/ranks/test_a.py::test_it failed here, and the others do not come:",
        "rank 0 of 3: tests/ranks/test_a.py::test_it is not done after 60 s",
    ],
)
def test_a_failed_test_is_found_in_the_output(line: str) -> None:
    found = FAILURE.search(f"2 passed\n{line}\n")
    assert found and (found[1] or found[2]).rpartition("::")[2] in ("test_it", "test_it[1 2]")
    assert not FAILURE.search("2 passed\nERROR tests/ranks/test_a.py - SyntaxError\n")
