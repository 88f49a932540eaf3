"""What the decks are made of, before a browser sees them."""

import re
from pathlib import Path

import nbformat
import pytest

from course.paths import LESSONS
from course.tools.build import NOTES, lesson_sources, notebook_of
from course.tools.slides import deck
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of

FIRST = LESSONS / "l01_mpi_basics" / "lesson.py"
SHOWN = re.compile(r"-shown-\d+$")


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
    assert "## Key points" in shown
    assert ("## Discuss" in shown) == (source.parent.name != "l00_start_here"), "which has none"
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
