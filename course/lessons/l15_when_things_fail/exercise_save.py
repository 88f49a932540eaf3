"""Exercise 15.1: a file that is whole whenever its writer is killed, and when the power fails.

The check runs the answer once on real files and looks at `path` after each operation: that is what a kill at
this moment leaves behind. Every `write` counts as two operations, with half of the data each. For a power cut
it keeps of each file what the last fsync saw, and forgets the rest.
"""

import builtins
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect
from mpi_classroom.launch import job_folder

OLD, NEW = b"step 4: old weights", b"step 8: new weights, and more of them than before"
KILL, POWER = "a kill", "a power cut"
FILE = "training.pt"


@dataclass(frozen=True, slots=True)
class Moment:
    """What is at `path` after an operation: for a reader, and on the disk; None when there is no file."""

    after: str
    seen: bytes | None
    on_disk: bytes | None


class HalfWriter:
    """A file that was opened for writing; each `write` is two operations, with half of the data each."""

    def __init__(self, file: Any, note: Callable[[str], None]) -> None:
        self._file, self._note = file, note

    def write(self, data: Any) -> int:
        """Write both halves. The first goes to the operating system at once."""
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._note("half of a `write`")
        self._file.write(data[half:])
        self._note("a `write`")
        return len(data)

    def close(self) -> None:
        """Close the file; what Python kept in its buffer is written."""
        self._file.close()
        self._note("closing a file")

    def __enter__(self) -> "HalfWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Disk:
    """Notes a Moment after each operation on files in `folder`."""

    def __init__(self, folder: Path, content: bytes | None) -> None:
        self.folder, self.path = folder, folder / FILE
        self.synced: dict[int, bytes] = {}  # by inode: what the last fsync of the file saw
        self.moments: list[Moment] = []
        if content is not None:
            self.path.write_bytes(content)
            self.synced[self.path.stat().st_ino] = content

    def note(self, after: str) -> None:
        """Look at the file now."""
        seen = on_disk = None
        if self.path.exists():
            seen = self.path.read_bytes()
            on_disk = self.synced.get(self.path.stat().st_ino, b"")
        self.moments.append(Moment(after, seen, on_disk))

    def has(self, path: Any) -> bool:
        """Whether `path` is a name in the folder."""
        return isinstance(path, str | os.PathLike) and Path(os.fspath(path)).parent == self.folder

    def sync(self, inode: int) -> None:
        """The file with this inode is on the disk as it is."""
        for path in self.folder.iterdir():
            if path.stat().st_ino == inode:
                self.synced[inode] = path.read_bytes()
        self.note("an `fsync`")


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """While this lasts, the disk notes what is opened, written, synced, renamed and removed."""
    names = ("fsync", "replace", "rename", "remove", "unlink")
    real = SimpleNamespace(open=io.open, **{name: getattr(os, name) for name in names})

    def open_(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        opened = real.open(file, mode, *more, **options)
        if not (disk.has(file) and set(mode) & set("wax+")):
            return opened
        disk.synced.pop(os.fstat(opened.fileno()).st_ino, None)
        disk.note("`open`")
        return HalfWriter(opened, disk.note)

    def fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        real.fsync(number)
        disk.sync(os.fstat(number).st_ino)

    def noting(what: str, do: Callable[..., None]) -> Callable[..., None]:
        def done(*paths: Any, **options: Any) -> None:
            do(*paths, **options)
            if any(disk.has(path) for path in paths):
                disk.note(what)

        return done

    changes: dict[tuple[Any, str], Any] = {(builtins, "open"): open_, (io, "open"): open_}
    changes[os, "fsync"] = fsync
    for name in names[1:]:
        what = "the rename" if name in ("replace", "rename") else "removing a file"
        changes[os, name] = noting(what, getattr(real, name))
    before = {place: getattr(*place) for place in changes}
    for (module, name), function in changes.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


# -------------------------------------------------------------------- the check


def _check_save(answer: SimpleNamespace, comm: Any, case: str) -> None:
    """A save over an old file, then the first save of all; each rank has a folder of its own."""
    for old in (OLD, None):
        with tempfile.TemporaryDirectory(dir=job_folder()) as name:
            disk = Disk(Path(name).resolve(), old)
            with watched(disk):
                answer.save(disk.path, NEW)
            disk.note("the return")
            expect(len(disk.moments) > 1, "returned and wrote no file in the folder of `path`.")
            for number, moment in enumerate(disk.moments):
                if case == KILL:
                    _after_kill(moment, old)
                else:
                    _after_power_cut(moment, old, [later.after for later in disk.moments[number + 1 :]])
            if disk.moments[-1].seen == old:
                raise Wrong("returned, and `path` still has the old bytes. Which file has the new ones?")


def _after_kill(moment: Moment, old: bytes | None) -> None:
    if moment.seen in (old, NEW):
        return
    if moment.seen is None:
        raise Wrong(f"A kill after {moment.after}: there is no file at `path`. What would a restart read?")
    gone = ", and the old ones are gone" if old else ""
    raise Wrong(
        f"A kill after {moment.after}: `path` has {len(moment.seen)} of the {len(NEW)} new bytes{gone}. "
        "When may the new bytes get the name `path`?"
    )


def _after_power_cut(moment: Moment, old: bytes | None, later: list[str]) -> None:
    if moment.on_disk in (old, NEW):
        return
    found = len(moment.on_disk or b"")
    question = "Which line makes sure that they are there *before* the rename?"
    if "an `fsync`" in later:
        question = "Your `fsync` comes later. What must be on the disk before the rename?"
    elif found:
        question = "Where are the others when `fsync` is called? Python buffers what you write."
    raise Wrong(
        f"A power cut after {moment.after}: of the {len(NEW)} bytes of the file `path`, {found} are on the "
        f"disk. {question}"
    )


_SAVE = '''\
def save(path, data):
    """Write `data` to the file `path`; at every moment, all old bytes are there, or all new ones."""
    scratch = path.with_suffix(".new")
    with open(scratch, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
'''
_FSYNC, _REPLACE = "        os.fsync(file.fileno())\n", "    os.replace(scratch, path)\n"

SAVE = Exercise(
    id="15.1",
    title="A saver",
    task="This saver writes to a file beside `path`. Two lines are missing, and each `...` stands for one. "
    "Fill in both, so that neither a kill nor a power cut can leave a damaged file at `path`. (`os` is "
    "imported.)",
    objectives=(3,),
    targets=("written-is-on-disk", "a-kill-leaves-the-old-file"),
    stub=changed(
        _SAVE,
        (_FSYNC, "        ...  # wait until the bytes are on the disk\n"),
        (_REPLACE, "    ...  # replace the old file\n"),
    ),
    hints=(
        "Section 4 names both calls. One needs the number of the open file, `file.fileno()`; the other "
        "needs two names.",
        "write ──→ Python's buffer ── flush ──→ operating system ── fsync ──→ disk\n"
        "training.new ── replace ──→ training.pt     at once, over the old file",
        "os.fsync(file.…())   and   os.replace(…, path)",
    ),
    solution=_SAVE,
    check=_check_save,
    cases=(KILL, POWER),
    describe=lambda case: case,
    imports="import os",
    wrong=(
        WrongAnswer(changed(_SAVE, ('path.with_suffix(".new")', "path")), "A kill after `open`"),
        WrongAnswer(
            changed(_SAVE, (_REPLACE, "    path.unlink(missing_ok=True)\n" + _REPLACE)), "there is no file"
        ),
        WrongAnswer(changed(_SAVE, (_REPLACE, "")), "still has the old bytes"),
        WrongAnswer(changed(_SAVE, (_FSYNC, "")), "Which line makes sure"),
        WrongAnswer(
            changed(
                _SAVE,
                (_FSYNC, ""),
                (
                    _REPLACE,
                    _REPLACE + '    with open(path, "rb") as file:\n        os.fsync(file.fileno())\n',
                ),
            ),
            "Your `fsync` comes later",
        ),
        WrongAnswer(changed(_SAVE, ("        file.flush()\n", "")), "Python buffers"),
        WrongAnswer(
            changed(
                _SAVE,
                (_REPLACE, "        os.replace(scratch, path)\n"),
                (_FSYNC, ""),
                ("        file.flush()\n", ""),
            ),
            "A kill after the rename",
        ),
    ),
    why="after the rename, the new name itself may not be on the disk yet. Which checkpoint does a power "
    "cut leave then, and is that bad?",
)
