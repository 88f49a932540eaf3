"""Library code is shown with just the imports it needs, and the shown text runs by itself."""

import sys
from pathlib import Path

import pytest

from course.tools.shown import ShowError, shown

MODULE = """\
import math
from collections import Counter, OrderedDict as Ordered

LIMIT = 3


def plain(x):
    return x + 1


def again(n):
    return 1 if n < 1 else plain(n) + again(n - 1)


class Thing(Ordered):
    size: int = LIMIT

    def method(self):
        return [math.floor(i) for i in range(self.size)]


def broken():
    return undefined_name
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable package `sample_pkg` with the module above; it is never run."""
    folder = tmp_path / "sample_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sample_pkg", raising=False)
    return "sample_pkg.module"


def test_code_that_needs_nothing_is_shown_as_it_stands(package: str) -> None:
    assert shown(f"{package}:plain") == "def plain(x):\n    return x + 1"


def test_names_that_the_lesson_has_shown_before_are_not_imported_over_the_learners_copy(package: str) -> None:
    assert shown(f"{package}:again").splitlines()[0] == f"from {package} import plain"
    assert shown(f"{package}:again", before={"plain"}).splitlines()[0] == "def again(n):"


def test_a_class_comes_with_its_base_and_what_its_methods_use(package: str) -> None:
    lines = shown(f"{package}:Thing").splitlines()
    assert lines[:3] == [
        "import math",
        "from collections import OrderedDict as Ordered",
        f"from {package} import LIMIT",
    ]


def test_shown_library_code_runs_in_an_empty_namespace() -> None:
    namespace: dict[str, object] = {}
    exec(shown("course_lib.theory.partition:even_ranges"), namespace)
    assert namespace["even_ranges"](7, 3) == [range(3), range(3, 5), range(5, 7)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("sample_pkg.module:missing", "no function or class 'missing'"),
        ("sample_pkg.nowhere:plain", "no module 'sample_pkg.nowhere'"),
        ("sample_pkg.module:LIMIT", "no function or class 'LIMIT'"),
        ("sample_pkg.module:broken", "uses undefined_name, which sample_pkg.module does not define"),
    ],
)
def test_what_cannot_be_shown_says_why(package: str, reference: str, sentence: str) -> None:
    with pytest.raises(ShowError, match=sentence):
        shown(reference)
