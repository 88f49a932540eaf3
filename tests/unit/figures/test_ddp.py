"""The figures of lesson 07: they say what is in the data, in the title and to those who cannot see them."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from course.lessons.l07_ddp_on_mnist.figures.ddp import (
    compare_times,
    in_turn,
    profile_table,
    sampler_dealing,
    step_bars,
    synthetic_report,
    waiting_share,
)
from course.lessons.l07_ddp_on_mnist.figures.study_summary import (
    explain_study,
    points_lost,
    study_summary,
    summarise,
)
from course_lib.comm.spans import Span
from tests.unit.figures.pictures import check_legible

PADDED = [{"epoch 0": [4, 3, 6]}, {"epoch 0": [1, 9, 2]}, {"epoch 0": [7, 0, 4]}, {"epoch 0": [5, 8, 1]}]

# ---------------------------------------------------------------- dealing


def test_cards_are_in_the_order_of_dealing() -> None:
    assert in_turn([[4, 3, 6], [1, 9]]) == [(0, 4), (1, 1), (0, 3), (1, 9), (0, 6)]


def test_the_title_counts_what_is_dealt_twice() -> None:
    picture = sampler_dealing(PADDED)
    check_legible(picture)
    assert "10 images on 4 ranks: 3 each, so 2 are dealt twice" in picture.alt
    assert "rank 2 [7, 0, 4]" in picture.alt
    even = sampler_dealing([{"epoch 0": [0, 2]}, {"epoch 0": [1, 3]}])
    assert "4 images on 2 ranks: 2 each, none twice" in even.alt
    uneven = sampler_dealing([{"epoch 0": [0, 2]}, {"epoch 0": [1]}])
    assert "1 to 2 each" in uneven.alt


def test_it_says_when_an_epoch_repeats_the_order_of_the_first() -> None:
    alike = sampler_dealing([{"epoch 0": [0, 2], "epoch 1": [0, 2]}, {"epoch 0": [1, 3], "epoch 1": [1, 3]}])
    assert "epoch 1 repeats the order of epoch 0" in alike.alt
    other = sampler_dealing([{"epoch 0": [0, 2], "epoch 1": [2, 0]}, {"epoch 0": [1, 3], "epoch 1": [1, 3]}])
    assert "every epoch in another order" in other.alt


def test_more_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="40 samples do not fit into a row"):
        sampler_dealing([{"epoch 0": list(range(20))}, {"epoch 0": list(range(20, 40))}])


# ---------------------------------------------------------------- bars


def a_step(wait: float) -> list[Span]:
    return [
        Span(0, "step", "compute", 0.0, 0.020),
        Span(0, "sum", "transfer", 0.016, 0.020),
        Span(1, "step", "compute", 0.0, 0.020),
        Span(1, "sum", "wait", 0.016 - wait, 0.016),
        Span(1, "sum", "transfer", 0.016, 0.020),
    ]


def test_bars_tell_waiting_from_transfer_for_each_backend() -> None:
    picture = step_bars({"gloo": a_step(0.004), "mpi4py": a_step(0.002)}, cores=2)
    check_legible(picture)
    assert "2 ranks on 2 cores" in picture.alt
    assert "Gloo 2 ms waiting, 4 ms transfer; MPI 1 ms waiting, 4 ms transfer" in picture.alt
    assert "Gloo, rank 1: compute 12 ms, transfer 4 ms, wait 4 ms" in picture.alt


def test_the_share_of_waiting_is_that_of_the_time_in_sums() -> None:
    assert waiting_share(a_step(0.004)) == pytest.approx(4 / 12)
    assert waiting_share([Span(0, "step", "compute", 0.0, 1.0)]) == 0


def test_a_step_without_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="trace_ddp_step gave on rank 0"):
        step_bars({"gloo": []}, cores=2)


# ---------------------------------------------------------------- tables of text


def test_the_profile_is_cut_and_its_shares_add_up() -> None:
    text = profile_table([("conv", 2, 0.006), ("mm", 4, 0.003), ("a" * 70, 1, 0.001)], top=2)
    lines = text.splitlines()
    assert lines[1].split() == ["6", "60%", "2", "conv"] and lines[2].split() == ["3", "30%", "4", "mm"]
    assert lines[3].split() == ["1", "10%", "1", "others"]
    assert "…" + "a" * 59 in profile_table([("a" * 70, 1, 0.001)])


def test_the_synthetic_report_has_the_published_figures_in_its_form() -> None:
    """334.0 on one GPU, 316.4 on each of two: 1.89 times, as the talk says."""
    lines = synthetic_report({1: [[334.0, 334.0]], 2: [[316.4], [316.4]]}).splitlines()
    assert lines == [
        "1 rank: 334.0 ± 0.0 img/s a rank, total 334.0",
        "2 ranks: 316.4 ± 0.0 img/s a rank, total 632.8, 1.89×",
    ]
    assert "10.0 ± 2.0 img/s" in synthetic_report({1: [[9.0, 11.0]]})  # 1.96 standard deviations


def test_times_are_compared_with_the_first() -> None:
    assert compare_times([("one", 0.2), ("three", 0.1)]).splitlines() == [
        "one      200 ms  1.00×",
        "three    100 ms  2.00×",
    ]


# ---------------------------------------------------------------- a study


def epoch(engine: str, ranks: int, seconds: float, **rest: object) -> SimpleNamespace:
    row: dict[str, object] = {
        "part": "timing",
        "model": "cnn",
        "engine": engine,
        "ranks": ranks,
        "threads": 1,
        "batch_rule": "global",
        "rate_rule": "fixed",
        "epoch": 1,
        "epochs": 1,
        "replayed": False,
        "epoch_seconds": seconds,
        "compute_seconds": 0.7 * seconds,
        "wait_seconds": 0.2 * seconds,
        "transfer_seconds": 0.1 * seconds,
        "test_accuracy": 0.98,
        "cores": 2,
    }
    return SimpleNamespace(**(row | rest))


def trained(ranks: int, accuracy: float, batch: str = "global", **rest: object) -> SimpleNamespace:
    engine = "mpi" if ranks > 1 else "sequential"
    return epoch(engine, ranks, 9, part="accuracy", test_accuracy=accuracy, batch_rule=batch, **rest)


TIMED = [epoch("sequential", 1, 20), epoch("mpi", 2, 11), epoch("mpi", 4, 12), epoch("ddp-gloo", 2, 19)]
TRAINED = [
    *(trained(1, accuracy) for accuracy in (0.990, 0.992)),
    *(trained(4, accuracy) for accuracy in (0.9895, 0.9905)),
    *(trained(4, accuracy, "local") for accuracy in (0.985, 0.985)),
]


def test_a_study_says_what_ran_out_and_what_lowered_the_accuracy() -> None:
    summary = summarise([*TIMED, *TRAINED], "cnn")
    picture = study_summary(summary)
    check_legible(picture)
    assert "cnn on 2 ranks on 2 cores: 1.82× as fast (by hand)" in picture.alt
    assert "−0.1 points with the same global batch" in picture.alt
    assert "−0.6 points with the same batch a rank" in picture.alt
    said = explain_study(summary)
    assert "On 4 ranks 1.67×: the cores ran out." in said
    assert "DDP, Gloo, 2 ranks on 2 cores: 19 s an epoch, 1.05× as fast; the ranks share something" in said
    assert "same global batch, 4 ranks: −0.1 points (no more than seeds do)" in said
    assert "same batch a rank, 4 ranks: −0.6 points (seeds alone: 0.2)" in said
    assert points_lost(summary) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wait", "transfer", "what"),
    [
        (0.1, 0.4, "the transfer ran out of bandwidth"),
        (0.4, 0.1, "a core was slower or busy elsewhere"),
        (0.1, 0.1, "the ranks share something else that ran out"),
    ],
)
def test_below_a_speedup_of_1_2_the_resource_that_ran_out_is_named(
    wait: float, transfer: float, what: str
) -> None:
    slow = epoch(
        "mpi", 2, 19, wait_seconds=wait, transfer_seconds=transfer, compute_seconds=1 - wait - transfer
    )
    assert what in explain_study(summarise([epoch("sequential", 1, 20), slow], "cnn"))


def test_without_a_core_for_each_rank_the_cores_ran_out() -> None:
    rows: Sequence[SimpleNamespace] = [epoch("sequential", 1, 20, cores=1), epoch("mpi", 2, 19, cores=1)]
    summary = summarise(rows, "cnn")
    assert "the cores ran out: the ranks take turns" in explain_study(summary)
    assert "no run of several ranks had a core for each" in study_summary(summary).alt


def test_what_was_replayed_or_had_more_threads_is_not_shown_as_measured() -> None:
    others = [epoch("mpi", 8, 1, replayed=True), epoch("sequential", 1, 1, threads=2)]
    assert summarise([*TIMED, *others], "cnn").seconds == summarise(TIMED, "cnn").seconds
    assert summarise([*TIMED, *others], "cnn").alone == 20


def test_a_model_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no time of 'lstm' on one rank"):
        summarise(TIMED, "lstm")
    assert points_lost(summarise(TIMED, "cnn")) == 0
