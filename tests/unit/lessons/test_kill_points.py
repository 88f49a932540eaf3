"""Savers killed before each of their file operations: which of them lose the file."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from course.lessons.l15_when_things_fail.kill_points import (
    HALF,
    LOST,
    NEW_STATE,
    OLD_STATE,
    Instant,
    SaverError,
    kill_at_every_step,
    survives,
    table,
)
from course_lib.training.saving import atomic_save, naive_save, renaming_save


def after_kill(instants: list[Instant]) -> list[str]:
    return [each.after_kill for each in instants]


def test_the_naive_saver_loses_the_file_to_a_kill() -> None:
    found = kill_at_every_step(naive_save)
    assert after_kill(found) == [OLD_STATE, LOST, HALF, NEW_STATE]
    assert [each.operation for each in found][:2] == ["open checkpoint", "write checkpoint"]
    assert not survives(found)


def test_renaming_survives_a_kill_and_not_a_power_cut() -> None:
    found = kill_at_every_step(renaming_save)
    assert set(after_kill(found)) <= {OLD_STATE, NEW_STATE}
    assert found[-1].after_power_cut == LOST
    assert not survives(found)


def test_the_atomic_saver_survives_both() -> None:
    found = kill_at_every_step(atomic_save)
    assert {state for each in found for state in (each.after_kill, each.after_power_cut)} == {
        OLD_STATE,
        NEW_STATE,
    }
    assert found[-1].after_power_cut == NEW_STATE
    assert survives(found)
    assert "fsync the folder" in table(found)


# ------------------------------------------------------------------ known-wrong, and right in other words


def no_flush(path: Path, data: bytes) -> None:
    """Known-wrong: fsync comes while the bytes are still in Python's buffer."""
    aside = path.with_suffix(".new")
    with open(aside, "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    os.replace(aside, path)


def removes_first(path: Path, data: bytes) -> None:
    """Known-wrong: between remove and rename there is no file."""
    aside = path.with_suffix(".new")
    aside.write_bytes(data)
    path.unlink()
    aside.rename(path)


def copies_back(path: Path, data: bytes) -> None:
    """Known-wrong: a copy over the old file is written in place, too."""
    aside = path.with_suffix(".new")
    aside.write_bytes(data)
    shutil.copyfile(aside, path)


def only_new(path: Path, data: bytes) -> None:
    """Known-wrong: refuses what a killed save has left behind."""
    aside = path.with_suffix(".new")
    with open(aside, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)


def no_folder_sync(path: Path, data: bytes) -> None:
    """Known-wrong, a little: it returns before the new name is on the disk."""
    aside = path.with_suffix(".new")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def with_tempfile(path: Path, data: bytes) -> None:
    """Right, with low-level calls and a name that nobody else has."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)


@pytest.mark.parametrize(
    "save, operation, state",
    [
        (no_flush, "the end", LOST),
        (removes_first, "rename checkpoint.new to checkpoint", LOST),
        (copies_back, "rest of write checkpoint", HALF),
    ],
)
def test_wrong_savers_are_caught_at_the_instant(
    save: Callable[..., None], operation: str, state: str
) -> None:
    found = kill_at_every_step(save)
    assert not survives(found)
    (bad,) = [each for each in found if each.operation == operation]
    assert state in (bad.after_kill, bad.after_power_cut)


def test_a_saver_that_stumbles_over_its_own_leftovers_is_caught() -> None:
    found = kill_at_every_step(only_new)
    assert set(after_kill(found)) <= {OLD_STATE, NEW_STATE}
    assert not all(each.again for each in found)
    assert not survives(found)


def test_returning_before_the_name_is_on_the_disk_is_caught() -> None:
    found = kill_at_every_step(no_folder_sync)
    assert found[-1].after_power_cut == OLD_STATE
    assert not survives(found)


def test_another_right_saver_survives() -> None:
    assert survives(kill_at_every_step(with_tempfile))


def test_a_saver_that_raises_is_told_with_its_words() -> None:
    def broken(path: Path, data: bytes) -> None:
        undefined_name(path)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SaverError, match=r"NameError: name 'undefined_name'.*inside the function"):
        kill_at_every_step(broken)
    with pytest.raises(SaverError, match="is not a function"):
        kill_at_every_step(print)


def test_a_saver_that_writes_byte_by_byte_is_refused() -> None:
    def slowly(path: Path, data: bytes) -> None:
        with open(path, "wb", buffering=0) as file:
            for byte in data:
                file.write(bytes([byte]))

    with pytest.raises(SaverError, match="more than 100 operations"):
        kill_at_every_step(slowly)
