"""A good lesson passes; for every rule, one that breaks only this rule is found, with its cell."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course.tools import frame, glossary, guide, lint, schedule
from course.tools.anatomy import RULES
from course.tools.build import compose, notebook_of, source_of
from course.tools.parts import RUN_SECONDS

LESSON = """\
# ---
# title: Middle
# goal: Do one thing well.
# able: [do it, say why]
# before: "{00}; for example [its first step](00_start_here.ipynb#1-·-One-step)"
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up:
#   - {ask: One, answer: 1}
#   - {ask: Two, answer: 2}
#   - {ask: Three, answer: 3}
# ---

# %% [markdown]
# ## 1 · One step
#
# Words, ![a red dot on a line](dot.png), [more](https://example.org/home/page), [a file](../docs/page.md#x).

# %% tags=["source: course_lib.theory.partition:even_ranges"]
# %%px

# %%
x = 1

# %%
y = 2

# %% [markdown]
# ## On a cluster
# ## Key points
# ## Discuss

# %% [markdown]
# **Stop here in a short workshop.**

# %% [markdown] tags=["more"]
# ## More
#
# ### 2 · Another step
#
# Back to [step one](#1-·-One-step).

# %% [markdown]
# ## References
"""
FIRST = (
    LESSON.replace("title: Middle", "title: Start here")
    .replace("{00}; for example [its first step](00_start_here.ipynb#1-·-One-step)", "some Python")
    .replace("warm-up:", "also: Hello.")
    .replace("#   - {ask: One, answer: 1}\n#   - {ask: Two, answer: 2}\n#   - {ask: Three, answer: 3}\n", "")
)
LAST = LESSON.replace("title: Middle", "title: Last")
STEMS = {"00_start_here": FIRST, "01_middle": LESSON, "02_last": LAST}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `notebooks` folder of a course of three lessons, built, held to their anatomy alone."""
    monkeypatch.setattr(lint, "SOURCE_RULES", RULES)
    monkeypatch.setattr(frame, "MAP", "Setup")
    for page in (glossary, guide, schedule):
        monkeypatch.setattr(page, "stale", list)
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("")
    (tmp_path / "notebooks" / "dot.png").write_bytes(b"")
    for stem, text in STEMS.items():
        source = source_in(notebooks, stem)
        source.parent.mkdir(parents=True)
        source.write_text(text)
    for stem in STEMS:
        pretend_to_build(source_in(notebooks, stem))
    return notebooks


def source_in(notebooks: Path, stem: str) -> Path:
    """The source of a lesson, in the checkout with these notebooks."""
    return source_of(notebooks / f"{stem}.ipynb")


def pretend_to_build(source: Path) -> None:
    """Write the notebook of `source` as if its cells had run without output."""
    notebook = compose(source)
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
    notebook.metadata["course"] = {RUN_SECONDS: {"core": 5, "more": 10}}
    nbformat.write(notebook, notebook_of(source))


def findings(course: Path, stem: str = "01_middle") -> list[tuple[str, int, str]]:
    """What the lint says of one lesson: file name, cell, sentence."""
    found = lint.lint_lesson(source_in(course, stem))
    return [(each.file.name, each.cell, each.sentence) for each in found]


def test_good_lessons_have_no_findings(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [findings(course, stem) for stem in STEMS] == [[], [], []]
    assert lint.main([], course) == 0
    assert capsys.readouterr().out == ""


def test_an_elective_has_neither_more_nor_a_stop_line(course: Path) -> None:
    source = source_in(course, "01_middle")
    head, _, rest = LESSON.replace("{core: 20, more: 15}", "{core: 20}").partition(
        "# %% [markdown]\n# **Stop"
    )
    ending = rest[rest.index("# %% [markdown]\n# ## References") :]
    source.write_text(head + ending)
    pretend_to_build(source)
    assert findings(course) == []
    source.write_text(head + "# %% [markdown]\n# **Stop here in a short workshop.**\n\n" + ending)
    pretend_to_build(source)
    assert [sentence for *_, sentence in findings(course)] == ["an elective ends with its core"]


LONG = "# %%\n" + "\n".join(f"a{n} = {n}" for n in range(26))

BAD_SOURCES = [
    (
        "order",
        "# ## Key points\n# ## Discuss\n",
        "# ## Discuss\n# ## Key points\n",
        9,
        "'## Discuss' does not come",
    ),
    (
        "early mark",
        "# %%\nx = 1",
        '# %% tags=["more"]\nx = 1',
        11,
        "no cell before it must",
    ),
    ("long cell", "# %%\ny = 2", LONG, 8, "26 lines of code are more than 25"),
    ("empty cell", "# %%\ny = 2", "# %%", 8, "the code cell is empty"),
    ("four in a row", "# %%\ny = 2", "# %%\ny = 2\n\n# %%\nz = 3", 9, "4th code cell in a row"),
    ("torn sentence", "# Words,", "# It is in section\n# 1. Words,", 5, "becomes a list"),
    ("lost picture", "x = 1", 'show(rows, x="a", y="b")\nx = 1', 7, "nobody sees the picture of show(…)"),
    ("markdown image", "![a red dot on a line](dot.png)", "![](dot.png)", 5, "has no alt text"),
    ("unknown tag", "# %%\nx = 1", '# %% tags=["skip-execution"]\nx = 1', 7, "'skip-execution' is not known"),
    ("path in code", "x = 1", 'x = open("/home/ada/x")', 7, "/home/ada/x is a path of one machine"),
    ("missing file", "../docs/page.md#x", "../docs/gone.md", 5, "leads to a file that does not exist"),
    ("missing anchor", "(#1-·-One-step)", "(#1-·-one-step)", 11, "leads to a heading that does not exist"),
    ("out of the project", "../docs/page.md#x", "../../page.md", 5, "leads out of the project"),
    ("other scheme", "../docs/page.md#x", "file:///x", 5, "leads to one machine or program"),
    ("unresolvable", "partition:even_ranges", "partition:odd_ranges", 6, "no function or class 'odd_ranges'"),
]


@pytest.mark.parametrize(
    ("good", "bad", "cell", "sentence"),
    [case[1:] for case in BAD_SOURCES],
    ids=[case[0] for case in BAD_SOURCES],
)
def test_a_lesson_that_breaks_a_rule_is_found(
    course: Path, good: str, bad: str, cell: int, sentence: str
) -> None:
    source = source_in(course, "01_middle")
    assert good in LESSON
    source.write_text(LESSON.replace(good, bad))
    found = [(n, text) for file, n, text in findings(course) if file == source.name]
    assert len(found) == 1, found
    assert found[0][0] == cell and sentence in found[0][1], found


# -------------------------------------------------------------------- the built notebook


def output(**data: str) -> NotebookNode:
    """A display with the given MIME types, written text__html."""
    return nbformat.v4.new_output(
        "display_data", {key.replace("__", "/"): value for key, value in data.items()}
    )


def stream(text: str) -> NotebookNode:
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def error() -> NotebookNode:
    return nbformat.v4.new_output("error", ename="ValueError", evalue="boom", traceback=["boom"])


BAD_OUTPUTS: list[tuple[str, Callable[[], NotebookNode], str]] = [
    ("error", error, "the cell raised ValueError"),
    ("path", lambda: stream("saved in /home/ada/course\n"), "has /home/ada/course, a path of one machine"),
    ("bare image", lambda: output(image__png="aGk=", text__plain="<Figure>"), "an image has no alt text"),
    ("lazy alt", lambda: output(text__html='<img alt="figure" src="x">'), "an image has no alt text"),
    ("huge", lambda: stream("x" * 700_000), "kB are more than 600"),
]


@pytest.mark.parametrize(
    ("make", "sentence"), [case[1:] for case in BAD_OUTPUTS], ids=[case[0] for case in BAD_OUTPUTS]
)
def test_an_output_that_must_not_be_shipped_is_found(
    course: Path, make: Callable[[], NotebookNode], sentence: str
) -> None:
    path = course / "01_middle.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[6].outputs = [make()]
    nbformat.write(notebook, path)
    ((file, n, text),) = findings(course)
    assert file == path.name and n == 7 and sentence in text


def test_a_notebook_that_does_not_follow_its_source_is_found(course: Path) -> None:
    source_in(course, "01_middle").write_text(LESSON.replace("y = 2", "y = 3"))
    assert findings(course) == [
        ("01_middle.ipynb", 8, "it is not what the source says now; run make notebooks LESSON=01")
    ]


def test_a_lesson_that_is_not_built_and_a_notebook_without_source_are_found(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (course / "02_last.ipynb").rename(course / "09_stray.ipynb")
    assert lint.main([], course) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("02_last.ipynb: cell 1: it is not built; run make notebooks LESSON=02")
    assert second.endswith(
        "09_stray.ipynb: cell 1: it has no source; write course/lessons/l09_stray/lesson.py, or remove it"
    )
