"""A killed training with ZeRO goes on with the losses it would have had."""

from pathlib import Path

import pytest

from course.lessons.l11_zero_from_scratch.resume_jobs import largest_difference, run_job, side_by_side


def test_losses_stand_side_by_side_with_dashes() -> None:
    words = side_by_side({"4 ranks": {0: 1.0, 1: 0.5}, "2, resumed": {1: 0.25}})
    assert [line.split() for line in words.splitlines()[1:]] == [
        ["0", "1.0000000000", "–"],
        ["1", "0.5000000000", "0.2500000000"],
    ]
    assert largest_difference({0: 1.0, 1: 0.5}, {1: 0.25}) == 0.25


@pytest.mark.slow
def test_a_killed_training_goes_on_with_fewer_ranks_and_equal_losses(tmp_path: Path) -> None:
    undisturbed = run_job(4, tmp_path / "one", 7)
    killed = run_job(4, tmp_path / "two", 7, kill_after=6)
    resumed = run_job(2, tmp_path / "two", 7)
    assert (list(undisturbed), list(killed), list(resumed)) == (list(range(7)), list(range(6)), [4, 5, 6])
    assert undisturbed[6] < undisturbed[0] - 0.3
    assert largest_difference(undisturbed, killed) == 0
    assert largest_difference(undisturbed, resumed) < 1e-9
