"""Speed-up, efficiency, shares and accuracies, against numbers worked out by hand."""

import pytest
from rows import a_case, a_row

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    FIXED,
    GLOBAL,
    LOCAL,
    OWN_MPI,
    SCALED,
)
from course.lessons.l07_ddp_on_mnist.study_tables import finals, timings


def test_speedup_is_over_the_median_of_one_thread_and_efficiency_divides_by_ranks_and_threads():
    rows = [a_row(a_case(seed=seed), seconds=seconds) for seed, seconds in enumerate([7.0, 8.0, 20.0])]
    rows += [a_row(a_case(threads=2), seconds=5.0)]
    rows += [a_row(a_case(OWN_MPI, 2), seconds=4.0, wait=0.5, transfer=1.5)]
    alone, threads, two = timings(rows)
    assert (alone.epoch_seconds, alone.spread, alone.speedup, alone.epochs) == (8.0, 13.0, 1.0, 3)
    assert (threads.speedup, threads.efficiency) == (1.6, 0.8)
    assert (two.speedup, two.efficiency, two.images_per_s) == (2.0, 1.0, 160.0)
    assert (two.compute, two.wait, two.transfer) == (0.5, 0.125, 0.375)


def test_a_replay_and_a_measurement_of_the_same_ranks_are_never_one_line():
    rows = [
        a_row(a_case(), seconds=8.0),
        a_row(a_case(OWN_MPI, 4), seconds=4.0),
        a_row(a_case(OWN_MPI, 4, replayed=True), seconds=2.0),
    ]
    assert [(one.label, one.epoch_seconds) for one in timings(rows)[1:]] == [
        ("oversubscribed", 4.0),
        ("replayed", 2.0),
    ]


def test_the_final_accuracy_is_that_of_the_last_epoch_the_mean_of_the_seeds():
    def runs(ranks, batch, rate, *accuracies):
        return [
            a_row(
                a_case(OWN_MPI, ranks, seed, ACCURACY, batch_rule=batch, rate_rule=rate, epochs=2),
                epoch=epoch,
                accuracy=accuracy if epoch == 2 else 0.1,
            )
            for seed, accuracy in enumerate(accuracies)
            for epoch in (1, 2)
        ]

    rows = runs(2, LOCAL, FIXED, 0.7, 0.8) + runs(2, GLOBAL, FIXED, 0.9, 0.98) + runs(2, LOCAL, SCALED, 0.9)
    kept, fixed, scaled = finals(rows)
    assert (kept.rule, kept.accuracies) == ("same global batch", (0.9, 0.98))
    assert kept.mean == pytest.approx(0.94)
    assert kept.deviation == pytest.approx(0.0566, abs=1e-4)
    assert (fixed.batch_rule, fixed.mean) == (LOCAL, pytest.approx(0.75))
    assert scaled.deviation is None
