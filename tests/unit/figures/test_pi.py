"""Titles and alt texts of the pictures of π say what the numbers say."""

import numpy as np
import pytest

from course.lessons.shared.figures.pi import (
    amdahl,
    darts_by_rank,
    error_against_samples,
    error_against_terms,
    gains,
)
from tests.unit.figures.pictures import check_legible

BULLSEYE, CORNER = np.zeros((2, 3)), np.full((2, 3), 0.99)


def title(picture) -> str:
    figure = picture.figure
    return figure.get_suptitle() or figure.axes[0].get_title(loc="left")


def test_darts_are_counted_by_rank_and_together():
    picture = darts_by_rank([BULLSEYE, BULLSEYE + 0.1, CORNER])
    assert title(picture) == "3 ranks, 9 darts, 6 inside: π ≈ 2.667"
    assert "rank 0 3 of 3, rank 1 3 of 3, rank 2 0 of 3" in picture.alt


def test_ranks_that_throw_the_same_darts_are_called_out():
    assert title(darts_by_rank([BULLSEYE] * 4)).startswith("4 ranks threw the same 3 darts")


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_any_number_of_ranks_has_its_panels(ranks: int):
    panels = darts_by_rank([BULLSEYE + 0.01 * rank for rank in range(ranks)]).figure.axes
    assert [p.get_title() for p in panels if p.get_title()] == [f"rank {r}: 3 of 3" for r in range(ranks)]


def test_runs_in_the_band_are_counted():
    picture = error_against_samples({100: [0.1, -0.3], 10_000: [0.01, -0.001]}, constant=1.642)
    assert "3 of 4 runs are within one standard error, 1.64/√N" in title(picture)
    assert "0.2 at 100, 0.007 at 10,000" in picture.alt


def test_gains_multiply():
    picture = gains(100.0, 1.0, {2: 0.5, 4: 0.5}, cores=2, note="measured")
    assert title(picture) == "NumPy gained 100×, 2 ranks gained 2.0×: together 200×"
    assert "4 ranks for 1, oversubscribed: 2 cores 2 times" in picture.alt


def test_one_core_and_a_busy_machine_are_not_sold_as_gains():
    assert "there is one core" in title(gains(100.0, 1.0, {1: 1.0, 4: 1.1}, cores=1, note=""))
    assert "other programs may use the cores" in title(gains(100.0, 1.0, {2: 1.2}, cores=2, note=""))
    assert "other programs may use the cores" in title(amdahl(0.8, 2))


def test_amdahl_extrapolates_the_measured_share():
    picture = amdahl(1.9, 2)
    assert "1.90× on 2 ranks is a serial share of 5.3%" in title(picture)
    assert "1024 ranks gain 19×" in title(picture)
    assert "no serial share to see" in title(amdahl(2.1, 2))


COUNTS = [10**k for k in range(1, 6)]
SERIES = {"arctan": {n: 1 / n for n in COUNTS}, "midpoint": {n: -1 / (12 * n * n) for n in COUNTS}}


def test_series_are_compared_by_what_ten_times_the_terms_bring():
    picture = error_against_terms(SERIES, SERIES)
    check_legible(picture)
    assert title(picture) == "10 times the terms: arctan 10 times closer, midpoint 100 times closer"
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
