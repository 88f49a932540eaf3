"""Saving bytes to a file that a process may be killed in the middle of: two savers, and a killer.

                      killed (kill -9)                  power lost
    naive_save        the old file is gone, or half     as well
    atomic_save       old or new                        old or new

A name changes in one instant, bytes do not: so write the bytes under another name, and rename. What the
operating system holds in memory survives the process, but not the machine: so wait until the bytes are on the
disk before the rename, and until the rename is there before returning. `parallel/checkpoint_folder.py`
does this for many files and many ranks.

    kill_before_each_line(naive_save)       what a kill leaves of the old file: ["old", "empty", …]

Source: Pillai and others, All file systems are not created equal, OSDI 2014.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

OLD, NEW = b"old " * 250, b"new " * 250  # fits into the buffer of an open file
SECONDS = 10  # for one run of a saver


def naive_save(path: Path, data: bytes) -> None:
    """Write over the old file."""
    with open(path, "wb") as file:
        file.write(data)


def atomic_save(path: Path, data: bytes) -> None:
    """Write beside the old file, wait for the disk, take the name, wait again."""
    aside = path.with_name(path.name + ".new")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # the bytes, before a name points to them
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the new name
    os.close(folder)


# ------------------------------------------------------------------ what a kill leaves


def kill_before_each_line(save: Callable[[Path, bytes], None]) -> list[str]:
    """Let `save` replace old bytes, again and again, each time killed one line later.

    Returns what the file then is: "old", "new", "a part" or "empty"; the last of them is after a save that
    nobody killed. Raises RuntimeError when `save` raises, or takes longer than 10 s.
    """
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path, killed = Path(folder, "checkpoint"), True
        while killed:
            path.write_bytes(OLD)
            killed = is_killed(len(found), save, path)
            found.append(what_is_left(path))
    return found


def is_killed(count: int, save: Callable[[Path, bytes], None], path: Path) -> bool:
    """Run `save` in a process that is killed after `count` lines; False when it had no more."""
    child = os.fork()
    if child == 0:
        run_until(count, save, path)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the saver raised, or took longer than {SECONDS} s; call it without a kill")
    return ended != 0


def run_until(count: int, save: Callable[[Path, bytes], None], path: Path) -> NoReturn:
    """In a process of its own: run `count` lines of `save`, then be killed."""
    code, left = save.__code__, iter(range(count))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line" and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        sys.settrace(trace)
        save(path, NEW)
        os._exit(0)
    finally:
        os._exit(1)


def what_is_left(path: Path) -> str:
    """Which bytes the file has."""
    content = path.read_bytes() if path.exists() else b""
    return {OLD: "old", NEW: "new", b"": "empty"}.get(content, "a part")
