"""What a kill before each line leaves of a file, by saver."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from course_lib.training.saving import atomic_save, naive_save

OLD, NEW = b"old " * 250, b"new " * 250  # fits into the buffer of an open file
SECONDS = 10  # for one run of a saver


def test_the_naive_saver_loses_the_file_between_open_and_close() -> None:
    assert kill_before_each_line(naive_save) == ["old", "empty", "empty", "new"]


def test_the_atomic_saver_leaves_the_old_file_or_the_new_one() -> None:
    *killed, last = kill_before_each_line(atomic_save)
    assert set(killed) == {"old", "new"}
    assert last == "new"
    assert killed == sorted(killed, reverse=True)  # once it is new, it stays


# ------------------------------------------------------------------ what a kill leaves


def kill_before_each_line(save: Callable[[Path, bytes], None]) -> list[str]:
    """Let `save` replace old bytes, again and again, each time killed one line later.

    Returns what the file then is: "old", "new", "a part" or "empty"; the last of them is after a save that
    nobody killed.
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
    assert ended in (0, -signal.SIGKILL), "the saver raised, or took too long"
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
