"""Every instant at which saving can end: after each operation on a file, one after the other.

What is killed is a process whose operations on files fail from the n-th on, so that nothing cleans up.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from course_lib.parallel.checkpoint import CheckpointError, disk, find, folder, save
from course_lib.parallel.checkpoint.disk import write_tensors, write_text
from course_lib.parallel.checkpoint.folder import (
    LATEST,
    MANIFEST,
    SAVING,
    as_text,
    check_file,
    describe,
    names,
    read_manifest,
)

COMM = MPI.COMM_SELF
EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR
NEVER = 10**9
MANIFEST_SCRATCH = f".{MANIFEST}.{os.getpid()}"  # renamed to its name when it is on disk


class KilledError(BaseException):
    """Not an Exception: nothing catches it."""


class Kill:
    """Counts what changes files below a folder; from operation `at` on none of them happens."""

    def __init__(self) -> None:
        self.folder, self.at, self.done = "", NEVER, 0
        self.log: list[tuple[str, str]] = []
        sys.addaudithook(self.hook)  # for good, but it is asleep

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event in EVENTS:
            self.count(event, self.path(arguments[0], arguments[-1]))
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.count(event, str(arguments[0]))

    def path(self, name: Any, folder: object) -> str:
        """rmtree names what it removes beside the descriptor of its folder."""
        known = isinstance(folder, int) and folder >= 0
        return str(Path(os.readlink(f"/proc/self/fd/{folder}"), name)) if known else str(name)

    def count(self, event: str, path: str) -> None:
        if path.startswith(self.folder):
            if self.done >= self.at:
                raise KilledError
            self.done += 1
            self.log.append((event, path))

    @contextmanager
    def watching(self, folder: Path, at: int = NEVER) -> Iterator["Kill"]:
        """Operations in `folder` are counted, and fail from `at` on."""
        self.at, self.done, self.log = at, 0, []
        right_sync, right_write = os.fsync, disk.Watched.write

        def fsync(descriptor: int) -> None:
            self.count("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            right_sync(descriptor)

        def write(watched: disk.Watched, data: bytes) -> int:
            self.count("write", watched.file.name)
            return right_write(watched, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            patch.setattr(disk.Watched, "write", write)
            self.folder = str(folder)
            try:
                yield self
            finally:
                self.folder = ""


KILL = Kill()


def write_files(step: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "more").mkdir(exist_ok=True)
        write_tensors(path / "rank0.pt", {"step": step})
        write_tensors(path / "more" / "rank0.pt", {"step": step})

    return write


def right(into: Path, step: int) -> None:
    save(COMM, into, write_files(step), step=step, keep=1)


# ---------------------------------------------------------------------------- known-wrong


def in_place(into: Path, step: int) -> None:
    """Known-wrong: the new files over the old ones."""
    path = into / names(into)[0]
    write_files(step)(path)
    (path / MANIFEST).unlink()
    files = describe(COMM, path)
    write_text(path / MANIFEST, as_text({"step": step, "ranks": 1, "progress": {}, "files": files}))


def latest_first(into: Path, step: int) -> None:
    """Known-wrong: `latest` names what is not there yet."""
    path = into / f"000002-step{step}"
    write_text(into / LATEST, path.name)
    path.mkdir()
    write_files(step)(path)
    write_text(
        path / MANIFEST, as_text({"step": step, "ranks": 1, "progress": {}, "files": describe(COMM, path)})
    )


def old_one_first(into: Path, step: int) -> None:
    """Known-wrong: room is made before there is a new one."""
    for name in names(into):
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
            with KILL.watching(into, at):
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
    files = (found.path / "rank0.pt", found.path / "more" / "rank0.pt")
    steps = {found.step, *(disk.read_tensors(file)["step"] for file in files)}
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
        assert latest_is_whole(into), KILL.log[-1]
        found.append(step_read(into))
        right(into, 3)  # over what the kill has left
        assert step_read(into) == 3
        assert sorted(path.name for path in into.iterdir())[1:] == [LATEST], "nothing else is left"
    assert found == sorted(found) and set(found) == {1, 2}  # the old one until an instant, then the new one


@pytest.mark.parametrize("saving", WRONG)
def test_what_is_wrong_is_caught_at_some_instant(tmp_path: Path, saving: Callable[[Path, int], None]) -> None:
    assert not all(step_read(into) > 0 and latest_is_whole(into) for into in instants(tmp_path, saving))


# ---------------------------------------------------------------------------- a power cut


def write_unsynced(path: Path) -> None:
    """As others write that we do not know."""
    (path / "more").mkdir()
    for name in ("rank0.pt", "more/rank0.pt"):
        (path / name).write_bytes(b"numbers")


def on_disk_when_named(tmp_path: Path) -> bool:
    """Whether what is written aside is synced before the folder is named, and that before `latest` is."""
    with KILL.watching(tmp_path) as kill:
        save(COMM, tmp_path, write_unsynced, step=1)
    log, aside = kill.log, tmp_path / SAVING
    named = log.index(("os.rename", str(aside)))
    told = next(i for i, (event, path) in enumerate(log) if event == "os.rename" and f".{LATEST}." in path)
    in_time = [
        ("fsync", str(aside / name)) in log[log.index(("open", str(aside / name))) : named]
        for name in ("rank0.pt", "more/rank0.pt", MANIFEST_SCRATCH)
    ]
    in_time += [("fsync", str(each)) in log[:named] for each in (aside, aside / "more")]
    return all(in_time) and all(("fsync", str(tmp_path)) in part for part in (log[named:told], log[told:]))


def test_files_and_folders_are_on_disk_before_they_are_named(tmp_path: Path) -> None:
    assert on_disk_when_named(tmp_path)


@pytest.mark.parametrize("forgotten", ["sync_file", "sync_folder"])
def test_what_is_not_synced_is_caught(
    tmp_path: Path, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known-wrong: a file, or the names in a folder, may be lost by a power cut."""
    monkeypatch.setattr(folder, forgotten, lambda path: None)
    assert not on_disk_when_named(tmp_path)
