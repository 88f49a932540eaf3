"""Time that counts: only while this machine was awake.

A laptop sleeps ten minutes in the middle of a cell, and no deadline may run on meanwhile. It is seen from a
long gap between two looks at the clock. (That thirty ranks share two cores is `watch.CpuShares`.)
"""

import time

GAP_SECONDS = 1.0  # nobody who is awake looks at the clock less often


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
