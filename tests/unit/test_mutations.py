"""Each mutation still changes the library: its text occurs once, and the tests it names exist and run."""

import ast

import pytest

from course.paths import ROOT
from tests.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.mistake)
def test_a_mutation_changes_one_place_into_another_program(mutation: Mutation) -> None:
    right = (ROOT / "course_lib" / mutation.file).read_text()
    assert right.count(mutation.old) == 1, f"{mutation.file} has changed: say the mutation anew"
    assert ast.dump(ast.parse(right)) != ast.dump(ast.parse(right.replace(mutation.old, mutation.new)))
    file, _, test = mutation.test.partition("::")
    assert f"\ndef {test}(" in (ROOT / "tests" / "ranks" / file).read_text()
