"""Slides: `make slides` writes one reveal.js deck per lesson, with speaker notes, that needs no network.

    lesson.py ── compose ──> cells with notes ─┐
    notebooks/NN_topic.ipynb ──> outputs ──────┴─ pages ── nbconvert ──> build/slides/NN_topic.html

A deck shows the core without its setup. A cell tagged `slide` begins a column of pages, one tagged `subslide`
a page below it, one tagged `fragment` appears at the next key press, one tagged `skip` is left out. In a
column without such tags below the first cell, every text that leads to code begins a page; a text that says
what was seen stays on its page. What the page has no room for begins the next, and what a long program shows
has a page of its own. What a cell shows appears at the next key press, after the room has voted; code that
only draws a figure or compares a guess is left out. What answers a prediction (`course.tools.folds`) is a
closed fold that the next key press opens, or a click. The speaker reads the cells tagged `notes`, the other
answers that learners open, and the replies of questions.

    python -m course.tools.slides --reveal FOLDER [04 …]
"""

import argparse
import base64
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import ceil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course.paths import BUILD, ROOT
from course.tools.build import NOTES, compose, lesson_sources, notebook_of
from course.tools.folds import BEGIN, OUTPUT_TITLE, answers, folded
from course.tools.frame import label, read_frame, stem
from course.tools.parts import STOP_LINE, in_core
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import find_exercise

TEMPLATES = ROOT / "docs" / "slides"
PRINT_OPEN = ROOT / "docs" / "site" / "static" / "print_open.js"
OUTPUT = BUILD / "slides"
# What a deck loads of reveal.js.
REVEAL = (
    "dist/reveal.css",
    "dist/reveal.js",
    "plugin/notes/notes.js",
    "plugin/notes/speaker-view.html",
    "LICENSE",
)
SETUP = "## Setup"  # without words: the same in every lesson
PAGE_LINES, TEXT_COLUMNS, OUTPUT_COLUMNS = 29, 80, 100  # letters get a little smaller from 26 lines on
PICTURE_LINES, TALL_LINES, TALL = 19, 30, 0.66  # a tall picture has a page almost to itself
SHORT_LINES = 5  # what is no longer than this would look lost on a page
HEADING_LINES = 1.5  # a page with a heading and nothing else
CONTINUE = re.compile(r"continue_with\(.*\)")  # whose answer runs next: nobody's, on slides
PNG = re.compile(r"<img[^>]*data:image/png;base64,([\w+/]{64})")  # as far as it says its size
GUESS = re.compile(r"^predict\(", re.MULTILINE)  # the room guesses aloud
SHOWS_ITSELF = ("%%", "cluster.")  # code that is shown although it draws
EXERCISE = re.compile(r"%%exercise (\S+)")
FOLDED = re.compile(r"\s*<details><summary>(.*?)</summary>(.*?)</details>", re.DOTALL)
OPENED = '<details class="fragment custom fold">'  # by the next key press
FOLD_ALONE = re.compile(rf"^{OPENED}<summary>.*?</summary>(.*)</details>", re.DOTALL)
LESSON_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")


def deck(source: Path) -> NotebookNode:
    """The notebook of the slides of a lesson: its core, each cell with its place on the slides."""
    composed = compose(source, notes=True)
    outputs = _outputs(notebook_of(source))
    _mark_folds(composed.cells)
    cells = [cell for cell, core in zip(composed.cells, in_core(composed.cells), strict=True) if core]
    cells = cells[1:]  # the header: `_title` has what slides need of it
    pages = [_title(source)]
    columns = [n for n, cell in enumerate(cells) if _kind(cell) == "slide"]
    for begin, end in pairwise([*columns, len(cells)]):
        if cells[begin].source == SETUP:
            continue
        for cell in cells[begin:end]:
            if cell.cell_type == "code":
                cell.outputs = [] if GUESS.search(cell.source) else outputs.get(cell.id, [])
                cell.metadata.setdefault("transient", {})["remove_source"] = _only_draws(cell)
        pages += _column(cells[begin:end])
    composed.cells = pages
    composed.metadata.language_info.pygments_lexer = "python3"  # IPython's has no colours below %%px
    return composed


def _mark_folds(cells: Sequence[NotebookNode]) -> None:
    """Mark the code whose output is folded, and the first fold of each text that answers a question."""
    for cell, closed, answer in zip(cells, folded(cells), answers(cells), strict=True):
        if closed:
            cell.metadata["transient"] = {"fold": OUTPUT_TITLE}
        if answer:
            cell.source = cell.source.replace(f"{BEGIN}>", OPENED, 1)


def _outputs(notebook: Path) -> dict[str, list[NotebookNode]]:
    """What the cells of the committed notebook show, by their ids."""
    cells = nbformat.read(notebook, as_version=4).cells
    return {cell.id: cell.outputs for cell in cells if cell.cell_type == "code"}


def _kind(cell: NotebookNode) -> str:
    return str(cell.metadata.get("slideshow", {}).get("slide_type", ""))


def _left_out(cell: NotebookNode) -> bool:
    """Whether slides do without the cell: what is tagged so, and what only a notebook needs."""
    notebook_only = cell.source.startswith(STOP_LINE) or CONTINUE.fullmatch(cell.source)
    return _kind(cell) == "skip" or bool(notebook_only)


def _only_draws(cell: NotebookNode) -> bool:
    """Whether what a cell shows is enough: a figure, or what came out of a guess."""
    shows = any("<img" in output.get("data", {}).get("text/html", "") for output in cell.outputs)
    if cell.source.startswith(SHOWS_ITSELF) or not cell.outputs:
        return False
    return shows or bool(re.search(r"^ *outcome\(", cell.source, re.MULTILINE))


def _placed(cell: NotebookNode, kind: str) -> NotebookNode:
    """The cell, marked with its place on the slides; `kind` "" continues the page."""
    cell.metadata["slideshow"] = {"slide_type": kind or "-"}
    return cell


def _note(text: str) -> NotebookNode:
    return _placed(nbformat.v4.new_markdown_cell(text), NOTES)


def _title(source: Path) -> NotebookNode:
    """The first page: title, goal, and what a learner will be able to do."""
    frame = read_frame(source)
    lines = [f"# {label(source)}", "", f"*{frame.goal}*", "", "You will be able to", ""]
    lines += [f"- {each}" for each in frame.able]
    return _placed(nbformat.v4.new_markdown_cell("\n".join(lines)), "slide")


def _column(cells: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    """The cells from one `slide` to the next, as pages with their notes; each page says whose it is."""
    cells = [part for cell in cells if not _left_out(cell) for part in _parts(cell)]
    marked = any(_kind(cell) not in ("", NOTES) for cell in cells[1:])
    heading = re.search(r"^#+ (.+)$", cells[0].source, re.MULTILINE)
    words = re.sub("`(.+?)`", r"<code>\1</code>", heading[1]) if heading else ""
    title = f'<p class="section-title">{words}</p>' if heading else ""
    used = 0.0
    for place, cell in enumerate(cells):
        kind = _kind(cell)
        if kind == NOTES:
            yield _note(cell.source)
            continue
        exercise = EXERCISE.match(cell.source) if cell.cell_type == "code" else None
        notes = _unfold(cell) if cell.cell_type == "markdown" else []
        if place and not kind:
            kind = _guessed_kind(cell, cells[place + 1 :], used, marked)
        used = _lines(cell) + (0 if kind in ("slide", "subslide") else used)
        if kind == "subslide" and not cell.source.startswith("#"):
            yield _placed(nbformat.v4.new_markdown_cell(title), kind)
            kind = ""
            cell.source = FOLD_ALONE.sub(r"\1", cell.source)  # the key press that came here has opened it
        if exercise:
            yield from _exercise(cell, exercise[1], kind)
            continue
        yield _placed(cell, kind)
        yield from map(_note, notes)


def _parts(cell: NotebookNode) -> Iterator[NotebookNode]:
    """The cell; or its code, then what it shows, where one page has no room for both."""
    exercise = cell.cell_type == "code" and EXERCISE.match(cell.source)
    if cell.cell_type == "markdown" or exercise or _lines(cell) <= PAGE_LINES or not cell.outputs:
        yield cell
        return
    shown = [_shown(cell, n, output) for n, output in enumerate(chain(*map(_halves, cell.outputs)))]
    cell.outputs = []
    yield from (each for each in (cell, *shown) if _lines(each))


def _shown(cell: NotebookNode, number: int, output: NotebookNode) -> NotebookNode:
    """A cell with one of the outputs of `cell`, and no code."""
    alone = nbformat.v4.new_code_cell(cell.source, id=f"{cell.id}-shown-{number}", outputs=[output])
    alone.metadata["transient"] = {**cell.metadata.get("transient", {}), "remove_source": True}
    return alone


def _halves(output: NotebookNode) -> Iterator[NotebookNode]:
    """The output; or what the first half of the ranks printed, and the second, where it is long."""
    text = output.get("text", "")
    begins = [match.start() for match in re.finditer(r"^\[stdout:", text, re.MULTILINE)]
    if _output_lines(output) <= PAGE_LINES or len(begins) < 2:
        yield output
        return
    middle = begins[len(begins) // 2]
    yield from (nbformat.v4.new_output("stream", text=part) for part in (text[:middle], text[middle:]))


def _guessed_kind(cell: NotebookNode, later: Sequence[NotebookNode], used: float, marked: bool) -> str:
    """How a cell without a mark begins on a page of which `used` lines are taken; others may be `marked`."""
    lines, text = _lines(cell), cell.cell_type == "markdown" and not cell.source.startswith(OPENED)
    short = lines if text else used
    full = used + lines > PAGE_LINES + SHORT_LINES * (short <= SHORT_LINES)
    if full or marked or not text or used <= HEADING_LINES:
        return "subslide" if full else ""
    following = next((each for each in later if _kind(each) != NOTES), None)
    leads_on = following is not None and following.cell_type == "code"
    return "subslide" if leads_on else "fragment"


def _lines(cell: NotebookNode) -> float:
    """The room that a cell takes on a page, in lines of code: a line of text or of a table is higher."""
    if cell.cell_type == "markdown":
        return sum(1.5 * max(1, len(line) / TEXT_COLUMNS) for line in cell.source.splitlines() if line)
    drawn = cell.metadata.get("transient", {}).get("remove_source", False)
    lines = 0 if drawn else 1.5 + len(cell.source.splitlines())
    return lines + sum(map(_output_lines, cell.get("outputs", [])))


def _output_lines(output: NotebookNode) -> int:
    data = output.get("data", {})
    if picture := PNG.search(data.get("text/html", "")):
        width, height = struct.unpack(">II", base64.b64decode(picture[1])[16:24])
        return TALL_LINES if height > TALL * width else PICTURE_LINES
    words = output.get("text") or "\n".join(output.get("traceback", ())) or data.get("text/plain", "")
    return sum(ceil(len(line) / OUTPUT_COLUMNS) for line in words.splitlines())


def _exercise(cell: NotebookNode, id: str, kind: str) -> Iterator[NotebookNode]:
    """The cell of an exercise without its verdict; of a question, the replies as notes."""
    item = find_exercise(id)
    if isinstance(item, Question):
        replies = [
            f"({letter}) {'**right**' if option.right else 'wrong'}: {option.reply}"
            for letter, option in item.lettered.items()
        ]
        yield _note("\n\n".join(replies))
        return
    cell.outputs = []
    yield _placed(cell, kind)
    yield _note(f"Hints: {' / '.join(hint.strip() for hint in item.hints[:2])}")


def _unfold(cell: NotebookNode) -> list[str]:
    """Take the answers that are folded out of a text, and links to lessons; returns the answers."""
    notes = [f"**{summary.strip()}** {answer.strip()}" for summary, answer in FOLDED.findall(cell.source)]
    cell.source = LESSON_LINK.sub(r"\1", FOLDED.sub("", cell.source)).strip()
    return notes


def html(notebook: NotebookNode, title: str) -> str:
    """The deck as a page that loads `reveal/` and `slides.css` beside it."""
    from nbconvert import SlidesExporter
    from traitlets.config import Config

    settings = Config()
    settings.CSSHTMLHeaderPreprocessor.style = "default"  # of pygments, not JupyterLab's variables
    exporter = SlidesExporter(
        config=settings,
        template_file=str(TEMPLATES / "deck.html.j2"),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    text, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    return str(text)


def copy_reveal(reveal: Path, folder: Path) -> None:
    """Copy what decks load: reveal.js from the folder `reveal`, our style sheet and our script."""
    for name in REVEAL:
        (folder / "reveal" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(reveal / name, folder / "reveal" / name)
    for path in (TEMPLATES / "slides.css", PRINT_OPEN):
        shutil.copy(path, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the decks of the lessons named on the command line, or of all."""
    parser = argparse.ArgumentParser(prog="python -m course.tools.slides", description="Write the slides.")
    parser.add_argument("lesson", nargs="*", help="number (02) or stem; none means all")
    parser.add_argument("--reveal", type=Path, required=True, help="the folder of reveal.js")
    parser.add_argument("--folder", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    copy_reveal(options.reveal, options.folder)
    for source in lesson_sources(options.lesson):
        notebook = deck(source)
        path = options.folder / f"{stem(source)}.html"
        path.write_text(html(notebook, label(source)), encoding="utf-8")
        kinds = [_kind(cell) for cell in notebook.cells]
        print(f"{path}: {kinds.count('slide') + kinds.count('subslide')} pages, {kinds.count(NOTES)} notes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
