"""Killing a saver before each of its file operations, and in the middle of each write.

    instants = kill_at_every_step(save)          # save(path, data): any function of the notebook
    print(table(instants))

The saver writes new bytes to a file that holds old ones. It runs in a process of its own, again and again,
and every time the process sends itself SIGKILL one operation later. Then we read what is in the file, and let
the saver run once more, as a restarted training does. All that is measured.

Nobody can cut the power here. So for each instant we also compute the worst that a file system may leave: of
a file without fsync any part of its bytes, of a folder without fsync any of the names that its files had.

Source: Pillai and others, All file systems are not created equal, OSDI 2014.
"""

from __future__ import annotations

import ast
import builtins
import errno
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from course.lessons.l14_scaling_out.packed import loaded, packed

Save = Callable[[Path, bytes], None]
OLD_STATE, NEW_STATE, HALF, LOST = "old", "new", "half", "lost"
WORST_FIRST = (LOST, HALF, OLD_STATE, NEW_STATE)
OLD, NEW = b"old " * 4096, b"new " * 8192
FILE, LOG = "checkpoint", ".log"
REST, END = "rest of ", "the end"
NEVER, MOST = 10**9, 100  # operations
SECONDS = 10.0  # for one run of the saver
PLAIN = (str, bytes, int, float, tuple, type(None))


@dataclass(frozen=True, slots=True)
class Instant:
    """Just before `operation`, or in its middle: what the file holds after a kill, and after a power cut.

    "old" and "new" are whole, "half" is a part of either, "lost" an empty file or none. `again`: whether the
    next save succeeded in spite of what the killed one left behind.
    """

    operation: str
    after_kill: str
    after_power_cut: str
    again: bool

    @property
    def when(self) -> str:
        """The instant in words: before the operation, in the middle of a write, or at the end."""
        if self.operation.startswith(REST):
            return f"in the middle of {self.operation.removeprefix(REST)}"
        return "at the end" if self.operation == END else f"before {self.operation}"


class SaverError(RuntimeError):
    """The saver raised, or did not return: nothing was killed."""


def kill_at_every_step(save: Save) -> list[Instant]:
    """Every instant of `save`; the last is after it has returned.

    Raises SaverError when `save` itself fails, is not done after 10 s, or takes more than 100 operations.
    """
    text = packed_saver(save)
    command = [sys.executable, "-m", __spec__.name]
    # As many operations as are allowed, each with two runs.
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=2 * MOST * SECONDS)
    if done.returncode:
        raise SaverError(done.stderr.strip().splitlines()[-1])
    return [Instant(**each) for each in json.loads(done.stdout)]


def packed_saver(save: Save) -> str:
    """The saver as text, with the modules and plain constants of the notebook that it may use."""
    if not isinstance(save, FunctionType):
        raise SaverError(f"{save!r} is not a function; pass one that takes a path and bytes")
    found = {name: value for name, value in save.__globals__.items() if name[0] != "_"}
    modules = {name: value.__name__ for name, value in found.items() if isinstance(value, ModuleType)}
    standard = {name: module for name, module in modules.items() if is_standard(module)}
    constants = {name: repr(value) for name, value in found.items() if type(value) in PLAIN}
    return json.dumps({"save": packed(save), "modules": standard, "constants": constants})


def is_standard(module: str) -> bool:
    """Whether a module comes with Python."""
    return module.split(".")[0] in sys.stdlib_module_names


def loaded_saver(text: str) -> Save:
    """The saver that `packed_saver` made this text of."""
    given = json.loads(text)
    names: dict[str, Any] = {"__builtins__": builtins, "Path": Path}
    names |= {name: ast.literal_eval(value) for name, value in given["constants"].items()}
    names |= {name: importlib.import_module(module) for name, module in given["modules"].items()}
    return loaded(given["save"], names)


def survives(instants: Sequence[Instant]) -> bool:
    """Whether no kill and no power cut costs more than the last save, and a save that returned stays."""
    states = {state for each in instants for state in (each.after_kill, each.after_power_cut)}
    last = instants[-1]
    returned = last.after_kill == last.after_power_cut == NEW_STATE
    return returned and states <= {OLD_STATE, NEW_STATE} and all(each.again for each in instants)


def table(instants: Sequence[Instant]) -> str:
    """A row per instant: when the kill came, and what the file then holds."""
    wide = max(len(each.when) for each in instants) + 4
    rows = [("killed", "the file is"), *((each.when, each.after_kill) for each in instants)]
    return "\n".join(f"{when:{wide}}{state}" for when, state in rows)


# ------------------------------------------------------------------ what is on the disk, at worst


def state_of(content: bytes) -> str:
    """Which of the four states these bytes are."""
    return {OLD: OLD_STATE, NEW: NEW_STATE, b"": LOST}.get(content, HALF)


@dataclass
class Disk:
    """What a power cut may leave: of each file one of `possible`, for each name one of the files in `names`.

    A file is known by its inode number. 0 stands for no file.
    """

    possible: dict[int, set[str]] = field(default_factory=dict)
    names: dict[str, set[int]] = field(default_factory=dict)

    def note_content(self, inode: int, content: bytes, *, synced: bool = False) -> None:
        """The file now holds `content`; only fsync makes that sure."""
        state = state_of(content)
        self.possible[inode] = {state} if synced else self.possible.get(inode, set()) | {state}

    def note_name(self, name: str, inode: int) -> None:
        """The name now stands for this file; only an fsync of its folder makes that sure."""
        self.names.setdefault(name, {0}).add(inode)

    def sync_names(self, now: dict[str, int]) -> None:
        """All names are on the disk as they are."""
        self.names = {name: {now.get(name, 0)} for name in self.names}

    def worst(self, name: str) -> str:
        """The worst state in which the file of this name may be found."""
        states = {state for inode in self.names[name] for state in self.possible.get(inode, {LOST})}
        return min(states, key=WORST_FIRST.index)


# ------------------------------------------------------------------ the process that is killed


class Watch:
    """Replaces the functions that write files: each asks, before it acts, whether this is the end."""

    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at, self.done = path, at, 0
        self.log = os.open(path.parent / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.disk, self.write_log = Disk(), os.write
        self.disk.names[path.name] = {path.stat().st_ino}
        self.disk.note_content(path.stat().st_ino, OLD, synced=True)

    def before(self, operation: str) -> None:
        """One more instant: note it; the end, if it is the one."""
        line = json.dumps([operation, self.disk.worst(self.path.name)])
        self.write_log(self.log, line.encode() + b"\n")
        if self.done == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1
        if self.done > MOST:
            raise SaverError(f"the saver takes more than {MOST} operations; write all bytes at once")

    def look(self) -> None:
        """Note what every file beside the checkpoint holds."""
        for each in self.files():
            self.disk.note_content(each.stat().st_ino, each.read_bytes())

    def files(self) -> list[Path]:
        """All files in the folder of the checkpoint, but for our log."""
        return [each for each in self.path.parent.iterdir() if each.is_file() and each.name != LOG]

    def install(self) -> None:
        """Replace what writes."""
        real_open, real_os_open, real_write, real_sync = builtins.open, os.open, os.write, os.fsync
        watch = self

        def note_names() -> None:
            now = {each.name: each.stat().st_ino for each in watch.files()}
            for name in {*now, *watch.disk.names}:
                watch.disk.note_name(name, now.get(name, 0))
            watch.look()

        def write(descriptor: int, data: Any) -> int:
            """In two halves: a process can be killed between them."""
            data = memoryview(data).cast("B")
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
            middle = len(data) // 2
            for part, words in ((data[:middle], f"write {name}"), (data[middle:], f"{REST}write {name}")):
                watch.before(words)
                real_write(descriptor, part)
                watch.look()
            return len(data)

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                return write(self.fileno(), data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or "opener" in options:
                return real_open(file, mode, buffering, *more, **options)
            if not isinstance(file, int):
                watch.before(f"open {Path(os.fsdecode(file)).name}")
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            note_names()
            if buffering == 0:
                return raw
            # As large as what is saved: it reaches the operating system when it is flushed, not earlier.
            buffered = io.BufferedRandom(raw, 2**20) if "+" in mode else io.BufferedWriter(raw, 2**20)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **options)

        def os_open(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                watch.before(f"open {Path(os.fsdecode(path)).name}")
                descriptor = real_os_open(path, flags, *more, **options)
                note_names()
                return descriptor
            return real_os_open(path, flags, *more, **options)

        def fsync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            where = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            watch.before(f"fsync {'the folder' if where.is_dir() else where.name}")
            real_sync(descriptor)
            if where.is_dir():
                watch.disk.sync_names({each.name: each.stat().st_ino for each in watch.files()})
            else:
                watch.disk.note_content(os.fstat(descriptor).st_ino, where.read_bytes(), synced=True)

        def refused(*_: Any) -> NoReturn:
            """Then shutil copies with reads and writes, which we see."""
            raise OSError(errno.ENOTSOCK, "not watched")

        def changing(name: str, word: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def change(*paths: Any, **options: Any) -> Any:
                names = [
                    Path(os.fsdecode(each)).name for each in paths if isinstance(each, str | bytes | Path)
                ]
                watch.before(f"{word} {' to '.join(names)}")
                result = real(*paths, **options)
                note_names()
                return result

            return change

        for name, word in {
            "replace": "rename",
            "rename": "rename",
            "link": "link",
            "truncate": "truncate",
        }.items():
            setattr(os, name, changing(name, word))
        for name in ("remove", "unlink"):
            setattr(os, name, changing(name, "remove"))
        replaced = {"fsync": fsync, "fdatasync": fsync, "open": os_open, "write": write, "sendfile": refused}
        for name, function in replaced.items():
            setattr(os, name, function)
        builtins.open = io.open = opened


def run_killed(save: Save, path: Path, at: int) -> list[tuple[str, str]]:
    """The operations of `save` until the kill, each with the worst that a power cut would have left."""
    child = os.fork()
    if child == 0:
        in_child(save, path, at)
    end = time.monotonic() + SECONDS
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SaverError(f"the saver is not done after {SECONDS:g} s")
        time.sleep(0.0005)
    lines = (path.parent / LOG).read_text().splitlines()
    if os.waitstatus_to_exitcode(ended[1]) > 0:
        raise SaverError(lines[-1])
    return [tuple(json.loads(line)) for line in lines]


def in_child(save: Save, path: Path, at: int) -> NoReturn:
    """Run `save` watched, and end without cleaning anything up."""
    watch = Watch(path, at)
    try:
        watch.install()
        save(path, NEW)
        watch.before(END)
        os._exit(0)
    except BaseException as error:
        at_line = [f" (line {frame.lineno})" for frame in traceback.extract_tb(error.__traceback__)][-1:]
        words = f"the saver raised {type(error).__name__}: {error}{''.join(at_line)}"
        if isinstance(error, NameError):
            words += "; import and define what it needs inside the function"
        watch.write_log(watch.log, words.encode() + b"\n")
        os._exit(3)


def every_instant(save: Save) -> list[dict[str, Any]]:
    """Kill `save` at every instant, each time over a file with old bytes in a new folder."""
    found: list[dict[str, Any]] = []
    at, count = NEVER, 0  # the first run is not killed: it counts
    while at == NEVER or at < count:
        with tempfile.TemporaryDirectory(prefix="killed-") as folder:
            path = Path(folder) / FILE
            path.write_bytes(OLD)
            operations = run_killed(save, path, at)
            if at == NEVER:
                at, count = 0, len(operations)
                continue
            operation, power_cut = operations[-1]
            state = state_of(path.read_bytes()) if path.exists() else LOST
            path.unlink(missing_ok=True)
            path.write_bytes(OLD)
            words = {"operation": operation, "after_kill": state, "after_power_cut": power_cut}
            found.append({**words, "again": runs_again(save, path)})
        at += 1
    return found


def runs_again(save: Save, path: Path) -> bool:
    """Whether the saver works in a folder with what a killed one left."""
    try:
        run_killed(save, path, NEVER)
    except SaverError:
        return False
    return path.exists() and path.read_bytes() == NEW


def main() -> None:
    """Read a packed saver from standard input, print its instants."""
    save = loaded_saver(sys.stdin.read())
    try:
        print(json.dumps(every_instant(save)))
    except SaverError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
