"""One folder of Debian 13 for all tests of doors that need it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_13 import debian_13


@pytest.fixture(scope="session")
def debian() -> Iterator[Path]:
    with debian_13() as folder:
        yield folder
