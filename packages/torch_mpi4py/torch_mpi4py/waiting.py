"""Waiting for MPI with a deadline.

A blocking MPI call cannot be given up. So every request is tested until it is done: at full speed for as
long as a quiet neighbour takes, then with naps of a twentieth of the time waited so far. A wait is never
more than 5 % (or 1 ms) late, and a rank that waits long leaves its core to the ranks it waits for.
"""

import time
from collections.abc import Callable

SPINS = 2000  # one test takes 0.1 to 0.5 us and yields the core when ranks share it
LONGEST_NAP = 1e-3
SHORT_NAP = 2e-5  # for large messages, which advance only while both ranks call MPI


def wait_until(done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP) -> bool:
    """Wait until `done()` is true; return False when that took more than `seconds`."""
    for _ in range(SPINS):
        if done():
            return True
    start = time.monotonic()
    while not done():
        waited = time.monotonic() - start
        if waited > seconds:
            return False
        time.sleep(min(longest_nap, waited / 20))
    return True
