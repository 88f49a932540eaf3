"""What a test of checkpoints leaves as it was."""

from collections.abc import Iterator

import pytest

from course_lib.parallel import checkpoint, checkpoint_folder


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No lock and no random-number state outlives its test."""
    state = checkpoint.random_state()
    yield
    checkpoint.restore_random_state(state)
    checkpoint_folder._forget_locks()
