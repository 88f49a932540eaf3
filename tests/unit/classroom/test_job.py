"The job that checks an answer: whatever the answer does, it ends with a few lines that say what happened."

from dataclasses import replace

import psutil
import pytest

from mpi_classroom import answer_job as job
from mpi_classroom.answer_job import LINES, Verdict, check
from mpi_classroom.exercises import Exercise
from mpi_classroom.lessons import find_exercise
from mpi_classroom.snapshot import RankState


def exercise(id: str = "01.1") -> Exercise:
    found = find_exercise(id)
    assert isinstance(found, Exercise)
    return found


def shift(*lines: str, first: str = "") -> str:
    """An answer to 01.1 with these lines before its own, and `first` above the function."""
    head, *body = exercise().solution.splitlines()
    return "\n".join([first, head, *(f"    {line}" for line in lines), *body, ""])


def short(verdict: Verdict) -> str:
    """The text of a verdict that is wrong, short, and without the machinery."""
    assert verdict.state == "wrong", verdict.text
    assert 0 < len(verdict.text.splitlines()) <= LINES
    for word in ("Traceback", "site-packages", "judge.py", "course_lib", "mpi_classroom"):
        assert word not in verdict.text
    assert not any("course-exercise-" in " ".join(p.info["cmdline"] or []) for p in children())
    return verdict.text


def children() -> list[psutil.Process]:
    """Processes that this one has started, down to the ranks of a job."""
    me = psutil.Process()
    return [p for p in psutil.process_iter(["cmdline"]) if p in me.children(recursive=True)]


# -------------------------------------------------------------------- what answers do


def test_an_answer_that_changes_its_input_is_wrong() -> None:
    greedy = exercise().solution.replace("    return", "    value[:] = 0\n    return")
    assert "ranks 0 and 1: changed `value`, which belongs to the caller." in short(check(exercise(), greedy))


@pytest.mark.slow
def test_an_answer_that_prints_a_lot_is_as_right_as_without() -> None:
    verdict = check(exercise("00.1"), "def right_neighbour(comm):\n" + PRINTS)
    assert verdict.state == "right"
    assert verdict.loads


PRINTS = """\
    for _ in range(20_000):
        print("x" * 100)
    return (comm.rank + 1) % comm.size
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("os.kill(os.getpid(), 9)", "rank 1 was killed (signal 9: by hand, or because memory ran out)."),
        pytest.param("os._exit(3)", "rank 1 ended itself with exit code 3.", marks=pytest.mark.slow),
        pytest.param("comm.Abort(7)", "rank 1 called Abort.", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_ended_is_a_wrong_answer(line: str, words: str) -> None:
    text = short(check(exercise(), shift(f"if comm.rank == 1: {line}", first="import os")))
    assert text == f"✗ 01.1, on 2 ranks with 1 element: {words}"


def test_the_rank_that_raised_is_named_and_so_are_those_that_wait_for_it() -> None:
    text = short(check(exercise(), shift("if comm.rank == 1:", "    raise ValueError('boom')")))
    assert "rank 0  waiting in Sendrecv to rank 1" in text
    assert "rank 1  raised ValueError: boom  (line 5: raise ValueError('boom'))" in text
    assert "Correct the error first" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shift(comm, value)", "raised RecursionError"),
        ("comm.Send(value, dest=7)", "MPI_ERR_RANK"),
    ],
)
@pytest.mark.slow
def test_an_error_on_all_ranks_is_said_once_with_its_line(line: str, words: str) -> None:
    text = short(check(exercise(), shift(line)))
    assert text.count(words) == 1
    assert f": {line})" in text
    assert "ranks 0 and 1: raised" in text


def test_what_goes_wrong_only_with_pauses_is_said_to() -> None:
    late = "calls = []\n" + exercise("00.1").solution.replace(
        "return", "calls.append(1); return 99 if len(calls) > 4 else"
    )
    text = short(check(exercise("00.1"), late))
    assert "ranks, and only when ranks pause at random between calls:" in text
    assert "Right so far: all smaller cases, on 1, 2, 3, 4 ranks." in text


def test_an_endless_loop_ends_at_the_deadline() -> None:
    loop = shift("while comm.rank == 1:", "    pass")
    text = short(check(replace(exercise(), seconds=4), loop))
    assert "on 2 ranks with 1 element: it does not end." in text
    assert "rank 1  computing" in text and "while comm.rank == 1:" in text
    assert "endless loop" in text


@pytest.mark.slow
def test_an_endless_loop_of_messages_is_not_accused_of_a_mismatch() -> None:
    loop = shift("ball, other = np.zeros(10**6), 1 - comm.rank", "while comm.size == 2:")
    loop = loop.replace("size == 2:", "size == 2: comm.Sendrecv(ball, other, 0, ball.copy(), other)")
    text = short(check(replace(exercise(), seconds=4), loop))
    assert "it does not end" in text and "wait for each other" not in text
    assert "a rank was still moving" in text or "still compute" in text


@pytest.mark.slow
def test_a_message_that_nobody_receives_is_found() -> None:
    one_more = exercise().solution.replace(
        "    return", "    comm.Isend(value, dest=right, tag=9)\n    return"
    )
    text = short(check(exercise(), one_more))
    assert "rank 0: was sent a message by rank 1 (tag 9) that it never received." in text


# -------------------------------------------------------------------- the cell itself


def test_a_cell_that_raises_is_told_so_and_is_not_run_again() -> None:
    verdict = check(exercise(), exercise().solution + "\nprint(shift(comm, np.ones(3)))\n")
    text = short(verdict)
    assert text.startswith("✗ 01.1: the cell itself does not run.\nranks 0, 1, 2 and 3: raised NameError")
    assert "(line 10: print(shift(comm, np.ones(3))))" in text
    assert "call it in a %%px cell of its own" in text
    assert not verdict.loads


@pytest.mark.slow
def test_a_cell_that_does_not_end_says_where_it_is() -> None:
    verdict = check(replace(exercise(), seconds=1.5), exercise().solution + "\nwhile True:\n    pass\n")
    text = short(verdict)
    assert text.startswith("✗ 01.1: the cell itself does not end.\nrank 0  computing")
    assert not verdict.loads


# -------------------------------------------------------------------- the machine


def test_ranks_that_do_not_start_are_not_the_learners_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "START_SECONDS", 0.05)
    monkeypatch.setattr(job, "SLOW_START_SECONDS", 0.1)
    text = short(check(exercise(), exercise().solution))
    assert text == "01.1 could not be checked: 4 ranks did not start; run it again."


@pytest.mark.slow
def test_a_job_that_does_not_start_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Failing(job.AnswerJob):
        def watch(self) -> str:
            started.append(self)
            return super().watch() if len(started) > 1 else "not one rank has started"

    monkeypatch.setattr(job, "AnswerJob", Failing)
    verdict = check(exercise(), exercise().solution)
    assert (verdict.state, len(started)) == ("right", 2), verdict.text


def test_what_other_programs_take_is_not_counted() -> None:
    watched = job.AnswerJob(exercise(), exercise().solution)
    seconds = exercise().seconds
    for had, runnable, late in ((seconds, True, True), (0.1, True, False), (0.1, False, True)):
        states = [RankState(1, "computing", cpu_seconds=had, runnable=runnable)]
        assert [watched._late(seconds + 1, states) for _ in range(job.LOOKS + 1)][-1] is late
        assert watched._late(seconds - 1, states) is False
        assert watched._late(job.SLOW_FACTOR * seconds + 1, states) is True
    watched.folder.rmdir()
