"""How the "mpi4py" backend waits."""

import time

from torch_mpi4py.waiting import wait_until


def test_a_wait_ends_at_its_deadline_however_long_each_look_takes() -> None:
    """On a busy machine each look gives the core away for milliseconds."""
    looks = []

    def look() -> bool:
        looks.append(time.sleep(0.005))
        return False

    assert not wait_until(look, 0.05)
    assert len(looks) < 100
