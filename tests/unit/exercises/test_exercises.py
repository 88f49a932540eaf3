"""Every exercise: its stub is not attempted, its solution right, all that is wrong is said to be, and why.

All answers are judged in one job of four ranks. One answer for each kind of verdict goes through the very job
that checks a learner's answer; `make test-all` checks solutions without torch that way, `make test-release`
the rest.
"""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from mpi_classroom.answer_job import LINES, check
from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.judge import imports_of
from mpi_classroom.lessons import exercises_of, find_exercise, lessons
from mpi_classroom.practice import argument
from tests.unit.exercises.judged import EXERCISES, Words, judge, name, program

pytestmark = pytest.mark.timeout(600)  # all answers are judged in the set-up of one test

ALL = [item for lesson in lessons() for item in exercises_of(lesson)]
QUESTIONS = [item for item in ALL if isinstance(item, Question)]
WRONG = [(exercise, number) for exercise in EXERCISES for number in range(len(exercise.wrong))]
# A bug to be spotted is wrong and, left as it stands, not attempted: the batch judges it.
ATTEMPTED = [(each, number) for each, number in WRONG if each.wrong[number].source != each.stub]
LATE = {exercise.id for exercise in EXERCISES if exercise.imports}  # torch takes seconds to import

# The wrong answers whose words only a job of their own gives; `make test` checks three of them so.
KINDS = {
    ("01.1", 1): "a circle of sends",
    ("01.1", 2): "a circle of receives",
    ("01.1", 3): "a rank that waits for itself",
    ("01.2", 1): "a message that is never received",
    ("01.3", 2): "a receive with the wrong tag",
    ("02.3", 1): "an error that is raised",
    ("04.2", 1): "a receive that nobody sends to",
    ("04.2", 4): "not Python",
}
QUICK = {("01.1", 1), ("01.2", 1), ("04.2", 1)}  # the others: test_job.py, test_hang.py
RIGHT_BY_JOB = {"00.1", min(LATE)}  # without torch and with it


def by_job(exercise: Exercise, *number: int) -> pytest.ParameterSet:
    """A case for a job of its own: few in `make test`, as the batch judges all answers."""
    quick = (exercise.id, *number) in QUICK if number else exercise.id in RIGHT_BY_JOB
    mark = pytest.mark.release if number or exercise.id in LATE else pytest.mark.slow
    return pytest.param(exercise, *number, marks=[] if quick else mark)


def test_what_a_check_imports_is_imported_before_the_answers_time_begins() -> None:
    in_a_helper, direct = find_exercise("09.4"), find_exercise("11.5")
    assert isinstance(in_a_helper, Exercise) and isinstance(direct, Exercise)
    assert "course_lib.parallel.tensor_parallel" in imports_of(in_a_helper.check)
    assert "course_lib.parallel.plain_zero" in imports_of(direct.check)
    assert imports_of(print) == set()


# -------------------------------------------------------------------- as they are written


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_an_exercise_is_complete(exercise: Exercise) -> None:
    assert re.fullmatch(r"\d\d\.\d", exercise.id)
    assert len(exercise.wrong) >= 2
    assert len(exercise.hints) == 3 and "…" in exercise.hints[2]
    assert exercise.why.endswith("?")
    assert set(exercise.sizes) == {1, 2, 3, 4} or exercise.sizes in ((3,), (4,))


def test_ids_are_unique_and_belong_to_their_lesson() -> None:
    ids = [item.id for item in ALL]
    assert len(set(ids)) == len(ids)
    assert all(item.id.startswith(f"{lesson}.") for lesson in lessons() for item in exercises_of(lesson))


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_no_hint_gives_the_solution_away(exercise: Exercise) -> None:
    lines = [line.strip() for line in exercise.solution.splitlines()]
    new = [line for line in lines if line and line not in exercise.stub]
    assert not [line for line in new for hint in exercise.hints if line in hint]


@pytest.mark.parametrize("question", QUESTIONS, ids=name)
def test_every_option_of_a_question_has_its_reply(question: Question) -> None:
    assert 2 <= len(question.options) <= 4
    assert len({option.reply for option in question.options}) == len(question.options)
    assert len({option.text for option in question.options}) == len(question.options)


def test_only_what_needs_torch_imports_it_and_nothing_starts_mpi() -> None:
    code = (
        "import sys; from mpi_classroom.lessons import exercises_of, lessons\n"
        "for lesson in lessons(): exercises_of(lesson)\n"
        "print(*{'torch', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# -------------------------------------------------------------------- stub and solution


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_the_stub_is_not_attempted(exercise: Exercise) -> None:
    if exercise.blocks:
        assert argument(exercise.stub, "order") == ""
    else:
        for cell in (exercise.stub, f"# mine\n{exercise.stub}\n\n"):
            assert check(exercise, cell).state == "not attempted"


@pytest.mark.parametrize("exercise", [by_job(exercise) for exercise in EXERCISES], ids=name)
def test_the_solution_is_right(exercise: Exercise) -> None:
    verdict = check(exercise, program(exercise, exercise.solution))
    assert verdict.state == "right", verdict.text
    assert exercise.why in verdict.text


def synchronous(source: str) -> str:
    """The program with sends that never return before their receive has begun, at any size."""
    return re.sub(r"\.([Ii]?)([Ss])end\(", r".\1\2send(", source)


SENDERS = [
    exercise for exercise in EXERCISES if re.search(r"\.[Ii]?[Ss]end\(", program(exercise, exercise.solution))
]


# -------------------------------------------------------------------- known-wrong answers


@pytest.mark.parametrize(("exercise", "number"), [by_job(*wrong) for wrong in ATTEMPTED], ids=name)
def test_a_wrong_answer_is_told_what_is_wrong(exercise: Exercise, number: int) -> None:
    if (exercise.id, number) in QUICK:  # a hang is recognised long before the deadline
        exercise = replace(exercise, seconds=1e6)
    verdict = check(exercise, program(exercise, exercise.wrong[number].source))
    assert verdict.state == "wrong"
    assert exercise.wrong[number].message in verdict.text
    assert len(verdict.text.splitlines()) <= LINES
    assert not re.search(r"Traceback|site-packages|course_lib|mpi_classroom|judge\.py|/tmp", verdict.text), (
        verdict.text
    )


# -------------------------------------------------------------------- many in one job


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """What is wrong with every solution, also with sends that wait, and every wrong answer."""
    answers = {(exercise.id, "solution"): program(exercise, exercise.solution) for exercise in EXERCISES}
    for exercise in SENDERS:
        answers[exercise.id, "synchronous"] = synchronous(program(exercise, exercise.solution))
    for exercise, number in WRONG:
        answers[exercise.id, f"wrong {number}"] = program(exercise, exercise.wrong[number].source)
    return judge(answers, tmp_path_factory.mktemp("answers"))


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_only_the_solution_is_right_and_different_mistakes_get_different_words(
    exercise: Exercise, judged: Words
) -> None:
    assert judged[exercise.id, "solution"] == []
    said = [" ".join(judged[exercise.id, f"wrong {number}"]) for number in range(len(exercise.wrong))]
    assert all(said) and len(set(said)) == len(said)
    for number, (wrong, words) in enumerate(zip(exercise.wrong, said, strict=True)):
        assert (exercise.id, number) in KINDS or wrong.message in words


@pytest.mark.parametrize("exercise", SENDERS, ids=name)
def test_no_solution_needs_the_buffers_of_mpi(exercise: Exercise, judged: Words) -> None:
    assert judged[exercise.id, "synchronous"] == []
