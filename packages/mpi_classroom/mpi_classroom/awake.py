"""Time that counts: only while this machine was awake, and against a process only while it was let run.

A laptop sleeps ten minutes in the middle of a cell; thirty ranks share two cores. Neither is the fault of who
waits, so no deadline may run on meanwhile. Both are seen from outside: a long gap between two looks at the
clock, and a process that could run and was not given a moment of a processor.
"""

import time
from collections.abc import Iterable

import psutil

GAP_SECONDS = 1.0  # nobody who is awake looks at the clock less often
MOMENT_SECONDS = 0.03  # of a processor: the clock of processes ticks every 0.01 s
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Awake:
    """Seconds since the start, without those in which this process slept."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, time.monotonic()

    def tick(self) -> float:
        """Look at the clock, as often as possible; return the seconds so far."""
        now = time.monotonic()
        self.seconds += min(now - self._last, GAP_SECONDS)
        self._last = now
        return self.seconds


class Deadline:
    """So many seconds from now, awake ones."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._clock = seconds, Awake()

    @property
    def over(self) -> bool:
        """Whether they have passed."""
        return self._clock.tick() > self.seconds


class Turns:
    """Whether processes got their turns on the processor since `restart` was called last."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}

    def restart(self) -> None:
        """Count from here on."""
        self._used = {}

    def starved(self, pids: Iterable[int]) -> bool:
        """Whether one of `pids` is stopped, or had hardly a turn since it was first asked for."""
        found = False
        for pid in pids:
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    used, status = sum(process.cpu_times()[:2]), process.status()
            except psutil.Error:
                continue
            since = self._used.setdefault(pid, used)
            found = found or status in _STOPPED
            found = found or (status == psutil.STATUS_RUNNING and used - since < MOMENT_SECONDS)
        return found


def processor_seconds(pid: int) -> float:
    """Seconds of a processor that a process had; without end when it does not ask for any, or is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            asks = process.status() == psutil.STATUS_RUNNING
            return sum(process.cpu_times()[:2]) if asks else float("inf")
    except psutil.Error:
        return float("inf")


def at_work(pid: int) -> bool:
    """Whether the process runs, or would if it were let, and does not wait for anything."""
    return processor_seconds(pid) < float("inf")


def condition(pid: int) -> str:
    """What the process is, when it is not simply running: "gone", "stopped" by a signal, else ""."""
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return "gone"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "gone"
    return "stopped" if status in _STOPPED else ""
