"""Every instant at which saving can end or fail: at each operation on a file, one after the other.

What is killed is a process whose operations on files fail from the n-th on, so that nothing cleans up. What
fails is one operation, or all from the n-th on: a disk that is full, or broken.
"""

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from course_lib.parallel import checkpoint_folder
from course_lib.parallel.checkpoint_folder import (
    LATEST,
    LOCK,
    MANIFEST,
    REMOVING,
    SAVING,
    CheckpointError,
    as_text,
    check_file,
    find,
    names_in,
    read_manifest,
    read_tensors,
    save,
    sync_and_describe,
    write_tensors,
)
from course_lib.training import saving
from course_lib.training.saving import atomic_save

COMM = MPI.COMM_SELF
EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.listdir", "os.scandir")
NEVER = 10**9
MANIFEST_SCRATCH = f"{MANIFEST}.new"  # renamed to its name when it is on disk


def opening(write: Callable[[io.FileIO, memoryview], int]) -> Callable[[Path, str], io.BufferedIOBase]:
    """As `open`, for bytes; files that are written to are written by `write`."""

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            return write(self, memoryview(data))

    return lambda path, mode: io.BufferedWriter(File(path, "w")) if mode == "wb" else path.open("rb")


class KilledError(BaseException):
    """Not an Exception: nothing catches it."""


class Injector:
    """Counts operations on files below a folder, and lets them fail from operation `at` on, or that one."""

    def __init__(self) -> None:
        self.folder, self.at, self.once, self.done = "", NEVER, False, 0
        self.error: BaseException = KilledError()
        self.log: list[tuple[str, str]] = []
        sys.addaudithook(self.hook)  # for good, but it is asleep

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event in EVENTS:
            self.count(event, self.path(arguments[0], arguments[-1]))
        elif event == "open" and isinstance(arguments[2], int):
            self.count(event, str(arguments[0]))

    def path(self, name: Any, folder: object) -> str:
        """rmtree names what it removes beside the descriptor of its folder."""
        if isinstance(name, int):
            return os.readlink(f"/proc/self/fd/{name}")
        known = isinstance(folder, int) and folder >= 0
        return str(Path(os.readlink(f"/proc/self/fd/{folder}"), name)) if known else str(name)

    def count(self, event: str, path: str) -> None:
        if path.startswith(self.folder):
            self.done += 1
            if self.done - 1 == self.at or (self.done > self.at and not self.once):
                raise self.error
            self.log.append((event, path))

    @contextmanager
    def watching(
        self, folder: Path, at: int = NEVER, error: BaseException | None = None, *, once: bool = False
    ) -> Iterator["Injector"]:
        """Operations in `folder` are counted, and fail with `error` (default: a kill)."""
        self.at, self.once, self.done, self.log = at, once, 0, []
        self.error = error or KilledError()
        right_sync = os.fsync

        def fsync(descriptor: int) -> None:
            self.count("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            right_sync(descriptor)

        def write(file: io.FileIO, data: memoryview) -> int:
            try:
                self.count("write", str(file.name))
            except OSError:
                io.FileIO.write(file, data[: len(data) // 2])  # a full disk takes a part
                raise
            return io.FileIO.write(file, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            for module in (checkpoint_folder, saving):
                patch.setattr(module, "open", opening(write), raising=False)
            self.folder = str(folder)
            try:
                yield self
            finally:
                self.folder = ""


INJECTOR = Injector()


def write_files(step: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_tensors(path / "rank0.pt", {"step": step})

    return write


def right(into: Path, step: int) -> None:
    save(COMM, into, write_files(step), step=step, keep=1)


# ---------------------------------------------------------------------------- known-wrong


def in_place(into: Path, step: int) -> None:
    """Known-wrong: the new files over the old ones."""
    path = into / names_in(into)[0]
    write_files(step)(path)
    (path / MANIFEST).unlink()
    files = {"rank0.pt": sync_and_describe(path / "rank0.pt")}
    about = as_text({"step": step, "ranks": 1, "progress": {}, "files": files})
    atomic_save(path / MANIFEST, about.encode())


def latest_first(into: Path, step: int) -> None:
    """Known-wrong: `latest` names what is not there yet."""
    path = into / f"000002-step{step}"
    atomic_save(into / LATEST, path.name.encode())
    path.mkdir()
    write_files(step)(path)
    files = {"rank0.pt": sync_and_describe(path / "rank0.pt")}
    about = as_text({"step": step, "ranks": 1, "progress": {}, "files": files})
    atomic_save(path / MANIFEST, about.encode())


def old_one_first(into: Path, step: int) -> None:
    """Known-wrong: room is made before there is a new one."""
    for name in names_in(into):
        shutil.rmtree(into / name)
    right(into, step)


WRONG = [in_place, latest_first, old_one_first]


def instants(tmp_path: Path, saving: Callable[[Path, int], None]) -> Iterator[Path]:
    """A folder for each instant at which `saving` step 2, after step 1, can be killed."""
    before = tmp_path / "before"
    right(before, 1)
    for at in range(NEVER):
        into = tmp_path / f"at{at}"
        shutil.copytree(before, into)
        try:
            with INJECTOR.watching(into, at):
                saving(into, 2)
        except KilledError:
            yield into
        else:
            yield into
            assert at > 10
            return


def step_read(into: Path) -> int:
    """The step that is found, which all of its files have; -1 when nothing can be read."""
    try:
        found = find(COMM, into)
    except CheckpointError:
        return -1
    if found is None:
        return -1
    steps = {found.step, read_tensors(found.path / "rank0.pt")["step"]}
    return steps.pop() if len(steps) == 1 else -1


def latest_is_whole(into: Path) -> bool:
    """Whether one who believes `latest` reads a whole checkpoint."""
    path = into / (into / LATEST).read_text().strip()
    try:
        for name, facts in read_manifest(path)["files"].items():
            check_file(path / name, facts)
    except CheckpointError:
        return False
    return True


def test_whenever_saving_is_killed_a_whole_checkpoint_is_there(tmp_path: Path) -> None:
    found = []
    for into in instants(tmp_path, right):
        assert latest_is_whole(into), INJECTOR.log[-1]
        found.append(step_read(into))
        right(into, 3)  # over what the kill has left
        assert step_read(into) == 3
        assert {path.name for path in into.iterdir()} == {LOCK, LATEST, names_in(into)[0]}, "nothing else"
    assert found == sorted(found) and set(found) == {1, 2}  # the old one until an instant, then the new one


@pytest.mark.parametrize("saving", WRONG)
def test_what_is_wrong_is_caught_at_some_instant(tmp_path: Path, saving: Callable[[Path, int], None]) -> None:
    assert not all(step_read(into) > 0 and latest_is_whole(into) for into in instants(tmp_path, saving))


# ---------------------------------------------------------------------------- a power cut


def write_unsynced(path: Path) -> None:
    """As others write that we do not know."""
    (path / "rank0.pt").write_bytes(b"numbers")


def on_disk_when_named(tmp_path: Path) -> bool:
    """Whether what is written aside is synced before the folder is named, and that before `latest` is."""
    with INJECTOR.watching(tmp_path) as seen:
        save(COMM, tmp_path, write_unsynced, step=1)
    log, aside = seen.log, tmp_path / SAVING
    named = log.index(("os.rename", str(aside)))
    pointed = next(
        i for i, (event, path) in enumerate(log) if event == "os.rename" and path.endswith(f"{LATEST}.new")
    )
    in_time = [
        ("fsync", str(aside / name)) in log[log.index(("open", str(aside / name))) : named]
        for name in ("rank0.pt", MANIFEST_SCRATCH)
    ]
    in_time += [("fsync", str(aside)) in log[:named]]
    folder = ("fsync", str(tmp_path))
    return all(in_time) and folder in log[named:pointed] and folder in log[pointed:]


def test_files_and_folders_are_on_disk_before_they_are_named(tmp_path: Path) -> None:
    assert on_disk_when_named(tmp_path)


@pytest.mark.parametrize("forgotten", [Path.is_file, Path.is_dir])
def test_what_is_not_synced_is_caught(
    tmp_path: Path, forgotten: Callable[[Path], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known-wrong: a file, or the names in a folder, may be lost by a power cut."""
    right_sync = checkpoint_folder.sync
    monkeypatch.setattr(checkpoint_folder, "sync", lambda path: None if forgotten(path) else right_sync(path))
    assert not on_disk_when_named(tmp_path)


# ---------------------------------------------------------------------------- an operation that fails


def failed_saves(tmp_path: Path, number: int, *, once: bool) -> Iterator[tuple[Path, str]]:
    """A folder for each operation of saving step 2, after step 1 and a kill, that fails; and the message."""
    before = tmp_path / "before"
    right(before, 1)
    for name in (SAVING, f"{REMOVING}-000000-step0"):
        (before / name).mkdir()
        (before / name / "rank0.pt").write_bytes(b"half of it")
    for at in range(NEVER):
        into = tmp_path / f"at{at}"
        shutil.copytree(before, into)
        said = ""
        with INJECTOR.watching(into, at, OSError(number, os.strerror(number)), once=once):
            try:
                right(into, 2)
            except CheckpointError as error:
                said = str(error)
        yield into, said
        if INJECTOR.done <= at:
            assert at > 20
            return


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["input/output error", "disk full"])
def test_a_save_that_fails_leaves_what_was_there_and_one_that_returns_has_saved(
    tmp_path: Path, number: int
) -> None:
    """Whichever operation fails, and that includes every write."""
    said_something = set()
    for into, said in failed_saves(tmp_path, number, once=True):
        said_something.add(bool(said))
        assert step_read(into) == (1 if said else 2), INJECTOR.log[-1]
        assert names_in(into)[0] == "000001-step1" or not said
        assert len(names_in(into)) == 1 or not said, "what failed has no name"
        if said and number == errno.ENOSPC:
            assert "no space is left" in said and "the one before is untouched" in said
        right(into, 3)  # when the disk works again
        assert step_read(into) == 3
        assert {path.name for path in into.iterdir()} == {LOCK, LATEST, names_in(into)[0]}
    assert said_something == {True, False}


def test_a_disk_that_breaks_for_good_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Nothing can be cleaned up."""
    for into, said in failed_saves(tmp_path, errno.EIO, once=False):
        assert step_read(into) in ((1, 2) if said else (2,)), INJECTOR.log[-1]
        right(into, 3)
        assert step_read(into) == 3
