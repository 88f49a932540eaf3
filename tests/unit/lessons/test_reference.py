"""The reference machine's rows are found by their case, and a speed-up has its range."""

import pytest

from course.lessons.shared.reference import reference, rows, speedups_of


def test_two_ranks_of_the_reference_machine_are_about_twice_as_fast_as_one() -> None:
    row = reference("pi", "darts, the ranks' share: 2 ranks for 1")
    low, median, high = speedups_of(row)
    assert 1 < low < median == row["ratio"] < high


def test_a_row_is_found_among_all_rows_of_its_benchmark() -> None:
    all_rows = rows("pi")
    assert all(row["ours"] > 0 and row["ranks"] > 0 for row in all_rows)
    assert reference("pi", all_rows[-1]["case"]) == all_rows[-1]


def test_a_benchmark_that_was_not_committed_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        rows("darts")


def test_speed_ups_are_half_a_spread_off() -> None:
    row = {"ours": 1.0, "ours_spread": 0.5, "peer": 2.0, "peer_spread": 1.0, "ratio": 2.0}
    assert speedups_of(row) == (1.5 / 1.25, 2.0, 2.5 / 0.75)


def test_a_case_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(KeyError):
        reference("pi", "darts on the moon")
