"""Waiting with a deadline: it holds also while other programs have the cores."""

import time

from course_lib.comm.polling import wait_until


def test_the_deadline_holds_while_every_look_takes_long() -> None:
    """A look yields the core. Where others use the core, it comes back after milliseconds, not at once."""

    def look() -> bool:
        time.sleep(0.002)
        return False

    start = time.monotonic()
    assert not wait_until(look, 0.1)
    assert time.monotonic() - start < 1.0


def test_a_wait_ends_with_what_it_waits_for() -> None:
    end = time.monotonic() + 0.05
    assert wait_until(lambda: time.monotonic() > end, 10.0)
    assert not wait_until(lambda: False, 0.01)
    assert wait_until(lambda: True, 0.0)
