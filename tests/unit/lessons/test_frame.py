"""The frame that the build puts around a lesson: what it shows, and what it refuses."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.tools.frame import SETUP, TEARDOWN, FrameError, framed, read_frame

YAML = """\
# ---
# title: {title}
# goal: Do one thing well.
# able: [do it, say why]
# before: "{{00}}; Python"
# minutes: {{core: 20, more: 15}}
# ranks: 4
# warm-up:
#   - {{ask: One, answer: 1}}
#   - {{ask: Two, answer: 2}}
#   - {{ask: Three, answer: 3}}
# ---
"""
FIRST = YAML.partition("# warm-up")[0].replace('"{{00}}; Python"', "Python") + "# ---\n"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A folder with the sources of three lessons."""
    for stem, text in {"00_start_here": FIRST, "01_middle": YAML, "02_last": YAML}.items():
        source = tmp_path / f"l{stem}" / "lesson.py"
        source.parent.mkdir()
        source.write_text(text.format(title=stem[3:].title()))
    return tmp_path


def test_a_lesson_gets_header_navigation_warm_up_setup_and_teardown(course: Path) -> None:
    own = [new_markdown_cell("## 1 · One step"), new_code_cell("x = 1")]
    header, warm_up, setup, start, step, _, teardown, stop = framed(course / "l01_middle" / "lesson.py", own)
    assert header.source.startswith("# 01 · Middle\n\n*Do one thing well.*\n")
    assert "| **You will be able to** | do it; say why |" in header.source
    assert "| **Before this** | [00 · Start_Here](00_start_here.ipynb); Python |" in header.source
    assert header.source.endswith(
        "[← 00 · Start_Here](00_start_here.ipynb) · [Course map](00_start_here.ipynb#The-course) · "
        "[02 · Last →](02_last.ipynb)"
    )
    assert warm_up.source.count("<details><summary>Answer</summary>") == 3
    assert (setup.source, start.source, step.source) == ("## Setup", SETUP, "## 1 · One step")
    assert teardown.source.endswith("#The-course) · [02 · Last →](02_last.ipynb)")
    assert stop.source == TEARDOWN


def test_setup_follows_the_words_that_a_lesson_has_for_it(course: Path) -> None:
    own = [
        new_markdown_cell("Hello."),
        new_markdown_cell("## Setup\n\nFour processes."),
        new_code_cell("x = 1"),
    ]
    cells = framed(course / "l00_start_here" / "lesson.py", own)
    assert [cell.source for cell in cells[1:5]] == ["Hello.", "## Setup\n\nFour processes.", SETUP, "x = 1"]


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        ("# goal: Do one thing well.\n", "", "lacks goal"),
        ("core: 20", "core: 21", "the core takes 21 min; move something to More"),
        ("{core: 20, more: 15}", "35", "the minutes must read {core: 20, more: 15}"),
        ("{core: 20, more: 15}", "{more: 15}", "or {core: 20} without More"),
        ("ranks: 4", "ranks: four", "the ranks must be one number"),
        ("#   - {ask: Three, answer: 3}\n", "", "the warm-up has 2 questions"),
        ("# ranks", "# rank: 3\n# ranks", "the YAML has rank; it may have title"),
        ("# able: [", "# able: [[", "cannot be read"),
        ("# ---\n# title", "# title", "the source must begin with '# ---'"),
        ("{00}", "{07}", "'before' names lesson 07; there are 00, 01, 02"),
    ],
)
def test_a_frame_that_is_wrong_is_refused_with_the_remedy(
    course: Path, good: str, bad: str, sentence: str
) -> None:
    source = course / "l01_middle" / "lesson.py"
    text = source.read_text()
    assert good in text
    source.write_text(text.replace(good, bad))
    with pytest.raises(FrameError) as raised:
        framed(source, [])
    assert sentence in str(raised.value)


def test_the_objectives_of_core_and_more_are_counted_through(course: Path) -> None:
    source = course / "l01_middle" / "lesson.py"
    source.write_text(source.read_text().replace("# before", "# more: [go on]\n# before"))
    assert read_frame(source).objectives == ("do it", "say why", "go on")


def test_a_lesson_without_more_is_an_elective(course: Path) -> None:
    source = course / "l01_middle" / "lesson.py"
    assert not read_frame(source).elective
    source.write_text(source.read_text().replace("{core: 20, more: 15}", "{core: 20}"))
    assert read_frame(source).elective
    assert "| **Time** | core 20 min |" in framed(source, [])[0].source
    source.write_text(source.read_text().replace("# before", "# more: [go on]\n# before"))
    with pytest.raises(FrameError, match="objectives of More and no minutes for it"):
        read_frame(source)
