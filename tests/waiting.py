"""Waiting for a condition, with a deadline; and a port that nobody listens on."""

import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], seconds: float = 60.0, said: Callable[[], object] = lambda: "waited in vain"
) -> T:
    """What `condition` returns once that is true; after `seconds` a failure with what `said` returns."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)
    return found


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
