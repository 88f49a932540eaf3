"""Waiting for MPI with a deadline.

A blocking MPI call cannot be given up. Here a request is tested until it is done: at full speed for as
long as a quiet neighbour takes, then with naps of a twentieth of the time waited so far. So a wait is never
more than 5 % (or 1 ms) late, and a rank that waits long leaves the core to those it waits for.
"""

import time
from collections.abc import Callable

from mpi4py import MPI

SPINS = 2000  # a test takes 0.1 to 0.5 us, and yields the core when ranks share it
CLOCK = 8  # spins from one look at the clock to the next
LONGEST_NAP = 1e-3


def wait_until(done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP) -> bool:
    """Wait until `done()`; False when that took more than `seconds`."""
    start = time.monotonic()
    for spin in range(SPINS):
        if done():
            return True
        if spin % CLOCK == 0 and time.monotonic() - start > seconds:
            return False  # a test that yields the core may get it back only after milliseconds
    while not done():
        waited = time.monotonic() - start
        if waited > seconds:
            return False
        time.sleep(min(longest_nap, waited / 20))
    return True


def wait_for(request: MPI.Request, seconds: float, what: str) -> None:
    """Wait until `request` is complete.

    Raises TimeoutError with `what` in it after `seconds`; then MPI goes on using the request's memory.
    """
    if not wait_until(request.Test, seconds):
        raise TimeoutError(f"{what} is not there after {seconds:g} s; has a rank died, or gone another way?")
