"""A lesson, open in JupyterLab in Chromium: what a learner does there with mouse and keyboard, and sees.

Every wait has a deadline. Whatever goes wrong while a lesson is open, a picture of the page and the text of
its cells are written to build/browser, and the error says so.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Browser, Error, Locator, Page

from course.paths import BUILD

EVIDENCE = BUILD / "browser"
OPEN_SECONDS = 90  # JupyterLab, the lesson and its kernel; a machine with other work takes long
CELL_SECONDS = 60
CLICK_SECONDS = 30
DONE, BUSY = re.compile(r"\[\d+\]:"), "[*]:"
IDLE = ".jp-Notebook-ExecutionIndicator[data-status=idle]"
RED = "[data-mime-type='application/vnd.jupyter.stderr']"  # errors, too
SHOWN = """outputs => outputs.map(each =>
    [...each.querySelectorAll('img')].map(image => `(${image.alt})`).join() || each.textContent.trimEnd())"""


class Lesson:
    """One lesson in a page of its own."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.cell_seconds: float = CELL_SECONDS
        self.cells = page.locator(".jp-Notebook .jp-Cell")
        self.code = page.locator(".jp-Notebook .jp-CodeCell")

    def cell(self, text: str) -> Locator:
        """The first code cell with `text` in its source."""
        return self.code.filter(has=self.page.locator(".jp-InputArea-editor", has_text=text)).first

    # ---------------------------------------------------------------- what a learner does

    def click(self, cell: Locator) -> None:
        """Click at the end of a cell's text, so that the keyboard writes there."""
        cell.locator(".cm-line").last.click()

    def press(self, *keys: str) -> None:
        """Press one key after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def run(self, cell: Locator, source: str | None = None) -> str:
        """Click on a cell, put `source` in place of what it holds, press Shift+Enter; what it shows."""
        self.click(cell)
        if source is not None:
            self.press("Control+a")
            self.page.keyboard.insert_text(source)  # as pasting does
        return self.run_selected(cell)

    def run_selected(self, cell: Locator, keys: str = "Shift+Enter", stop_at: str = "") -> str:
        """Run the cell in which the cursor is; return what it shows when it is done.

        When it shows the words `stop_at`, press ■ in the toolbar.
        """
        prompt = cell.locator(".jp-InputPrompt")
        prompt.evaluate("prompt => prompt.textContent = 'to be run'")  # its number may stay the same
        self.press(keys)
        if stop_at:
            self.until(
                lambda: stop_at in self.output(cell), self.cell_seconds, f"a cell does not say {stop_at!r}"
            )
            self.page.get_by_role("button", name="Interrupt the kernel").click()
        self.until(
            lambda: DONE.fullmatch(prompt.text_content() or ""), self.cell_seconds, "a cell is not done"
        )
        return self.output(cell)

    def run_below(self, cell: Locator, source: str) -> str:
        """Run `source` in a new cell below `cell`, as a learner does for `hint()`; return what it shows."""
        self.click(cell)
        return self.run_new(source)

    def run_new(self, source: str, stop_at: str = "") -> str:
        """Add a cell below the selected one, type `source` into it, and run it; return what it shows."""
        self.press("Escape", "b", "Enter")
        self.page.keyboard.type(source)
        return self.run_selected(self.selected(), stop_at=stop_at)

    def walk_to(self, text: str, key: str = "ArrowDown") -> Locator:
        """Press `key` from cell to cell until the selected one has `text` in it; return that one."""
        for _ in range(self.cells.count()):
            if text in (self.cells.and_(self.page.locator(".jp-mod-active")).text_content() or ""):
                return self.selected()
            self.press(key)
        raise AssertionError(f"no cell says {text!r}")

    def menu(self, name: str, item: str) -> None:
        """Choose an item of a menu of JupyterLab's."""
        self.page.get_by_role("menuitem", name=name, exact=True).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(item)}$")).click()

    def restart(self) -> None:
        """Menu Kernel → Restart Kernel…, and yes."""
        self.menu("Kernel", "Restart Kernel…")
        self.page.get_by_role("button", name="Confirm Kernel Restart").click()

    # ---------------------------------------------------------------- what a learner sees

    def selected(self) -> Locator:
        """The selected cell, if it is a code cell."""
        number = self.code.evaluate_all(
            "cells => cells.findIndex(c => c.classList.contains('jp-mod-active'))"
        )
        return self.code.nth(int(number))

    def prompts(self) -> list[str]:
        """What stands to the left of every code cell: `[ ]:`, `[*]:` or `[7]:`."""
        return self.code.locator(".jp-InputPrompt").all_text_contents()

    def is_ready(self) -> bool:
        """Is the kernel idle, and still so a moment later? JupyterLab drops what is run before that."""
        for _ in range(10):
            if not self.page.locator(IDLE).count():
                return False
            self.page.wait_for_timeout(100)
        return True

    def output(self, cell: Locator) -> str:
        """What a cell shows below itself, one output after the other; of a picture, its alt text."""
        return "\n".join(cell.locator(".jp-OutputArea-output").evaluate_all(SHOWN))

    def text(self) -> str:
        """The code cells as text: prompts, sources and outputs."""
        parts = []
        for prompt, cell in zip(self.prompts(), self.code.all(), strict=True):
            parts += [prompt, *cell.locator(".cm-line").all_text_contents(), self.output(cell), ""]
        return "\n".join(parts)

    def until(self, condition: Callable[[], object], seconds: float, complaint: str) -> None:
        """Return once `condition()` is true; fail with `complaint` after `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"after {seconds:g} s: {complaint}"
            self.page.wait_for_timeout(50)  # not sleep: the page's events are handled meanwhile


@contextlib.contextmanager
def open_lesson(browser: Browser, address: str, cells: int, name: str, scale: float = 1) -> Iterator[Lesson]:
    """The lesson of so many `cells` at `address`; what goes wrong is kept under `name`.

    `scale`: pixels of a screenshot per pixel of the page.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=scale)
    lesson = Lesson(context.new_page())
    lesson.page.set_default_timeout(CLICK_SECONDS * 1000)
    try:
        lesson.page.goto(address, timeout=OPEN_SECONDS * 1000)
        lesson.until(lambda: lesson.cells.count() == cells, OPEN_SECONDS, "the lesson is not open")
        lesson.until(lesson.is_ready, OPEN_SECONDS, "the kernel is not ready")
        yield lesson
    except BaseException as error:
        error.add_note(keep_evidence(lesson, EVIDENCE / name))
        raise
    finally:
        with contextlib.suppress(Error):  # the browser may be gone
            context.close()


def keep_evidence(lesson: Lesson, path: Path) -> str:
    """Write the page as it is to `path`.png and .txt; return a sentence that says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lesson.page.screenshot(path=path.with_suffix(".png"))
        path.with_suffix(".txt").write_text(lesson.text())
    except Error as error:
        return f"The page could not be kept: {error}"
    return f"The page as it was: {path}.png and .txt"
