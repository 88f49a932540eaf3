"""The reference machine's rows are found by their case."""

from course.lessons.shared.reference import reference, rows


def test_a_row_is_found_among_all_rows_of_its_benchmark() -> None:
    all_rows = rows("pi")
    assert all(row["ours"] > 0 and row["ranks"] > 0 for row in all_rows)
    assert reference("pi", all_rows[-1]["case"]) == all_rows[-1]
