"""Learners in a real browser on a real JupyterLab: the careful one, and those whom a course must survive."""

import json

import pytest

from mpi_classroom.exercises import Question
from mpi_classroom.lessons import find_exercise
from tests.browser.conftest import OpenLesson
from tests.browser.lab import BUSY, DONE, RED, Lesson
from tests.browser.server import Server

pytestmark = pytest.mark.timeout(400)

WHAT_FIRST = "this notebook has no ranks yet. Run the Setup cells at the top of the lesson first"
LESSON_SECONDS = 120
SHIFT = """\
%%exercise 01.1
def shift(comm, value):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.zeros_like(value)
    {}
    return received
"""
# The words of an output that stand on two lines.
DIVIDED = """output => {
    const words = [], texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode())
        for (const word of text.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) words.push(word[0]);
        }
    return words;
}"""


def set_up(lesson: Lesson) -> None:
    assert "4 ranks" in lesson.run(lesson.cell("start_cluster"))
    assert lesson.run(lesson.cell("%%px --setup")) == ""


@pytest.mark.slow
def test_lesson_01_deadlocks_reports_goes_on_and_checks_an_exercise(
    open_copy: OpenLesson, server: Server
) -> None:
    with open_copy("01") as lesson:
        set_up(lesson)
        assert len(server.processes()) >= 1 + 1 + 4  # server, kernel, ranks: what must be gone in the end

        assert lesson.run(lesson.cell("def ring(nbytes)")) == ""
        report = lesson.run(lesson.cell("ring(1_000_000)"))
        for rank in range(4):
            assert f"rank {rank}  waiting in Send to rank {(rank + 1) % 4}, tag 0  cell line 2" in report
        assert "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 3 → rank 0" in report
        assert "The ranks were restarted" in report and "Traceback" not in report

        report = lesson.run(lesson.cell("comm.Split(rank == 3)"))
        assert all(f"ring of 4: from rank {rank}" in report for rank in range(4))
        assert all(f"ring of 3: from rank {rank}" in report for rank in range(3))
        assert "rank 3 waits for itself" in report and "ring of 1" not in report

        exercise = lesson.cell("%%exercise 01.1")
        verdict = lesson.run(exercise, SHIFT.format("comm.Send(value, right); comm.Recv(received, left)"))
        assert verdict.startswith("✗ 01.1, on 2 ranks with 1,000,000 elements: it does not end.")
        assert "a circle of waiting: rank 0 → rank 1 → rank 0" in verdict
        verdict = lesson.run(exercise, SHIFT.format("comm.Sendrecv(value, right, 0, received, left)"))
        assert verdict.startswith("✓ 01.1 is right on 1, 2, 3 and 4 ranks")


@pytest.mark.release
@pytest.mark.parametrize("number", ["00", "01"])
def test_who_only_clicks_comes_to_the_end(open_copy: OpenLesson, server: Server, number: str) -> None:
    with open_copy(number) as lesson:
        code = [cell for cell in cells_of(server, number) if cell["cell_type"] == "code"]
        for _ in range(lesson.cells.count()):
            lesson.press("Shift+Enter")  # never waiting for a cell to end
        lesson.until(lambda: BUSY not in lesson.prompts(), LESSON_SECONDS, "a cell is stuck")

        numbers = [DONE.fullmatch(prompt) for prompt in lesson.prompts()[: len(code)]]
        assert all(numbers), lesson.prompts()
        assert "Traceback" not in lesson.text()
        red = [bool(cell.locator(RED).count()) for cell in lesson.code.all()[: len(code)]]
        assert red == ["raises-exception" in cell["metadata"].get("tags", []) for cell in code]


@pytest.mark.release
def test_who_runs_out_of_order_stops_a_cell_and_restarts_hears_what_to_do(open_copy: OpenLesson) -> None:
    with open_copy("00") as lesson:
        mine, values = lesson.cell("mine = base + rank"), lesson.cell('cluster["mine"]')
        assert WHAT_FIRST in lesson.run(mine)
        assert "4 ranks" in lesson.run(lesson.cell("start_cluster"))
        assert "ranks 0, 1, 2, 3 raised NameError: name 'base' is not defined" in lesson.run(mine)
        for text in ("base = 42", 'cluster["base"] = base', "%%px --setup"):
            lesson.run(lesson.cell(text))
        assert lesson.run(mine) == ""
        assert lesson.run(values) == "[42, 43, 44, 45]"

        report = lesson.run_new("%%px\nif rank: comm.Barrier()", stop_at="rank 3 waiting in Barrier")
        assert "rank 3  waiting in Barrier" in report and "Traceback" not in report
        assert "The ranks were restarted" in report
        assert len(lesson.run(lesson.cell("hello from rank")).splitlines()) == 4

        lesson.restart()
        for text in ("hello from rank", 'cluster["mine"]', "%%exercise 00.1", "predict("):
            said = lesson.run(lesson.cell(text))
            assert WHAT_FIRST in said and "Traceback" not in said
            assert "menu Run → Run All Above Selected Cell" in said
        lesson.click(values)
        lesson.menu("Run", "Run All Above Selected Cell")
        assert lesson.run(values) == "[42, 43, 44, 45]"


@pytest.mark.slow
def test_a_long_line_of_output_ends_between_words(open_copy: OpenLesson) -> None:
    with open_copy("00") as lesson:
        lesson.run_below(lesson.code.first, "print('because ' * 40, 'x' * 300)")
        output = lesson.cell("'because '").locator(".jp-OutputArea-output")
        assert output.evaluate(DIVIDED) == ["x" * 300], "only what is longer than a line"


@pytest.mark.slow
def test_exercise_hint_and_quiz_need_no_mouse(open_copy: OpenLesson) -> None:
    with open_copy("00") as lesson:
        for text in ("start_cluster", "%%px --setup"):
            lesson.run_selected(lesson.walk_to(text))

        exercise = lesson.walk_to("%%exercise 00.1")
        lesson.press("Enter", "Control+End")
        lesson.page.keyboard.type(" + 1")
        assert "Which rank follows it in the ring?" in lesson.run_selected(exercise, "Control+Enter")
        assert "Hint 1 of 3" in lesson.run_new("hint()")
        lesson.walk_to("%%exercise 00.1", "ArrowUp")
        lesson.press("Enter", "Control+End", "Shift+Home")
        lesson.page.keyboard.type("return (comm.rank + 1) % comm.size")
        assert lesson.run_selected(exercise).startswith("✓ 00.1 is right")

        quiz = lesson.walk_to("%%exercise 00.q1", "ArrowUp")
        question = find_exercise("00.q1")
        assert isinstance(question, Question)
        right = question.right
        wrong = next(letter for letter in question.lettered if letter != right)
        lesson.press("Enter", "Control+End", "ArrowLeft", "ArrowLeft", wrong)
        assert lesson.run_selected(quiz, "Control+Enter").startswith(f"✗ {wrong}: ")
        lesson.press("Enter", "Backspace", right)
        assert lesson.run_selected(quiz).startswith(f"✓ {right}: ")


def cells_of(server: Server, number: str) -> list[dict]:
    (path,) = server.folder.glob(f"{number}_*.ipynb")
    return json.loads(path.read_text())["cells"]
