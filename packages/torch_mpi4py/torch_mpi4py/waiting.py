"""Waiting for MPI with a deadline.

A blocking MPI call cannot be given up. So every request is tested until it is done: first `SPINS` times
without a pause, then with naps of a twentieth of the time waited so far. A large message moves in parts, and
only inside a test: the first tests take as long as their parts do, so a nap between them would cost more
than the message. A wait is never more than 5 % (or some ms) late, and a rank that waits long leaves its core
to the ranks it waits for.
"""

import time
from collections.abc import Callable

SPINS = 2000  # one test takes 0.1 to 0.5 us
SPINS_PER_LOOK = 16  # at the clock: where processes share a core, a test yields it, and takes milliseconds
LONGEST_NAP = 1e-3
SHORT_NAP = 2e-5  # for large messages, which advance only while both ranks call MPI


def wait_until(
    done: Callable[[], bool], seconds: float, longest_nap: float = LONGEST_NAP, waited: float = 0.0
) -> bool:
    """Wait until `done()` is true; return False when that took more than `seconds`.

    `waited`: who goes on with a wait has waited so long, which counts, and needs no tests without a pause.
    """
    start = time.monotonic() - waited
    for spin in range(1, 1 if waited else SPINS + 1):
        if done():
            return True
        if spin % SPINS_PER_LOOK == 0 and time.monotonic() - start > seconds:
            return False
    while not done():
        waited = time.monotonic() - start
        if waited > seconds:
            return False
        time.sleep(min(longest_nap, waited / 20))
    return True
