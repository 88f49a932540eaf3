"""Outputs are folded exactly between a question and its answer, on the site and on slides."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course.tools.folds import FOLD_RULES, OUTPUT_TITLE, folded
from course.tools.lesson import LessonSource
from course.tools.site.lessons import fold_outputs
from course.tools.slides import _column, _mark_folds, html
from tests.unit.lessons.sources import write_source

FOLD = "<details><summary>Open after you have run the cell</summary>\n\n**Twice** as far.\n\n</details>"
GUESS, RESULT = 'predict("Seconds?", None)', 'outcome("Seconds?", 2)'
VOTE = "How far off? **Vote:** 1 or 2?"


def text(source: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source)


def code(source: str) -> NotebookNode:
    shown = nbformat.v4.new_output("stream", text=f"output of {source}\n")
    return nbformat.v4.new_code_cell(source, outputs=[shown])


def closed(*cells: NotebookNode) -> list[str]:
    """The sources of the cells whose outputs are folded."""
    return [cell.source for cell, is_closed in zip(cells, folded(cells), strict=True) if is_closed]


def test_what_is_shown_between_a_vote_and_its_fold_is_folded() -> None:
    assert closed(code("a"), text(VOTE), code("b"), text("Now c."), code("c"), text(FOLD), code("d")) == [
        "b",
        "c",
    ]


def test_what_is_shown_from_a_prediction_to_its_outcome_is_folded() -> None:
    assert closed(code("a"), code(GUESS), code("%%px\nb"), code(RESULT), code("c")) == ["%%px\nb", RESULT]


def test_without_an_answer_in_its_section_nothing_is_folded() -> None:
    assert closed(text(VOTE), code("a"), text("## 2 · Next"), text(FOLD)) == []
    assert closed(code(GUESS), code("a"), text("Words.\n\n## 2 · Next"), code(RESULT)) == []


# -------------------------------------------------------------------- the site and the slides


def lesson() -> list[NotebookNode]:
    return [text("## 1 · Darts"), code("a"), text(VOTE), code("b"), text(FOLD), code("c")]


def test_the_site_folds_the_output_of_these_cells_alone() -> None:
    cells = lesson()
    fold_outputs(cells)
    assert [cell.source for cell in cells if "fold" in cell.metadata] == ["b"]


def test_slides_open_these_outputs_and_the_answer_at_a_key_press() -> None:
    notebook = nbformat.v4.new_notebook(cells=lesson())
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "python3"}
    _mark_folds(notebook.cells)
    notebook.cells[0].metadata["slideshow"] = {"slide_type": "slide"}
    notebook.cells = list(_column(notebook.cells))
    page = html(notebook, "Darts")
    opened = re.findall(r'<details class="fragment custom fold">(.*?)</details>', page, re.DOTALL)
    assert len(opened) == 2
    assert OUTPUT_TITLE in opened[0] and "output of b" in opened[0]
    assert "<strong>Twice</strong>" in opened[1], "markdown in a fold is markdown"
    outside = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert "output of a" in outside and "output of c" in outside and "output of b" not in outside


# -------------------------------------------------------------------- rules

SOURCE = """\
# ---
# title: Darts
# goal: Throw.
# able: [throw]
# before: "00"
# minutes: {core: 20, more: 5}
# ranks: 4
# warm-up: [{ask: x, answer: a}, {ask: y, answer: b}, {ask: z, answer: c}]
# ---

# %% [markdown]
# ## 1 · How good?
#
# **Vote:** 1 or 2?

# %%
print(2)

# %% [markdown]
# <details><summary>Open after you have run the cell</summary>
#
# It is **2**.
#
# </details>

# %% [markdown]
# ## 2 · Next

# %% [markdown] tags=["more"]
# ## More
"""
UNFOLDED = SOURCE.replace("# <details><summary>Open after you have run the cell</summary>\n#\n", "").replace(
    "#\n# </details>\n", ""
)


@pytest.fixture
def check(tmp_path: Path):  # type: ignore[no-untyped-def]
    """What the rules say of a lesson with this source: cells (1 asks) and sentences."""

    def found(words: str) -> list[tuple[int, str]]:
        lesson = LessonSource(write_source(tmp_path, words, "70_darts"))
        before = next(n for n, cell in enumerate(lesson.cells) if "How good?" in cell.source)
        return [(n - before, sentence) for rule in FOLD_RULES for n, sentence in rule(lesson)]

    return found


@pytest.mark.parametrize(
    ("source", "cell", "sentence"),
    [
        (UNFOLDED, 1, "the vote or prediction in this text is not answered before the next '## '"),
        (UNFOLDED.replace("print(2)", 'predict("?", 1)'), 2, "predict('?', …) is not answered"),
        (SOURCE.replace("print(2)", "print(2)\n\n# %% [markdown]\n# ### Always 2"), 3, "this may tell"),
        (SOURCE.replace("print(2)", "print(2)\n\n# %% [markdown]\n# | 1 | 2 |"), 3, "this may tell"),
        (SOURCE.replace("</summary>\n#\n", "</summary>\n"), 3, "put an empty line after </summary>"),
    ],
    ids=["no fold", "no outcome", "heading", "table", "raw markdown"],
)
def test_what_gives_an_answer_away_or_leaves_it_out_is_found(check, source, cell, sentence) -> None:  # type: ignore[no-untyped-def]
    assert check(SOURCE) == []
    assert source != SOURCE
    assert any(n == cell and sentence in words for n, words in check(source))
