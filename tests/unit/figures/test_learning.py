"""Figures of lesson 05: they say what was measured, what diverged, and what was never reached."""

import numpy as np
import pytest

from course.lessons.l05_training_one_process.figures import (
    explain_threads,
    images_against_batch,
    largest_of_one_sign,
    learning_curves,
    loss_against_rate,
    microbatch_sum,
    thread_speedups,
    what_it_costs,
)
from course.lessons.l05_training_one_process.trials import Baseline, Reached, Trial
from tests.unit.figures.pictures import check_legible, title_of


def trial(rate: float, loss: float) -> Trial:
    return Trial(rate, 128, (2.3,) * 100, 12_800, loss)


def reached(*samples: int | None) -> list[Reached]:
    sizes = (16, 64, 256, 1024)
    return [Reached(0.1, size, 0.3, count) for size, count in zip(sizes, samples, strict=False)]


SWEEP = [
    trial(0.1, 0.4),
    trial(0.001, 2.31),
    trial(1.0, float("inf")),
    trial(0.01, 1.9),
    trial(10, float("inf")),
]


def test_the_sweep_names_the_best_the_smallest_and_the_first_that_diverged() -> None:
    picture = loss_against_rate(SWEEP)
    check_legible(picture)
    assert title_of(picture) == "Best: 0.1, a loss of 0.4, 0.001 leaves it at 2.31, 1 diverges"
    assert "0.01: 1.9; 0.1: 0.4; 1: diverged; 10: diverged" in picture.alt


def test_a_sweep_in_which_all_or_none_diverged_can_be_drawn() -> None:
    check_legible(loss_against_rate(SWEEP[2:3] + SWEEP[4:]))
    picture = loss_against_rate([trial(0.1, 0.4), trial(0.2, 0.3)])
    assert title_of(picture) == "Best: 0.2, a loss of 0.3, 0.1 leaves it at 0.4"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((1000, 1200, 4600, None), "256 needs 4.6× the images of 16, 1024 fails"),
        ((1000, None, None, None), "64, 256 and 1024 fail"),
        ((1000, 900), "64 needs 0.9× the images of 16"),
        ((None, 900), "16 does not get there, so nothing is compared"),
        ((1000,), "nothing to compare"),
    ],
)
def test_what_a_batch_costs_is_relative_to_the_smallest(
    samples: tuple[int | None, ...], expected: str
) -> None:
    assert what_it_costs(reached(*samples)) == expected


def test_batches_that_never_arrive_are_drawn_and_told() -> None:
    series = {
        "the same rate": reached(1000, 1200, 4600, None),
        "the rate grows": reached(1000, 1000, None, None),
    }
    picture = images_against_batch(series)
    check_legible(picture)
    assert title_of(picture).startswith("the same rate: 256 needs 4.6×")
    assert "the rate grows: 16 1000, 64 1000, 256 not reached, 1024 not reached" in picture.alt
    check_legible(images_against_batch({"nothing": reached(None, None)}))


def test_parts_that_add_up_are_said_to_and_the_mean_of_the_means_is_not() -> None:
    parts = np.array([[6.0, 1.0], [3.0, -1.0], [3.0, 9.0]])
    picture = microbatch_sum(parts, (6, 3, 1), parts.sum(axis=0))
    check_legible(picture)
    means = (6 * 10 / 6 + 3 * 10 / 3 + 3 * 10 / 1) / 3
    off = (means - 12) / 12
    assert title_of(picture) == (
        f"Micro-batches add up to the batch; the mean of their means is {off:.0%} too large"
    )


def test_parts_that_do_not_add_up_are_told_and_equal_ones_hide_the_difference() -> None:
    parts = np.array([[2.0], [4.0]])
    assert "The parts do NOT add up" in title_of(microbatch_sum(parts, (1, 1), np.array([7.0])))
    same = microbatch_sum(parts, (5, 5), np.array([6.0]))
    assert title_of(same).endswith("the mean of their means is the same here")


def test_drawn_is_the_largest_number_without_a_change_of_sign() -> None:
    parts = np.array([[1.0, 9.0, -2.0, 0.0], [1.0, -1.0, -3.0, 50.0]])
    assert largest_of_one_sign(parts) == 2
    with pytest.raises(ValueError, match="some parts cancel others"):
        largest_of_one_sign(np.array([[1.0], [-1.0]]))


def test_learning_curves_tell_from_when_on_nothing_is_gained() -> None:
    picture = learning_curves([2.0, 0.5, 0.1], [1.5, 1.0, 1.2])
    check_legible(picture)
    assert title_of(picture) == "Trained on: 0.1 at the end. Not trained on: 1.2, and no lower after epoch 2"
    falling = learning_curves([2.0, 0.5], [1.5, 1.0])
    assert title_of(falling).endswith("still falling")


def baselines(*gains: float, threads: int = 2) -> list[Baseline]:
    names = ("mlp", "cnn", "lstm")
    alone = [Baseline(name, 1, 100.0) for name in names]
    return alone + [Baseline(name, threads, 100 * gain) for name, gain in zip(names, gains, strict=True)]


def test_threads_are_drawn_beside_published_ones() -> None:
    picture = thread_speedups(baselines(1.1, 1.8, 1.3), {"cnn": {1: 1, 4: 1.76, 8: 2.2}})
    check_legible(picture)
    assert title_of(picture) == "2 threads: mlp 1.10×, cnn 1.80× and lstm 1.30× as fast as 1"
    alone = thread_speedups(baselines(1, 1, 1)[:3], {})
    assert title_of(alone) == "One core: there are no threads to compare"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (baselines(1.1, 1.8, 1.3), "cnn gained most, 1.80×, mlp least, 1.10×"),
        (baselines(0.5, 1.0, 0.9), "no model gained: are all 2 cores free"),
        (baselines(1.9, 1.9, 1.8), "all use 2 cores well"),
        (baselines(1, 1, 1)[:3], "one core"),
    ],
)
def test_the_explanation_of_threads_is_chosen_by_what_was_measured(
    found: list[Baseline], expected: str
) -> None:
    assert explain_threads(found).startswith(expected)
