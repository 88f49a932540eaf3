"""While a large package is imported, and only then, the garbage collector looks at young objects only."""

import gc
import importlib
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from mpi_classroom import quick_imports


@pytest.mark.parametrize("ends", ["", "raise ImportError('half of it is missing')"])
def test_the_collector_is_as_before_after_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    seen = tmp_path / "seen"
    code = f"import gc, pathlib\npathlib.Path({str(seen)!r}).write_text(str(gc.get_threshold()))\n{ends}"
    (tmp_path / "vast.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(quick_imports, "LARGE", ("vast",))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    quick_imports.install()
    before = gc.get_threshold()
    with suppress(ImportError):
        importlib.import_module("vast")
    sys.modules.pop("vast", None)
    assert seen.read_text() == str((before[0], 1000, 1000))
    assert gc.get_threshold() == before
