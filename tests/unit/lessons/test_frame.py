"""The frame that the build puts around a lesson: what it shows, and what it refuses."""

from pathlib import Path

import pytest

from course.tools.frame import FrameError, framed, read_frame
from tests.unit.lessons.sources import write_source

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
        source = write_source(tmp_path, text.format(title=stem[3:].title()), stem)
    return source.parents[1]


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


def test_a_lesson_without_more_is_an_elective(course: Path) -> None:
    source = course / "l01_middle" / "lesson.py"
    assert not read_frame(source).elective
    source.write_text(source.read_text().replace("{core: 20, more: 15}", "{core: 20}"))
    assert read_frame(source).elective
    assert "| **Time** | core 20 min |" in framed(source, [])[0].source
    source.write_text(source.read_text().replace("# before", "# more: [go on]\n# before"))
    with pytest.raises(FrameError, match="objectives of More and no minutes for it"):
        read_frame(source)
