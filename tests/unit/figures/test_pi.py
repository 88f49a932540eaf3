"""Titles and alt texts of the picture of sums for π say what the numbers say."""

import pytest

from course.lessons.shared.figures.pi import error_against_terms
from tests.unit.figures.pictures import check_legible


def title(picture) -> str:
    figure = picture.figure
    return figure.get_suptitle() or figure.axes[0].get_title(loc="left")


COUNTS = [10**k for k in range(1, 6)]
SERIES = {"arctan": {n: 1 / n for n in COUNTS}, "midpoint": {n: -1 / (12 * n * n) for n in COUNTS}}


def test_series_are_compared_by_what_ten_times_the_terms_bring():
    picture = error_against_terms(SERIES, SERIES)
    check_legible(picture)
    assert title(picture) == "10 times N: arctan 10 times closer to π, midpoint 100 times closer to π"
    assert "arctan: 0.1 from π at 10, 1e-05 from π at 100,000, with the predicted line" in picture.alt


def test_errors_that_are_rounding_do_not_bend_the_slope():
    rounded = {**SERIES["midpoint"], 10**8: 4e-16, 10**9: 4e-16}
    assert "midpoint 100 times closer" in title(error_against_terms({"midpoint": rounded}))


def test_measured_and_predicted_are_labelled():
    axes = error_against_terms(SERIES, {"arctan": SERIES["arctan"]}).figure.axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["arctan: predicted", "arctan: measured", "midpoint: measured"]


@pytest.mark.parametrize("errors", [{100: 0.01}, {100: 0.0}])
def test_one_point_and_an_exact_result_can_be_drawn(errors: dict[int, float]):
    picture = error_against_terms({"exact": errors})
    check_legible(picture)
    assert "With the most terms: exact" in title(picture)
