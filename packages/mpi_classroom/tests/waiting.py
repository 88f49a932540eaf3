"""What several tests wait for."""

import subprocess
import time
from collections.abc import Callable

import psutil


def until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Wait until `condition()` holds; fail when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only its entry in the table of a parent that is gone."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def dead_owner() -> str:
    """The mark of a process that is gone."""
    child = subprocess.Popen(["true"])
    mark = f"{child.pid}:{psutil.Process(child.pid).create_time():.2f}"
    child.wait()
    return mark
