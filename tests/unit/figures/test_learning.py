"""Figures of lesson 05: they say what was measured, what diverged, and what was never reached."""

from math import ceil

import numpy as np
import pytest

from course.lessons.l05_training_one_process.figures import (
    batch_128,
    explain_batch,
    explain_ends,
    explain_rate,
    explain_threads,
    images_against_batch,
    largest_of_one_sign,
    learning_curves,
    loss_against_rate,
    memory_against_image,
    microbatch_sum,
    throughput,
    what_it_costs,
)
from course.lessons.l05_training_one_process.trials import Baseline, Reached, Trial
from tests.unit.figures.pictures import check_legible, title_of


def trial(rate: float, loss: float) -> Trial:
    return Trial(rate, 128, (2.3,) * 100, 12_800, loss)


def reached(*samples: int | None) -> list[Reached]:
    sizes = (16, 64, 256, 1024)
    return [taking(0.1, size, 0.3, count) for size, count in zip(sizes, samples, strict=False)]


def taking(rate: float, size: int, target: float, samples: int | None) -> Reached:
    """What was reached with `samples` images without end: only the last batch may be shorter."""
    return Reached(rate, size, target, samples, None if samples is None else ceil(samples / size))


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
    assert title_of(picture) == "The rate 0.1 does best: loss 0.4; 0.001 stays at 2.31; 1 diverges"
    assert "0.01: 1.9; 0.1: 0.4; 1: diverged; 10: diverged" in picture.alt
    (axes,) = picture.figure.axes
    lost = axes.lines[-1]
    bottom, top = axes.get_ylim()
    assert bottom > 0.1 and 2.31 * 1.5 < min(lost.get_ydata()) < top
    assert max(axes.get_yticks()) < 2.31 * 1.5, "what diverged has no number"


def test_a_sweep_in_which_all_or_none_diverged_can_be_drawn() -> None:
    check_legible(loss_against_rate(SWEEP[2:3] + SWEEP[4:]))
    picture = loss_against_rate([trial(0.1, 0.4), trial(0.2, 0.3)])
    assert title_of(picture) == "The rate 0.2 does best: loss 0.3; 0.1 stays at 0.4"


def test_the_best_rate_is_explained_by_what_the_others_did() -> None:
    assert explain_rate(SWEEP) == (
        "The 2 smaller rates were still on their way after 100 steps. From 1 on, training diverged."
    )
    assert explain_rate([trial(0.1, 0.3), trial(0.2, 0.4)]) == ""


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((900, 1000, 4600, None), "256 needs 4.6× the images of 64, 1024 does not arrive"),
        ((900, 1000, 4600, 9000), "256 needs 4.6× and 1024 needs 9.0× the images of 64"),
        ((900, 1000, None, None), "256 and 1024 do not arrive"),
        ((None, 1000, 900), "256 needs 0.9× the images of 64"),
        ((900, None, 900), "batches of 64 do not arrive, so nothing can be compared"),
    ],
)
def test_what_a_batch_costs_is_relative_to_the_second_smallest(
    samples: tuple[int | None, ...], expected: str
) -> None:
    assert what_it_costs(reached(*samples)) == expected


@pytest.mark.parametrize(
    ("times", "words"), [(11.0, "hardly further"), (3.0, "not 8 times as far"), (1.0, "so noisy")]
)
def test_the_cost_of_a_batch_is_explained_by_its_size(times: float, words: str) -> None:
    assert words in explain_batch(times)


def test_batches_of_128_are_compared_with_16_only_if_both_arrive() -> None:
    def same(*samples: int | None) -> list[Reached]:
        return [taking(0.04, n, 0.6, m) for n, m in zip((1, 16, 128, 4000), samples, strict=True)]

    assert batch_128(same(None, 2000, 14000, None)) == (7, explain_batch(7))
    times, why = batch_128(same(9, 2000, None, None))
    assert times is None and why.startswith("Not reached")


def test_the_ends_are_explained_where_they_show_something() -> None:
    noisy = [Reached(0.04, 1, 0.6), *reached(1, 2000, 14_000)[1:]]
    scaled = [taking(0.0025, 1, 0.6, 2000), taking(0.3, 128, 0.6, 3840), taking(0.3, 4000, 0.6, 132_000)]
    assert explain_ends(noisy, scaled) == (
        "The gradient of a single image is so noisy that the rate 0.04 is too large for it; at 0.0025 it "
        "arrives. Scaled rate: 4000 takes 33 steps where 128 takes 30, and 34 times the images."
    )
    assert explain_ends(reached(1, 1), [*reached(1, 1), Reached(0.1, 4000, 0.3)]) == ""


def test_batches_that_never_arrive_are_drawn_in_a_band_of_their_own() -> None:
    series = {
        "same rate": reached(1000, 1200, 4600, None),
        "scaled rate": reached(1000, 1000, None, None),
    }
    picture = images_against_batch(series)
    check_legible(picture)
    assert picture.figure.get_suptitle().startswith("same rate: 256 needs 3.8× the images of 64")
    assert "batches of 256 4600 images, 18 steps, batches of 1024 not reached" in picture.alt
    assert "1024 does not arrive; scaled rate: " in picture.alt
    gone = [Reached(9.0, 16, 0.3, diverged=True), *reached(1, 1)[1:]]
    assert "batches of 16 diverged" in images_against_batch({"large rate": gone}).alt
    crosses = [line for line in picture.figure.axes[0].lines if line.get_marker() == "x"]
    highest = max(max(line.get_ydata()) for line in picture.figure.axes[0].lines if line not in crosses)
    assert all(y > highest for line in crosses for y in line.get_ydata())
    check_legible(images_against_batch({"nothing": reached(None, None)}))
    million = images_against_batch({"same rate": reached(1000, 1200, 4600, 1_100_000)})
    assert "1 000 000" in [text.get_text() for text in million.figure.axes[0].get_yticklabels()]


def test_parts_that_add_up_are_said_to_and_the_mean_of_the_means_is_not() -> None:
    parts = np.array([[6.0, 1.0], [3.0, -1.0], [3.0, 9.0]])
    picture = microbatch_sum(parts, (6, 3, 1), parts.sum(axis=0))
    check_legible(picture)
    assert "3 images add 3, 1 image adds 3;" in picture.alt
    means = (6 * 10 / 6 + 3 * 10 / 3 + 3 * 10 / 1) / 3
    off = (means - 12) / 12
    assert title_of(picture) == (
        f"The micro-batches add up to the batch; the mean of their means is {off:.0%} too large"
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
    assert title_of(picture) == (
        "Test loss is lowest after epoch 2 (1) and ends at 1.2; training loss falls to 0.1"
    )
    falling = learning_curves([2.0, 0.5], [1.5, 1.0])
    assert title_of(falling) == "Test loss is still falling at the end: 1; training loss falls to 0.5"


def baselines(threads: float, ranks: float, cores: int = 2) -> list[Baseline]:
    """The CNN at these speed-ups on `cores` threads and on as many ranks; the MLP gains nothing."""
    found = [Baseline(name, 1, 100.0) for name in ("mlp", "cnn")]
    if cores > 1:
        found += [Baseline("mlp", cores, 100.0), Baseline("cnn", cores, 100 * threads)]
        found += [Baseline("mlp", 1, 100.0, cores), Baseline("cnn", 1, 100 * ranks, cores)]
    return found


@pytest.mark.parametrize(
    ("found", "title", "explanation"),
    [
        (
            baselines(1.4, 1.8),
            "Fastest: 1 thread or 2 threads or 2 ranks for MLP; 2 ranks for CNN",
            "once per step, threads after every operation",
        ),
        (baselines(1.9, 1.7), "2 threads for CNN", "so here they win"),
        (baselines(1.8, 1.4), "The cores were busy", "this run says nothing about threads against ranks"),
        (baselines(1.7, 1.71), "MLP; 2 threads or 2 ranks for CNN", "it makes no difference"),
        (baselines(1.1, 0.9, cores=4), "4 threads for CNN", "are the cores busy"),
        (baselines(1, 1, cores=1), "One core", "One core"),
    ],
)
def test_threads_and_ranks_are_compared_as_measured(
    found: list[Baseline], title: str, explanation: str
) -> None:
    picture = throughput(found)
    check_legible(picture)
    assert title in title_of(picture)
    assert explanation in explain_threads(found)


def test_the_alt_text_of_threads_and_ranks_names_both() -> None:
    alt = throughput(baselines(1.4, 1.8)).alt
    assert "cnn on 2 threads: 140 images/s" in alt and "cnn on 2 ranks: 180 images/s" in alt


def test_memory_goes_on_in_proportion_to_the_pixels() -> None:
    """80 kB per pixel and image: 16 GB hold 200 000 pixels, 447 × 447."""
    picture = memory_against_image({10: 2 * 80_000 * 100, 20: 2 * 80_000 * 400}, batch_size=2)
    check_legible(picture)
    assert title_of(picture) == "One image of 400 × 400 pixels fills a GPU of 16 GB (predicted)"
    assert "a server of 192 GB holds one of 1 500 pixels" in picture.alt
