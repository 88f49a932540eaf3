"""A learner who leaves nothing out: what is typed into a whole lesson in JupyterLab.

Every cell is run in order. A guess stands in place of every `None` of a prediction. Every exercise and every
question is answered wrongly first, then rightly. In the middle of the core the kernel is restarted.
"""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator

from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.lessons import exercises_of, find_exercise, predictions_of
from tests.browser.lab import BUSY, DONE, RED, Lesson

Cell = dict[str, Any]

LESSON_SECONDS = 600
EXERCISE = re.compile(r"%%exercise (\S+)")
UNGUESSED = re.compile(r"^(predict\(.+), None\)$", re.MULTILINE)


def code_of(notebook: Path) -> list[Cell]:
    """The code cells of a lesson as it was published."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def core_of(code: list[Cell]) -> int:
    """How many of the code cells belong to the core."""
    return sum("more" not in tags(cell) for cell in code)


def tags(cell: Cell) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def go_through(lesson: Lesson, code: list[Cell]) -> None:
    """Run the whole lesson, whose code cells were published as `code`."""
    for number, cell in enumerate(code):
        if number == core_of(code) // 2:
            begin_again(lesson, number)
        work_on(lesson, lesson.code.nth(number), cell)


def work_on(lesson: Lesson, shown: Locator, cell: Cell) -> None:
    """Do in one cell what it asks for; fail if it shows nothing, or red, where the published one does not."""
    source = "".join(cell["source"])
    if exercise := EXERCISE.match(source):
        practise(lesson, shown, find_exercise(exercise[1]), source.splitlines()[0])
        return
    guessed = UNGUESSED.sub(r"\1, 1)", source)
    said = lesson.run(shown, None if guessed == source else guessed)
    assert said.count("You say 1.") == source.count("predict("), said
    assert said or not cell["outputs"], f"nothing is shown below:\n{source}"
    assert bool(shown.locator(RED).count()) == ("raises-exception" in tags(cell)), said
    assert "Traceback" not in said, said
    if "continue_with(" in source:
        assert "the next cells run your own" in said, said


def practise(lesson: Lesson, shown: Locator, item: Exercise | Question, magic: str) -> None:
    """Answer wrongly below the line `magic`, then rightly."""
    if isinstance(item, Question):
        letter = next(letter for letter in item.lettered if letter != item.right)
        wrong, why = f'answer("{letter}")', f"✗ {letter}: {item.lettered[letter].reply}"
        right, praise = f'answer("{item.right}")', f"✓ {item.right}: "
    else:
        wrong, why = item.wrong[0].source, item.wrong[0].message
        right, praise = item.solution, f"✓ {item.id} is right"
    said = lesson.run(shown, f"{magic}\n{wrong}")
    assert said.startswith("✗ ") and why in said, said
    said = lesson.run(shown, f"{magic}\n{right}")
    assert said.startswith(praise), said


def begin_again(lesson: Lesson, number: int) -> None:
    """Restart the kernel, then run everything above the code cell with this number."""
    before = lesson.code.nth(number - 1).locator(".jp-InputPrompt")
    lesson.restart()
    lesson.until(lesson.is_ready, LESSON_SECONDS, "the kernel is not ready again")
    lesson.click(lesson.code.nth(number))
    before.evaluate("prompt => prompt.textContent = 'to be run'")
    lesson.menu("Run", "Run All Above Selected Cell")
    lesson.until(
        lambda: DONE.fullmatch(before.text_content() or "") and BUSY not in lesson.prompts(),
        LESSON_SECONDS,
        "what is above the selected cell does not run again",
    )


def unfinished(said: str, numbers: list[str]) -> list[str]:
    """What `course progress` does not show as done, of the lessons with these numbers; empty: all is done.

    A prediction is done when it was made and something came out.
    """
    lines = dict(re.findall(r"^  ✓ (\S+) +(.+)$", said, re.MULTILINE))
    wanted = [item.id for number in numbers for item in exercises_of(number)]
    guesses = [item.id for number in numbers for item in predictions_of(number)]
    missing = [id for id in (*wanted, *guesses) if id not in lines]
    missing += [id for id in guesses if "you said 1, it was" not in lines.get(id, "")]
    return [*dict.fromkeys(missing)]
