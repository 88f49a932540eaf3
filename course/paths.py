"""Where things are: the checkout that this package is installed from, editable."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ROOT / "course" / "lessons"
NOTEBOOKS = ROOT / "notebooks"
MY_COURSE = ROOT / "my_course"
BUILD = ROOT / "build"
