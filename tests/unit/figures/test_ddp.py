"""The figures of lesson 07: they say what is in the data, in the title and to those who cannot see them."""

from dataclasses import replace

import pytest

from course.lessons.l07_ddp_on_mnist.figures.ddp import (
    compare_times,
    in_turn,
    sampler_shards,
    synthetic_report,
    training_curve,
    way_bars,
)
from course.lessons.l07_ddp_on_mnist.step_times import (
    BY_HAND,
    DDP_GLOO,
    DDP_MPI,
    Spread,
    StepTime,
    explain_ways,
    replicas_and_ranks,
    spread_of,
    times_as_long,
)
from tests.unit.figures.pictures import check_legible

PADDED = [{"epoch 0": [4, 3, 6]}, {"epoch 0": [1, 9, 2]}, {"epoch 0": [7, 0, 4]}, {"epoch 0": [5, 8, 1]}]

# ---------------------------------------------------------------- the sampler


def test_samples_are_in_their_shuffled_order() -> None:
    assert in_turn([[4, 3, 6], [1, 9]]) == [(0, 4), (1, 1), (0, 3), (1, 9), (0, 6)]


def test_the_title_counts_what_comes_twice() -> None:
    picture = sampler_shards(PADDED)
    check_legible(picture)
    assert "10 images on 4 ranks: 3 per rank, so 2 images come twice" in picture.alt
    assert "rank 2 [7, 0, 4]" in picture.alt
    even = sampler_shards([{"epoch 0": [0, 2]}, {"epoch 0": [1, 3]}])
    assert "4 images on 2 ranks: 2 per rank, none twice" in even.alt
    uneven = sampler_shards([{"epoch 0": [0, 2]}, {"epoch 0": [1]}])
    assert "1 to 2 per rank" in uneven.alt


def test_it_says_when_an_epoch_repeats_the_order_of_the_first() -> None:
    alike = sampler_shards([{"epoch 0": [0, 2], "epoch 1": [0, 2]}, {"epoch 0": [1, 3], "epoch 1": [1, 3]}])
    assert "epoch 1 repeats the order of epoch 0" in alike.alt
    other = sampler_shards([{"epoch 0": [0, 2], "epoch 1": [2, 0]}, {"epoch 0": [1, 3], "epoch 1": [1, 3]}])
    assert "every epoch has a different order" in other.alt


def test_more_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="40 samples do not fit into a row"):
        sampler_shards([{"epoch 0": list(range(20))}, {"epoch 0": list(range(20, 40))}])


# ---------------------------------------------------------------- a training


def test_the_curve_has_the_mean_of_the_ranks_and_the_accuracy_beside_guessing() -> None:
    losses = [[2.0 - 0.01 * step for step in range(100)], [2.2 - 0.01 * step for step in range(100)]]
    picture = training_curve(losses, 0.9712, images="200 images (drawn digits)")
    check_legible(picture)
    assert "2 ranks train one network on 200 images (drawn digits)" in picture.alt
    assert "at the end, 97.1% of the test images are right (guessing: 10%)" in picture.alt
    assert "In 100 steps the loss goes from 2.10 to" in picture.alt


# ---------------------------------------------------------------- ways to take a step


def around(seconds: float, off: float = 0.02) -> Spread:
    return Spread((1 - off) * seconds, seconds, (1 + off) * seconds)


def a_way(
    name: str, step: float, wait: float, transfer: float, *, ranks: int = 2, off: float = 0.02
) -> StepTime:
    compute = step - wait - transfer
    return StepTime(name, ranks, *(around(part, off) for part in (step, compute, wait, transfer)))


def three_ways(gloo: float, mpi: float, hand: float, off: float = 0.02) -> list[StepTime]:
    return [
        a_way(BY_HAND, hand, 0.001, 0.001, off=off),
        a_way(DDP_GLOO, gloo, 0.002, 0.006, off=off),
        a_way(DDP_MPI, mpi, 0.001, 0.001, off=off),
    ]


def test_bars_have_the_parts_of_each_way_and_the_normal_step() -> None:
    picture = way_bars(three_ways(0.030, 0.022, 0.020), cores=2)
    check_legible(picture)
    assert (
        "2 ranks on 2 cores: with overlap off, waiting and transfer take by hand 10%, DDP over Gloo 27%"
        in picture.alt
    )
    assert "DDP over Gloo: compute 22 ms, wait 2 ms, transfer 6 ms, normal step 30 ms" in picture.alt


def test_the_answer_names_the_fastest_and_the_part_that_differs_most() -> None:
    ways = three_ways(0.030, 0.022, 0.020)
    told = explain_ways(ways, cores=2)
    assert "by hand: 20 ms per step. The slowest, DDP over Gloo, takes 30 ms, 1.50 times as long" in told
    assert "with overlap off? Transfer: 1 ms (by hand) against 6 ms (DDP over Gloo)." in told
    assert "6 ms over Gloo, 1 ms over MPI. Gloo sends them through" in told
    assert "22 ms with DDP, 20 ms by hand. One reason: DDP copies" in told
    assert times_as_long(ways, DDP_GLOO, BY_HAND) == pytest.approx(1.5)


def test_no_part_differs_where_the_slowest_loses_only_by_overlap() -> None:
    hand, gloo, mpi = (a_way(name, 0.020, 0.001, 0.001) for name in (BY_HAND, DDP_GLOO, DDP_MPI))
    told = explain_ways([hand, overlapped(gloo, -0.005), overlapped(mpi, -0.010)], cores=2)
    assert "The slowest, DDP over MPI, takes 30 ms" in told
    assert "Which part differs most" not in told


def test_the_answer_follows_a_measurement_that_says_the_opposite() -> None:
    ways = [
        a_way(BY_HAND, 0.030, 0.001, 0.006),
        a_way(DDP_GLOO, 0.020, 0.001, 0.001),
        a_way(DDP_MPI, 0.025, 0.001, 0.004),
    ]
    told = explain_ways(ways, cores=2)
    assert "DDP over Gloo: 20 ms per step. The slowest, by hand" in told
    assert "Gloo is faster here" in told
    assert "DDP sends while backward still computes" in told


def test_a_busy_machine_gets_no_verdict() -> None:
    told = explain_ways(three_ways(0.022, 0.021, 0.020, off=0.5), cores=2)
    assert "No clear answer in this run" in told
    assert "Which part differs most" not in told
    assert "by hand, too close to tell apart" in told


def test_busy_cores_are_named_and_nothing_is_concluded() -> None:
    hand, gloo, mpi = three_ways(0.030, 0.022, 0.020)
    told = explain_ways([replace(hand, core_share=0.31), gloo, mpi], cores=2)
    assert "a rank had one for only 31% of the time" in told
    assert "Reference machine, seconds per epoch of the CNN: by hand, 2 ranks 13.1 s, DDP over Gloo" in told
    assert "Gloo against MPI" not in told and "Slowest" not in told


def overlapped(way: StepTime, seconds: float) -> StepTime:
    """The same parts; a step as it is takes so many seconds less."""
    return replace(way, step=around(way.step.middle - seconds))


def test_overlap_saves_or_costs_what_is_more_than_the_noise_of_the_step_by_hand() -> None:
    hand, gloo, mpi = three_ways(0.030, 0.022, 0.020)
    noisy = overlapped(hand, -0.0006)
    told = explain_ways([noisy, overlapped(gloo, 0.002), overlapped(mpi, -0.001)], cores=2)
    assert "save? 2 ms over Gloo; over MPI it costs 1 ms. Less than 600 µs would be noise." in told
    assert "no core is idle" not in told
    told = explain_ways([noisy, overlapped(gloo, 0.002), overlapped(mpi, -0.0005)], cores=2)
    assert "save? 2 ms over Gloo; nothing that can be seen over MPI. Less" in told


def test_the_spread_of_the_step_by_hand_is_noise_too() -> None:
    hand, gloo, mpi = three_ways(0.030, 0.022, 0.020)  # by hand, a quarter of the steps take 400 µs longer
    told = explain_ways([hand, overlapped(gloo, 0.0003), mpi], cores=2)
    assert "Nothing that can be seen over Gloo" in told and "Less than 400 µs would be noise." in told


def test_overlap_below_the_noise_saves_nothing_and_the_cause_needs_every_core_to_compute() -> None:
    hand, gloo, mpi = three_ways(0.030, 0.022, 0.020)
    ways = [overlapped(hand, -0.0005), overlapped(gloo, 0.0002), overlapped(mpi, -0.0003)]
    told = explain_ways(ways, cores=2)
    assert "Nothing that can be seen over Gloo; nothing that can be seen over MPI. Less than 500 µs" in told
    assert "would be noise. Each rank uses" in told
    assert "no core is idle" not in explain_ways(ways, cores=8)


def test_one_core_has_nothing_to_compare() -> None:
    assert "nothing to compare" in explain_ways([a_way(BY_HAND, 0.02, 0.0, 0.0, ranks=1)], cores=1)


def test_a_spread_has_the_quartiles() -> None:
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert spread_of([1.0, 2.0]).clearly_below(spread_of([3.0, 4.0]))
    assert not spread_of([1.0, 4.0]).clearly_below(spread_of([2.0, 5.0]))


# ---------------------------------------------------------------- tables of text


def test_the_synthetic_report_has_the_published_figures_in_its_form() -> None:
    """334.0 on one GPU, 316.4 on each of two: 1.89 times, as the talk says."""
    lines = synthetic_report({1: [[334.0, 334.0]], 2: [[316.4], [316.4]]}).splitlines()
    assert lines == [
        "1 rank: 334.0 ± 0.0 img/s per rank, total 334.0",
        "2 ranks: 316.4 ± 0.0 img/s per rank, total 632.8, 1.89×",
    ]
    assert "10.0 ± 2.0 img/s" in synthetic_report({1: [[9.0, 11.0]]})  # 1.96 standard deviations


@pytest.mark.parametrize(
    "threads, said",
    [(0.0226, "keep up with DDP: 22.6 ms against 23.6 ms"), (0.03, "are slower"), (0.02, "are faster")],
)
def test_replicas_in_threads_are_judged_by_the_measurement(threads: float, said: str) -> None:
    seconds = [("1 thread", 0.035), ("2 threads", 0.021), ("replicas", threads), ("2 ranks, DDP", 0.0236)]
    assert f"Here, replicas in threads {said}" in replicas_and_ranks(seconds)


def test_where_two_cores_gain_nothing_they_were_busy() -> None:
    told = replicas_and_ranks([("1 thread", 0.137), ("2 threads", 0.735), ("replicas", 0.14), ("DDP", 0.152)])
    assert told.startswith("The cores were busy: this run says nothing")
    assert "Reference machine, seconds per epoch of the CNN: one process 22.4 s" in told
    assert "nothing to compare" in replicas_and_ranks([("1 thread", 0.1), ("replicas", 0.1), ("DDP", 0.1)])
    busy = synthetic_report({1: [[616.2]], 2: [[143.4], [143.4]]})
    assert busy.splitlines()[-1].startswith("The cores were busy")


def test_times_are_compared_with_the_first() -> None:
    assert compare_times([("one", 0.2), ("three", 0.1)]).splitlines() == [
        "one      200 ms  1.00×",
        "three    100 ms  2.00×",
    ]
