"""A replay adds up to what its parts say."""

import pytest

from course.tools.study.replay import replay


def test_ranks_that_always_take_as_long_never_wait():
    found = replay([0.5], 0.25, ranks=4, steps=10, seed=0)
    assert found.epoch_seconds == pytest.approx(7.5)
    assert (found.compute_seconds, found.wait_seconds) == (5.0, 0.0)
    assert found.transfer_seconds == 2.5


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_step_lasts_as_long_as_the_slowest_of_its_ranks(ranks):
    # Each rank takes 1 s or 2 s: all are fast in one of 2^n steps.
    steps = 20_000
    found = replay([1.0, 2.0], 0.0, ranks=ranks, steps=steps, seed=1)
    assert found.epoch_seconds / steps == pytest.approx(2 - 0.5**ranks, abs=0.02)
    assert found.compute_seconds / steps == pytest.approx(1.5, abs=0.02)
    assert found.wait_seconds == pytest.approx(found.epoch_seconds - found.compute_seconds)


def test_the_same_seed_gives_the_same_epoch():
    def once(seed):
        return replay([1.0, 2.0, 4.0], 0.1, ranks=4, steps=50, seed=seed)

    assert once(0) == once(0)
    assert once(0) != once(1)
