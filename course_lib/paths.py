"""Where the data is: in the checkout that this package is installed from, editable."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
