"""What tests of lessons share."""

from collections.abc import Iterator

import pytest

from course.tools import build


@pytest.fixture(scope="module")
def without_frame() -> Iterator[None]:
    """A lesson is its own cells: test_frame.py is about the frame."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "framed", lambda source, own: own)
        yield
