"""No mutant of a solution is right: the cases of an exercise see each change that a machine makes to it."""

import pytest

from mpi_classroom.exercises import Exercise
from mpi_classroom.practice import argument
from tests.unit.exercises.judged import EXERCISES, Words, judge, name
from tests.unit.exercises.mutants import mutants, orders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # all are judged in the set-up of one test

# Mutants that are right, and why.
EQUIVALENT = {
    ("01.1", "line 4: comm.size is lost"): "rank 0 receives from rank -1, which is MPI.ANY_SOURCE",
    ("01.3", "line 5: MPI.Request.waitall(requests) is lost"): "MPI buffers messages as small as these",
    ("02.4", "line 3: comm.size is 4"): "the first children of a seed do not depend on how many it has",
    ("15.1", "line 10: os.fsync(folder) is lost"): "a power cut may leave the old file, which is whole",
    ("15.1", "line 11: os.close(folder) is lost"): "a folder stays open, and the file is right",
}


def changes(exercise: Exercise) -> list[tuple[str, str]]:
    """All mutants of the solution of an exercise: what was changed, and the program."""
    if not exercise.blocks:
        return list(mutants(exercise.solution))
    order = argument(exercise.solution, "order")
    return [(words, exercise.assemble(letters)) for words, letters in orders(order, list(exercise.blocks))]


@pytest.fixture(scope="module")
def judged_mutants(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """What is wrong with every mutant of every solution."""
    answers = {(exercise.id, words): source for exercise in EXERCISES for words, source in changes(exercise)}
    return judge(answers, tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_no_mutant_of_the_solution_is_right(exercise: Exercise, judged_mutants: Words) -> None:
    right = {words for words, _ in changes(exercise) if not judged_mutants[exercise.id, words]}
    assert right == {words for id, words in EQUIVALENT if id == exercise.id}
    assert len(changes(exercise)) >= 3, "too few to mean something"
