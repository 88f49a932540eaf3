"""Where things are: the checkout that this package is installed from, editable."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "source"
MY_COURSE = ROOT / "my_course"
BUILD = ROOT / "build"
