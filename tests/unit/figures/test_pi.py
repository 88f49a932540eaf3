"""Titles and alt texts of the pictures of π say what the numbers say."""

import numpy as np
import pytest

from course.lessons.shared.figures.pi import (
    amdahl,
    darts_by_rank,
    error_against_samples,
    seconds_by_program,
)
from tests.unit.figures.pictures import check_legible

BULLSEYE, CORNER = np.zeros((2, 3)), np.full((2, 3), 0.99)


def title(picture) -> str:
    figure = picture.figure
    return figure.get_suptitle() or figure.axes[0].get_title(loc="left")


def test_darts_are_counted_by_rank_and_together():
    picture = darts_by_rank([BULLSEYE, BULLSEYE + 0.1, CORNER])
    assert title(picture) == "3 ranks threw 9 different darts, 6 inside: π ≈ 2.667"
    assert "rank 0 3 of 3, rank 1 3 of 3, rank 2 0 of 3" in picture.alt


def test_ranks_that_throw_the_same_darts_are_called_out():
    assert title(darts_by_rank([BULLSEYE] * 4)) == "4 ranks threw the same 3 darts"


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_any_number_of_ranks_has_its_panels(ranks: int):
    panels = darts_by_rank([BULLSEYE + 0.01 * rank for rank in range(ranks)]).figure.axes
    assert [p.get_title() for p in panels if p.get_title()] == [f"rank {r}: 3 of 3" for r in range(ranks)]


def test_runs_in_the_band_are_counted():
    picture = error_against_samples({100: [0.1, -0.3], 10_000: [0.01, -0.001]}, constant=1.642)
    assert title(picture) == "3 of 4 runs are within one standard error of π, 1.64/√N"
    assert "The line: 0.16 at 100, 0.016 at 10,000 darts" in picture.alt
    labels = [text.get_text() for text in picture.figure.axes[0].get_legend().get_texts()]
    assert labels == ["within one standard error", "theory: 1.64/√N", "measured: one run"]


def test_runs_with_the_same_number_of_darts_are_drawn_apart():
    axes = error_against_samples({100: [0.1, 0.1, 0.1]}, constant=1.642).figure.axes[0]
    assert axes.lines[1].get_xdata() == pytest.approx([90, 100, 110])


PROGRAMS = {"loop": 30.0, "plain": 2.0}


def test_every_program_has_its_seconds_and_its_factor():
    picture = seconds_by_program(**PROGRAMS, tuned={1: 0.25, 2: 0.125, 4: 0.13}, cores=2)
    check_legible(picture)
    assert (
        title(picture)
        == "Tuned NumPy on one rank is 120× as fast as the loop;\n2 ranks are 2.00× as fast as one"
    )
    assert "plain NumPy: 2 s, 15× as fast as the loop" in picture.alt
    assert "tuned NumPy, 1 rank: 250 ms, 8× as fast as plain NumPy" in picture.alt
    assert "2 ranks, 2 cores: 125 ms, 2.00× as fast as 1 rank" in picture.alt
    assert "4 ranks, 2 cores (oversubscribed): 130 ms, 1.92× as fast as 1 rank" in picture.alt
    assert picture.figure.axes[0].get_xlim()[0] == pytest.approx(0.01)


def test_bars_of_seconds_begin_at_a_second():
    axes = seconds_by_program(153.0, 10.5, {1: 2.1, 2: 2.37, 4: 2.27}, cores=2).figure.axes[0]
    assert axes.get_xlim()[0] == 1


@pytest.mark.parametrize(
    ("loop", "plain", "tuned"),
    [
        (34.3, 2.65, {1: 0.402, 2: 0.209, 4: 0.214}),
        (153.0, 10.5, {1: 2.1, 2: 2.37, 4: 2.27}),
        (30.0, 20.0, {1: 9.0, 2: 15.0, 4: 16.0}),
        (40.0, 2.0, {1: 0.25, 8: 0.03}),
    ],
)
def test_the_axis_of_seconds_ends_where_the_longest_label_does(
    loop: float, plain: float, tuned: dict[int, float]
):
    picture = seconds_by_program(loop, plain, tuned, cores=2)
    check_legible(picture)
    axes = picture.figure.axes[0]
    ends = max(text.get_window_extent().x1 for text in axes.texts)
    assert axes.bbox.x1 - 0.1 * axes.bbox.width < ends < axes.bbox.x1


@pytest.mark.parametrize(
    ("tuned", "cores", "words"),
    [
        (
            {1: 0.25, 4: 0.3},
            1,
            "4 ranks, on 1 core, are 0.83× as fast as one (not as on separate free cores)",
        ),
        ({1: 0.25, 2: 0.4, 4: 0.3}, 2, "2 ranks are 0.62× as fast as one (not as on separate free cores)"),
        ({1: 0.25, 4: 0.0625}, 4, "4 ranks are 4× as fast as one"),
        ({1: 0.25, 2: 0.1, 4: 0.13}, 2, "2 ranks are 2.50× as fast as one (not as on separate free cores)"),
    ],
)
def test_what_ranks_gain_is_what_was_measured(tuned: dict[int, float], cores: int, words: str):
    picture = seconds_by_program(**PROGRAMS, tuned=tuned, cores=cores)
    check_legible(picture)
    assert words in title(picture)


def test_amdahl_draws_what_a_measurement_leaves_open():
    picture = amdahl((1.96, 1.98, 2.01), 2)
    check_legible(picture)
    assert "Measured on 2 ranks: 1.96× to 2.01×" in title(picture)
    assert "1024 ranks: anything from 47× to 1024×" in title(picture)
    assert "between 1.96 and 2.01" in picture.alt


def test_amdahl_says_which_machine_was_measured():
    assert "Measured on 2 ranks of the reference machine: 1.96×" in title(
        amdahl((1.96, 1.98, 2.01), 2, machine="reference machine")
    )


def test_ranks_slower_than_one_are_not_extrapolated():
    with pytest.raises(ValueError, match="fraction from 0 to 1"):
        amdahl((0.9, 1.5, 1.8), 2)
