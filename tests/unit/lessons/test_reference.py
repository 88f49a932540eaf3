"""The reference machine's rows are found by their case."""

import pytest

from course.lessons.shared.reference import reference, rows


def test_a_row_is_found_among_all_rows_of_its_benchmark() -> None:
    all_rows = rows("pi")
    assert all(row["ours"] > 0 and row["ranks"] > 0 for row in all_rows)
    assert reference("pi", all_rows[-1]["case"]) == all_rows[-1]


def test_a_benchmark_that_was_not_committed_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        rows("darts")


def test_a_case_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(KeyError):
        reference("pi", "darts on the moon")
