"""Folds in JupyterLab, on slides and on the site: closed at first, opened by keyboard, open on paper.

What needs the slides or the site is skipped where they are not built.
"""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, Page

from course.tools.catalogue import find_lessons
from course.tools.folds import OUTPUT_TITLE
from course.tools.site.lessons import lesson_page
from course.tools.slides import OUTPUT, _column, _mark_folds, copy_reveal, html
from tests.browser.lab import open_lesson
from tests.browser.server import TOKEN, Server
from tests.browser.test_site import SITE

pytestmark = pytest.mark.slow
ANSWER = """<details><summary>Open after you have run the cell</summary>

**Twice** as far, by `seed`; typically $1.64/\\sqrt{N}$.

| ranks | error |
|---|---|
| 4 | 0.0053 |

</details>"""
IS_OPEN = "fold => fold.open"


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 720})
    yield context.new_page()
    context.close()


def toggle(page: Page, fold: Locator, key: str) -> bool:
    """Press `key` on the title of a fold; is the fold open then?"""
    fold.locator("summary").focus()
    page.keyboard.press(key)
    return bool(fold.evaluate(IS_OPEN))


def test_jupyterlab_shows_markdown_in_a_fold_that_the_keyboard_opens(
    chromium: Browser, server: Server
) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(ANSWER)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    nbformat.write(notebook, server.folder / "folds.ipynb")
    try:
        with open_lesson(chromium, server.lesson("folds.ipynb"), 1, "folds") as lesson:
            fold = lesson.page.locator(".jp-RenderedMarkdown details")
            inside = ("strong", "code", "td", "mjx-container, .MathJax")
            fold.get_by_text("Open after you have run the cell").wait_for(timeout=30_000)  # drawn late
            assert not any(fold.locator(each).first.is_visible() for each in inside)
            assert toggle(lesson.page, fold, "Enter")
            for each in inside:
                fold.locator(each).first.wait_for()
            assert not toggle(lesson.page, fold, "Space")
            assert fold.is_visible(), "the cell is still rendered"
            lesson.page.goto(f"{server.address}/nbconvert/html/folds.ipynb?token={TOKEN}&download=false")
            assert not lesson.page.locator("details strong").is_visible()
            lesson.page.emulate_media(media="print")
            assert lesson.page.locator("details strong").is_visible(), "File → Print"
    finally:
        server.shut_kernels_down()


@pytest.fixture
def slides(page: Page, tmp_path: Path) -> Page:
    """A deck with a vote, its folded output and its folded answer, at the page of the vote."""
    if not (OUTPUT / "reveal").exists():
        pytest.skip("the slides are not built: make slides")
    shown = nbformat.v4.new_output("stream", text="off by 0.0053\n")
    cells = [
        nbformat.v4.new_markdown_cell(
            "## 1 · Darts\n\n**Vote:** 1 or 2?", metadata={"slideshow": {"slide_type": "slide"}}
        ),
        nbformat.v4.new_code_cell("measure()", outputs=[shown]),
        nbformat.v4.new_markdown_cell(ANSWER),
    ]
    _mark_folds(cells)
    notebook = nbformat.v4.new_notebook(cells=list(_column(cells)))
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "python3"}
    copy_reveal(OUTPUT / "reveal", tmp_path)
    (tmp_path / "deck.html").write_text(html(notebook, "Darts"))
    page.goto((tmp_path / "deck.html").as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady() && Reveal.getCurrentSlide().dataset.fitted")
    return page


def test_the_next_key_press_opens_the_output_then_the_answer_and_the_one_before_closes_them(
    slides: Page,
) -> None:
    folds, seen = slides.locator("details.fold"), []
    for key in ("Space", "Space", "Shift+Space", "ArrowRight", "ArrowLeft"):
        seen.append(folds.evaluate_all("folds => folds.map(fold => fold.open)"))
        slides.keyboard.press(key)
    assert folds.locator("summary").all_text_contents()[0] == OUTPUT_TITLE
    assert seen == [[False, False], [True, False], [True, True], [True, False], [True, True]]


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_on_the_title_of_a_fold_opens_it_and_does_not_turn_the_page(slides: Page, key: str) -> None:
    answer = slides.locator("details.fold").nth(1)
    assert toggle(slides, answer, key)
    assert answer.locator("strong").is_visible() and answer.locator("td").first.is_visible()
    assert not toggle(slides, answer, key)
    assert slides.evaluate("Reveal.getIndices().f") == -1, "the deck has not moved on"


@pytest.fixture
def site_page(page: Page) -> Page:
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make site")
    page.goto((SITE / "notebooks" / "01_mpi_basics.html").as_uri())
    return page


def test_the_site_folds_the_outputs_that_answer_a_prediction(site_page: Page) -> None:
    cells = lesson_page(find_lessons()[1]).cells
    wanted = sum("fold" in cell.metadata and bool(cell.outputs) for cell in cells)
    folds = site_page.locator(".cell > details.fold")
    assert folds.count() == wanted > 0
    assert not folds.first.locator(".cell_output").is_visible()
    assert toggle(site_page, folds.first, "Enter")
    assert folds.first.locator(".cell_output").is_visible()
    assert folds.first.locator("summary").text_content() == OUTPUT_TITLE


def test_on_paper_every_fold_is_open_with_and_without_a_script(site_page: Page) -> None:
    every = "[...document.querySelectorAll('.bd-article details')]"
    closed = site_page.evaluate(f"{every}.filter(fold => !fold.open).length")
    assert closed > 5
    site_page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert site_page.evaluate(f"{every}.every(fold => fold.open)"), "those of one group, too"
    site_page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert site_page.evaluate(f"{every}.filter(fold => !fold.open).length") == closed
    last = site_page.locator("details.fold > :last-child")
    assert not last.first.is_visible()
    site_page.emulate_media(media="print")
    assert all(each.is_visible() for each in last.all()), "by the style sheet alone"
