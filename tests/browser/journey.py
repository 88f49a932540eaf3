"""A learner who leaves nothing out: what is typed into a whole lesson in JupyterLab, and pictures of it.

Every cell is run in order. A guess stands in place of every `None` of a prediction. Every exercise and every
question is answered wrongly first, then rightly. In the middle of the core the kernel is restarted.
"""

import json
import re
import shutil
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
WIDE, HIGH = 1280, 2400  # of a picture, in pixels
WORKED = ".jp-WindowedPanel-outer"  # the part of the page that holds the lesson and scrolls
END = """panel => [...panel.querySelectorAll('.jp-Cell')].at(-1).getBoundingClientRect().bottom
    - panel.getBoundingClientRect().top + panel.scrollTop"""  # of the last cell, in pixels from the top


def code_of(notebook: Path) -> list[Cell]:
    """The code cells of a lesson as it was published."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def core_of(code: list[Cell]) -> int:
    """How many of the code cells belong to the core."""
    return sum("more" not in tags(cell) for cell in code)


def tags(cell: Cell) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def go_through(lesson: Lesson, code: list[Cell], pictures: Path) -> None:
    """Run the whole lesson, whose code cells were published as `code`; write its pictures to a folder."""
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)
    for number, cell in enumerate(code):
        if number == core_of(code) // 2:
            begin_again(lesson, number)
        work_on(lesson, lesson.code.nth(number), cell, pictures)
    photograph(lesson, pictures)


def work_on(lesson: Lesson, shown: Locator, cell: Cell, pictures: Path) -> None:
    """Do in one cell what it asks for; fail if it shows nothing, or red, where the published one does not."""
    source = "".join(cell["source"])
    if exercise := EXERCISE.match(source):
        practise(lesson, shown, find_exercise(exercise[1]), source.splitlines()[0], pictures)
        return
    guessed = UNGUESSED.sub(r"\1, 1)", source)
    said = lesson.run(shown, None if guessed == source else guessed)
    assert said.count("You say 1.") == source.count("predict("), said
    assert said or not cell["outputs"], f"nothing is shown below:\n{source}"
    assert bool(shown.locator(RED).count()) == ("raises-exception" in tags(cell)), said
    assert "Traceback" not in said, said
    if "continue_with(" in source:
        assert "the next cells run your own" in said, said


def practise(lesson: Lesson, shown: Locator, item: Exercise | Question, magic: str, pictures: Path) -> None:
    """Answer wrongly below the line `magic`, keep a picture of the reply, then answer rightly."""
    if isinstance(item, Question):
        letter = next(letter for letter in item.lettered if letter != item.right)
        wrong, why = f'answer("{letter}")', f"✗ {letter}: {item.lettered[letter].reply}"
        right, praise = f'answer("{item.right}")', f"✓ {item.right}: "
    else:
        wrong, why = item.wrong[0].source, item.wrong[0].message
        right, praise = item.solution, f"✓ {item.id} is right"
    said = lesson.run(shown, f"{magic}\n{wrong}")
    assert said.startswith("✗ ") and why in said, said
    shown.screenshot(path=pictures / f"wrong-{item.id}.png")
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


def photograph(lesson: Lesson, pictures: Path) -> None:
    """Pictures of the whole lesson, one screen after the other."""
    usual = lesson.page.viewport_size
    lesson.page.set_viewport_size({"width": WIDE, "height": HIGH})
    panel = lesson.page.locator(WORKED)
    top, number = 0, 0
    while top < panel.evaluate(END):  # which moves while pictures are loaded
        panel.evaluate("(panel, top) => { panel.scrollTop = top; }", top)
        lesson.page.wait_for_timeout(300)
        number += 1
        panel.screenshot(path=pictures / f"page-{number:02}.png")
        top += int(panel.evaluate("panel => panel.clientHeight"))
    if usual is not None:
        lesson.page.set_viewport_size(usual)


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
