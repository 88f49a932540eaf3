"""Lesson 11 says what was measured; a killed training of it goes on with the losses it would have had."""

from pathlib import Path

import pytest

from course.lessons.l11_zero_from_scratch.records import Look
from course.lessons.l11_zero_from_scratch.resume_jobs import largest_difference, run_job, side_by_side
from course.lessons.l11_zero_from_scratch.words import (
    benchmark_table,
    compare_last_stages,
    explain_peak,
    explain_seconds,
    memory_table,
)


def test_the_peak_is_explained_by_what_comes_on_top() -> None:
    looks = [
        Look([4_000_000, 5_000_000], 4_000_000, 900_000),
        Look([1_000_000, 2_750_000], 1_000_000, 900_000),
    ]
    words = explain_peak(looks)
    assert "What is held falls by 75 %" in words and "0.90 MB of activations, as in stage 0" in words
    assert memory_table(looks).splitlines()[2].split() == ["stage", "1", "1.00", "2.75", "0.90"]


def test_stage_3_saves_less_of_the_peak_than_of_what_is_held() -> None:
    before, last = Look([2_980_000], 1_640_000, 10), Look([2_820_000], 940_000, 10)
    first, second = compare_last_stages([before, before, before, last]).splitlines()
    assert first == "Stage 3 holds 0.70 MB less than stage 2, and its peak is 0.16 MB lower."
    assert "use up the rest: a layer's, and the embedding's and head's" in second
    higher = Look([3_000_000], 940_000, 10)
    assert "its peak is 0.02 MB higher" in compare_last_stages([before, higher])
    assert "use up" not in compare_last_stages([before, Look([2_000_000], 940_000, 10)])


def test_a_peak_that_falls_as_much_as_what_is_held_is_not_explained_by_activations() -> None:
    looks = [Look([4_000_000], 4_000_000, 10), Look([1_000_000], 1_000_000, 10)]
    assert "as much as what is held" in explain_peak(looks)


@pytest.mark.parametrize(
    ("seconds", "ranks", "says", "not_said"),
    [
        ((0.02, 0.01, 0.01, 0.02), 2, ("Stage 0 takes longer", "Stage 3 takes longer"), "no more time"),
        ((0.01, 0.01, 0.01, 0.01), 2, ("Stage 3 costs no more time",), "takes longer"),
        ((0.02, 0.01, 0.01, 0.02), 1, ("One rank sends nothing",), "takes longer"),
    ],
)
def test_times_are_explained_as_they_are(
    seconds: tuple[float, ...], ranks: int, says: tuple[str, ...], not_said: str
) -> None:
    words = explain_seconds(seconds, ranks)
    assert all(each in words for each in says) and not_said not in words


def test_the_benchmark_has_a_header_and_a_comment_from_its_numbers() -> None:
    names = [("own 2", "FSDP2 2", 2.0), ("own 3", "FSDP2 3", 2.5)]
    rows = [
        {
            "case": f"a step, 6 layers: {own}",
            "ranks": 2,
            "ours": ours,
            "peer": 3.0,
            "peer_name": peer,
            "ours_spread": 0.2,
            "peer_spread": 0.15,
        }
        for own, peer, ours in names
    ]
    words = benchmark_table(1.5, rows)
    assert words.startswith("seconds per step on 2 ranks")
    assert "1.25 times as long as a stage-2 step there, 1.50 times here" in words
    assert "up to 10 % of a step apart" in words
    # 1.25 there; within the 10 % of noise, up to 1.375, there is nothing to explain
    assert "weigh less" in words and "weigh less" not in benchmark_table(1.35, rows)
    noisy = [{**row, "peer_spread": 1.5} for row in rows]  # a peer's noise counts as well
    assert "up to 50 % of a step apart" in benchmark_table(1.5, noisy)
    assert "weigh less" not in benchmark_table(1.5, noisy)


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
