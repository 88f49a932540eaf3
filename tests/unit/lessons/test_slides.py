"""What the decks are made of, before a browser sees them."""

import base64
import re
import struct
from pathlib import Path

import nbformat
import pytest

from course.paths import LESSONS
from course.tools.build import NOTES, lesson_sources, notebook_of
from course.tools.parts import STOP_LINE
from course.tools.slides import OPENED, _column, _unfold, deck, html
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of

FIRST = LESSONS / "l01_mpi_basics" / "lesson.py"
SHOWN = re.compile(r"-shown-\d+$")


def cell(source: str, kind: str = "", code: bool = False) -> nbformat.NotebookNode:
    new = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
    return new(source, metadata={"slideshow": {"slide_type": kind}} if kind else {})


def places(cells: list[nbformat.NotebookNode]) -> list[str]:
    return [each.metadata.slideshow.slide_type for each in _column(cells)]


def test_without_marks_every_text_begins_a_page_and_code_stays_with_it() -> None:
    cells = [
        cell("## 1 · Ring", "slide"),
        cell("a = 1", code=True),
        cell("And then"),
        cell("b = 2", code=True),
    ]
    pages = list(_column(cells))
    assert [each.metadata.slideshow.slide_type for each in pages] == ["slide", "-", "subslide", "-", "-"]
    assert pages[2].source == '<p class="section-title">1 · Ring</p>'


def test_code_for_which_a_page_has_no_room_begins_one() -> None:
    long = "\n".join(["a = 1"] * 20)
    cells = [cell("## 1", "slide"), cell(long, code=True), cell(long, code=True)]
    assert places(cells) == ["slide", "-", "subslide", "-"]


def test_a_text_that_only_says_what_was_seen_stays_on_the_page_if_there_is_room() -> None:
    def pages(*later: nbformat.NotebookNode) -> list[str]:
        return places([cell("## 1", "slide"), cell("a = 1", code=True), *later])[2:]

    assert pages(cell("Four."), cell("Then", "notes")) == ["fragment", "notes"]
    assert pages(cell("\n\n".join(["So it was."] * 20))) == ["subslide", "-"]
    assert pages(cell("Now b."), cell("b = 2", code=True)) == ["subslide", "-", "-"]


def drawing(width: int, height: int) -> nbformat.NotebookNode:
    """A cell that shows a picture of this size, and whose code is left out."""
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(24)
    html = f'<img alt="a line" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    drawn = cell("\n".join(["draw()"] * 20), code=True)
    drawn.outputs = [nbformat.v4.new_output("display_data", {"text/html": html})]
    drawn.metadata["transient"] = {"remove_source": True}
    return drawn


def test_a_tall_picture_has_a_page_almost_to_itself() -> None:
    words = "## 1\n" + "These are words.\n" * 4
    wide, tall = ([cell(words, "slide"), drawing(800, height), cell("So.")] for height in (400, 700))
    assert places(wide) == ["slide", "-", "fragment"]
    assert places(tall) == ["slide", "subslide", "-", "fragment"]


def test_a_heading_alone_is_no_page() -> None:
    exercise = cell("%%exercise 00.1\n", code=True)
    assert places([cell("## 3 · Your turn", "slide"), cell("Do it."), exercise])[:3] == ["slide", "-", "-"]


def test_what_only_a_notebook_needs_is_left_out() -> None:
    cells = [
        cell("## 1", "slide"),
        cell('continue_with("04.1")', code=True),
        cell(f"{STOP_LINE} More: trees."),
    ]
    assert places(cells) == ["slide"]


def test_code_that_only_draws_is_left_out_and_an_algorithm_is_not() -> None:
    darts = LESSONS / "l02_monte_carlo_pi" / "lesson.py"
    hidden = [each for each in deck(darts).cells if each.metadata.get("transient", {}).get("remove_source")]
    sources = {each.source for each in hidden if not SHOWN.search(each.id)}
    assert any("draw_errors(" in source for source in sources)
    assert any("outcome(" in source for source in sources)
    assert not any(source.startswith(("%%", "predict(")) for source in sources)
    page = html(deck(darts), "02 · Monte Carlo π")
    assert "draw_errors(" not in page and "count_nonzero" in page


def test_with_marks_they_decide() -> None:
    cells = [
        cell("## 1", "slide"),
        cell("a"),
        cell("b", "fragment"),
        cell("c", "skip"),
        cell("d", "subslide"),
    ]
    assert places(cells) == ["slide", "-", "fragment", "subslide", "-"]


def test_folded_answers_are_for_the_speaker() -> None:
    text = cell("Vote.\n\n<details><summary>What to listen for</summary>(b):\nboth.</details>")
    assert _unfold(text) == ["**What to listen for** (b):\nboth."]
    assert text.source == "Vote."


def test_a_link_to_a_lesson_is_its_words_and_one_to_the_world_stays() -> None:
    text = cell("[05 · Training](05_training.ipynb), [mpi4py](https://mpi4py.readthedocs.io)")
    _unfold(text)
    assert text.source == "05 · Training, [mpi4py](https://mpi4py.readthedocs.io)"


@pytest.mark.parametrize("source", lesson_sources(), ids=lambda source: source.parent.name)
def test_a_deck_shows_the_core_with_its_figures_and_notes(source: Path) -> None:
    notebook = deck(source)
    kinds = [each.metadata.slideshow.slide_type for each in notebook.cells]
    text = "\n".join(each.source for each in notebook.cells)
    shown = "\n".join(each.source for each, kind in zip(notebook.cells, kinds, strict=True) if kind != NOTES)
    assert kinds[0] == "slide"
    assert kinds.count("slide") >= 5
    assert kinds.count(NOTES) >= 2
    assert "## More" not in text and sum(each.source.startswith("# 0") for each in notebook.cells) < 2
    assert ("start_cluster" in text) == (source.parent.name == "l00_start_here"), "which teaches it"
    assert "<details>" not in text
    assert "## Key points" in shown and "## Discuss" in shown
    for item in exercises_of(source.parent.name[1:3]):
        if isinstance(item, Question) and f"Question {item.id}" in shown:
            right = item.lettered[item.right]
            assert right.reply in text and right.reply not in shown, item.id


def test_a_deck_has_the_outputs_of_the_committed_notebook() -> None:
    built = nbformat.read(notebook_of(FIRST), as_version=4)
    outputs = {each.id: each.outputs for each in built.cells if each.cell_type == "code"}
    shown = [each for each in deck(FIRST).cells if each.cell_type == "code" and each.outputs]
    assert len(shown) >= 8
    assert all(each.outputs[0] in outputs[SHOWN.sub("", each.id)] for each in shown)


def test_a_long_program_and_what_it_prints_have_a_page_each_and_many_ranks_two() -> None:
    program = cell("\n".join(["work()"] * 25), code=True)
    lines = "".join(f"[stdout:{rank}]\n" + f"{rank}\n" * 9 for rank in range(4))
    program.outputs = [nbformat.v4.new_output("stream", text=lines)]
    pages = list(_column([cell("## 1", "slide"), program]))
    printed = [each.outputs[0].text for each in pages if each.get("outputs")]
    assert "".join(printed) == lines and [text[:10] for text in printed] == ["[stdout:0]", "[stdout:2]"]
    assert sum(each.metadata.slideshow.slide_type == "subslide" for each in pages) == 2


def test_an_answer_alone_on_its_page_is_open() -> None:
    answer = cell(f"{OPENED}<summary>Open</summary>\n\nYes.\n\n</details>")
    pages = list(_column([cell("\n\n".join(["So it was."] * 20), "slide"), answer]))
    assert [each.source.strip() for each in pages[1:]] == ["", "Yes."]


def test_a_page_of_slides_asks_no_other_host() -> None:
    text = html(deck(FIRST), "01 · MPI basics")
    assert 'src="http' not in text and 'href="http' not in text.split("<body>")[0]
    assert text.count("<aside") >= 4
    assert "<title>01 · MPI basics: slides</title>" in text
