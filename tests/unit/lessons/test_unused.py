"""What nothing uses is listed, and in our packages nothing is."""

from pathlib import Path

import pytest

from course.tools.unused import unused

LIBRARY = """
from lib.other import helper

SIZE, SPARE = 3, 4

def used(): return helper() + SIZE
def idle(): return circle()
def circle(): return idle()
def _own(): return 1

class Kept:
    def asked(self): return self._inside()
    def never(self): return 2
    def _inside(self): return 3
"""
OTHER = """
def helper(): return 1
def tagged(): return 2
def in_a_string(): return 3
def only_named(): return 4
"""
USER = """
from lib.main import Kept, used
# %% tags=["source: lib.other:tagged"]
# The library's `only_named` does it.
CODE = "from lib.other import in_a_string"
Kept().asked()
"""


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "main.py").write_text(LIBRARY)
    (tmp_path / "other.py").write_text(OTHER)
    return {"lib": tmp_path}


def names(packages: dict[str, Path], *texts: str) -> list[str]:
    return sorted(name for _, _, name in unused(packages, texts))


def test_names_that_only_use_each_other_are_listed(packages: dict[str, Path]) -> None:
    assert names(packages, USER) == ["Kept.never", "SPARE", "circle", "idle"]
