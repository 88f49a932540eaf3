"""What a learner types: attempts, hints, solutions, quizzes, puzzles, predictions, and what is remembered."""

import inspect
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from IPython.core.compilerop import CachingCompiler

from mpi_classroom import practice as module
from mpi_classroom.answer_job import Verdict, check
from mpi_classroom.errors import ClusterError
from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.lessons import find_exercise
from mpi_classroom.practice import Practice, argument, in_digits

RIGHT = "def right_neighbour(comm):\n    return (comm.rank + 1) % comm.size\n"
WRONG = "def right_neighbour(comm):\n    return comm.rank + 1\n"


class Shell:
    """As much of a notebook's shell as Practice uses."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.magics: dict[str, Any] = {}
        self.compile = CachingCompiler()

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[kind, name] = function

    def push(self, names: dict[str, Any], interactive: bool) -> None:
        self.names |= names

    def ex(self, code: CodeType | str) -> None:
        exec(code, self.names)


class Cluster:
    """A cluster that notes what its ranks are given to run."""

    def __init__(self, alive: bool = True) -> None:
        self.alive, self.timeout, self.ran = alive, 1.0, list[str]()
        self.view = self

    def execute(self, source: str, silent: bool, block: bool) -> "Cluster":
        self.ran.append(source)
        return self

    def wait(self, seconds: float) -> None:
        if seconds != self.timeout:
            raise ClusterError("waited too long")


@cache
def judged(id: str, cell: str) -> Verdict:
    """The verdict of the real check: a job of ranks, once for each answer."""
    exercise = find_exercise(id)
    assert isinstance(exercise, Exercise)
    return check(exercise, cell)


@pytest.fixture(autouse=True)
def check_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check", lambda exercise, cell: judged(exercise.id, cell))


@pytest.fixture
def practice(monkeypatch: pytest.MonkeyPatch) -> Practice:
    """Practice in a notebook that is unattended: nothing is remembered."""
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    return Practice(Shell(), Cluster())


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


# -------------------------------------------------------------------- %%exercise


def test_a_right_answer_is_defined_in_the_notebook_and_on_the_ranks(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("00.1", RIGHT)
    assert said(capsys).startswith("✓ 00.1 is right on 1, 2, 3 and 4 ranks")
    assert inspect.getsource(practice.shell.names["right_neighbour"]) == RIGHT
    assert practice.cluster.ran == [RIGHT]


def test_an_answer_may_use_np_in_the_notebook_and_leaves_a_learners_own_np_alone(practice: Practice) -> None:
    practice.define("def root(x):\n    return np.sqrt(x)\n")
    assert practice.shell.names["root"](9) == 3
    practice.shell.names["np"] = "the number of processes"
    practice.define("x = 1\n")
    assert practice.shell.names["np"] == "the number of processes"


def test_the_next_cells_run_the_learners_answer_when_it_is_right(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("00.1", RIGHT)
    said(capsys)
    practice.continue_with("00.1")
    assert said(capsys) == "00.1 is right: the next cells run your own `right_neighbour`."
    assert practice.cluster.ran == [RIGHT]


@pytest.mark.parametrize("tries", [[], [find_exercise("00.1").stub], [WRONG], [RIGHT, WRONG]])
def test_the_next_cells_run_the_courses_answer_until_the_learners_is_right(
    practice: Practice, capsys: pytest.CaptureFixture[str], tries: list[str]
) -> None:
    for cell in tries:
        practice.exercise("00.1", cell)
    said(capsys)
    practice.continue_with("00.1")
    assert said(capsys) == "00.1 is not solved yet: the next cells run the course's `right_neighbour`."
    assert practice.cluster.ran[-1] == find_exercise("00.1").solution


def test_only_an_exercise_can_be_continued_with(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.continue_with("00.q1")
    assert said(capsys) == "00.q1 is a question: it defines nothing for the next cells."
    practice.continue_with("00.99")
    assert "there is no exercise '00.99'" in said(capsys)


def test_without_a_cluster_an_exercise_is_checked_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    practice = Practice(Shell(), Cluster(alive=False))
    practice.exercise(" 00.1  # at last", WRONG)
    assert "Which rank follows it in the ring?" in said(capsys)
    assert "right_neighbour" in practice.shell.names
    assert practice.cluster.ran == []


def test_a_stub_is_not_attempted_and_not_counted(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("00.1", find_exercise("00.1").stub)
    assert said(capsys) == "00.1 not attempted yet: change the cell and run it again."
    assert practice.attempts == {}
    assert practice.cluster.ran != []


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("def right_neighbour(comm)\n", "is not Python yet: expected ':', line 2"),
        ("def neighbour(comm):\n    return 0\n", "does not define `right_neighbour`"),
        (RIGHT + "import os\nos._exit(1)\n", "ended itself with exit code 1"),
        (RIGHT + "raise SystemExit\n", "the cell itself does not run"),
    ],
)
def test_a_cell_that_does_not_run_is_not_run_in_the_notebook(
    practice: Practice, capsys: pytest.CaptureFixture[str], cell: str, words: str
) -> None:
    practice.exercise("00.1", cell)
    assert words in said(capsys)
    assert practice.cluster.ran == []
    assert "right_neighbour" not in practice.shell.names
    assert practice.attempts == {"00.1": 1}


def test_what_only_the_ranks_have_imported_is_no_error_in_the_notebook(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("00.1", "world = MPI.COMM_WORLD\n" + RIGHT)
    assert said(capsys).startswith("✓")
    assert "right_neighbour" not in practice.shell.names


@pytest.mark.parametrize("line", ["01.77", "99.1", "", "01"])
def test_an_unknown_exercise_says_which_there_are(
    practice: Practice, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    practice.exercise(line, RIGHT)
    practice.hint(line or "?")
    for words in said(capsys).splitlines():
        assert words.startswith("there is no")


# -------------------------------------------------------------------- %%exercise … --save


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that an exercise is a part of."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "code" / "00_ring.py"


def test_a_right_answer_is_a_part_of_the_program(
    practice: Practice, capsys: pytest.CaptureFixture[str], program: Path
) -> None:
    practice.exercise("00.1 --save 00_ring.py", WRONG)
    assert "The course's solution of exercise 00.1" in program.read_text()
    assert WRONG in practice.cluster.ran, "what was tried is what runs next"
    practice.exercise("00.1 --save 00_ring.py", RIGHT)
    assert program.read_text().endswith(f"# %%\n{RIGHT}")
    assert "The course's" not in program.read_text()
    assert "✓ 00.1 is right" in said(capsys)


def test_a_program_that_cannot_be_written_is_a_sentence_below_the_verdict(
    practice: Practice, capsys: pytest.CaptureFixture[str], program: Path
) -> None:
    program.parent.write_text("no folder")
    practice.exercise("00.1 --save 00_ring.py", RIGHT)
    verdict, *_, sentence = said(capsys).splitlines()
    assert verdict.startswith("✓ 00.1 is right")
    assert sentence == "code/00_ring.py was not written (File exists); the cell itself ran"


# -------------------------------------------------------------------- quizzes and puzzles


def test_every_letter_of_a_quiz_gets_its_reply(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    question = find_exercise("00.q1")
    assert isinstance(question, Question)
    for letter, option in question.lettered.items():
        practice.exercise("00.q1", f'answer("{letter}")')
        assert said(capsys) == f"{'✓' if option.right else '✗'} {letter}: {option.reply}"


def test_a_quiz_without_a_letter_or_with_another_one_says_so(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("00.q1", 'answer("")')
    assert said(capsys) == '00.q1 not attempted yet: write a letter into answer("").'
    practice.exercise("00.q1", 'answer("z")')
    assert said(capsys) == "The options of 00.q1 are a, b, c."


@pytest.mark.parametrize(
    ("cell", "letters"),
    [
        ("answer( 'B' )  # (or c)", "B"),
        ("answer(b)", "b"),
        ("# answer('a')\nanswer('c')", "c"),
        ("b", ""),
    ],
)
def test_the_letter_is_found_however_it_is_written(cell: str, letters: str) -> None:
    assert argument(cell, "answer") == letters


def test_a_puzzle_is_judged_by_running_it(practice: Practice, capsys: pytest.CaptureFixture[str]) -> None:
    practice.exercise("01.2", 'order("")')
    assert said(capsys) == '01.2 not attempted yet: order("…") wants letters.'
    practice.exercise("01.2", 'order("D Q")')
    assert said(capsys) == "✗ 01.2: there is no block 'Q'; the blocks are A, B, C, D, E."
    practice.exercise("01.2", 'order("D A B C")')
    assert "added too early" in said(capsys)
    assert "add_left" not in practice.shell.names
    practice.exercise("01.2", 'order("D B A C")')
    assert said(capsys).startswith("✓ 01.2 is right")
    assert "add_left" in practice.shell.names


def test_an_error_in_a_puzzle_names_its_line_but_no_number(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.exercise("01.2", 'order("E B A C")')
    assert "NameError: name 'requests' is not defined  (MPI.Request.Waitall(requests))" in said(capsys)


# -------------------------------------------------------------------- help


def test_hints_come_one_by_one_and_the_last_one_stays(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = find_exercise("00.1")
    assert isinstance(exercise, Exercise)
    for level in (1, 2, 3, 3):
        practice.hint("00.1")
        assert said(capsys) == f"Hint {level} of 3 for 00.1: {exercise.hints[level - 1]}"


def test_a_hint_is_for_the_exercise_that_was_run_last(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.hint()
    assert said(capsys) == 'Which exercise? For example: hint("01.1")'
    practice.exercise("00.1", find_exercise("00.1").stub)
    practice.hint()
    assert "Hint 1 of 3 for 00.1" in said(capsys)
    practice.hint("00.q1")
    assert said(capsys) == "A question has no hints. Choose a letter: the reply explains it."


def test_the_solution_comes_after_a_try_or_when_asked_twice(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.solution("00.1")
    assert said(capsys) == "Try 00.1 once first, or call hint(). Call solution() again to see it anyway."
    practice.solution("00.1")
    assert "return (comm.rank + 1) % comm.size" in said(capsys)
    practice.exercise("01.1", "x = 1\n")
    said(capsys)
    practice.solution()
    text = said(capsys)
    assert "comm.Sendrecv(" in text
    assert text.splitlines()[-1].startswith("Think about it: ")


# -------------------------------------------------------------------- predictions


def test_a_prediction_is_compared_with_what_is_measured(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.predict("How many times faster?", 3.5)
    practice.outcome("How many times faster?", 1.876, because="There are 2 cores.")
    assert said(capsys).splitlines() == [
        "How many times faster?  You say 3.5.",
        "How many times faster?  you said 3.5, measured 1.88.",
        "There are 2 cores.",
    ]
    practice.outcome("How long?", 12.0, "s", because="Each rank waits for its neighbour. " * 5)
    result, *reason = said(capsys).splitlines()
    assert result == "How long?  measured 12 s." and len(reason) == 2 and max(map(len, reason)) <= 100


def test_without_a_prediction_the_notebook_runs_on(
    practice: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    practice.predict("How long?")
    assert said(capsys) == "How long?  Write your guess as the second argument, or run on."
    practice.outcome("How long?", 12.0, "s")
    assert said(capsys) == "How long?  measured 12 s."
    practice.outcome("How much?", 112.0, "GB", word="computed")
    assert said(capsys) == "How much?  computed 112 GB."


@pytest.mark.parametrize(
    ("value", "digits"), [(1.876, "1.88"), (4194.304, "4194"), (0.02134, "0.0213"), (5e6, "5000000")]
)
def test_figures_have_three_digits_that_count_and_no_exponent(value: float, digits: str) -> None:
    assert in_digits(value) == digits


# -------------------------------------------------------------------- what is remembered


def test_an_attempt_is_noted_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, bool]] = []
    monkeypatch.setattr(module, "note_try", lambda id, passed: noted.append((id, passed)))
    practice = Practice(Shell(), Cluster(alive=False))
    question = find_exercise("00.q1")
    assert isinstance(question, Question)
    wrong = next(letter for letter in question.lettered if letter != question.right)
    practice.exercise("00.q1", f'answer("{wrong}")')
    practice.exercise("00.q1", f'answer("{question.right}")')
    practice.exercise("00.q1", 'answer("")')
    assert noted == [("00.q1", False), ("00.q1", True)]


def test_hints_predictions_and_outcomes_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[object, ...]] = []
    for name in ("note_hint", "note_prediction", "note_outcome"):
        monkeypatch.setattr(module, name, lambda *what, name=name: noted.append((name, *what)))
    practice = Practice(Shell(), Cluster(alive=False))
    practice.hint("00.1")
    practice.predict("Largest array that still gets around the ring, in bytes?", 2)
    practice.outcome("Largest array that still gets around the ring, in bytes?", 0.5)
    practice.predict("Seconds of something else?", 2)
    practice.outcome("How many GB for 7 billion parameters?", 112)
    assert noted == [
        ("note_hint", "00.1", 1),
        ("note_prediction", "01.p2", 2.0),
        ("note_outcome", "01.p2", 0.5),
    ]
