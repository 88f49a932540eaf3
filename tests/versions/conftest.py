"""What these tests leave on the disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """As pytest's, but removed at once: an environment takes gigabytes, and pytest would keep three."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
