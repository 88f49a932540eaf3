"""Sources of lessons that tests write."""

from pathlib import Path

HEADER = """\
# ---
# title: Middle
# goal: Do one thing well.
# able: [do it]
# before: Python
# minutes: {core: 16, more: 13}
# ranks: 4
# warm-up: [{ask: 1, answer: 1}, {ask: 2, answer: 2}, {ask: 3, answer: 3}]
# ---

"""


def write_source(folder: Path, text: str, stem: str = "01_try") -> Path:
    """A source in the checkout `folder`, whose notebook would be in `folder`/notebooks."""
    source = folder / "course" / "lessons" / f"l{stem}" / "lesson.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    (folder / "notebooks").mkdir(exist_ok=True)
    source.write_text(text)
    return source
