"""What a kill before each line leaves of a file, by saver."""

from pathlib import Path

import pytest

from course_lib.training.saving import atomic_save, kill_before_each_line, naive_save


def test_the_naive_saver_loses_the_file_between_open_and_close() -> None:
    assert kill_before_each_line(naive_save) == ["old", "empty", "empty", "new"]


def test_the_atomic_saver_leaves_the_old_file_or_the_new_one() -> None:
    *killed, last = kill_before_each_line(atomic_save)
    assert set(killed) == {"old", "new"}
    assert last == "new"
    assert killed == sorted(killed, reverse=True)  # once it is new, it stays


def test_a_saver_that_cuts_the_file_short_is_seen() -> None:
    def in_parts(path: Path, data: bytes) -> None:
        path.write_bytes(data[:100])
        path.write_bytes(data)

    assert kill_before_each_line(in_parts) == ["old", "a part", "new"]


def test_a_saver_that_raises_is_no_kill() -> None:
    def broken(path: Path, data: bytes) -> None:
        raise OSError

    with pytest.raises(RuntimeError, match="the saver raised"):
        kill_before_each_line(broken)
