"""The pictures of ZeRO: owners, bars of what is held, and lines of what is live."""

import pytest
from matplotlib.colors import to_rgb

from course.lessons.shared.figures.zero import PARTS, cut_parameters, held_bars, live_lines, slice_owners
from course_lib.theory.memory import ADAM_FP32, STAGES
from mpi_classroom.figures import rank_colour
from tests.formulas import held_state
from tests.unit.figures.pictures import check_legible, letters_of, title_of

SIZES = {"up.weight": 40, "up.bias": 8, "down.weight": 40, "down.bias": 5}


@pytest.mark.parametrize(("ranks", "longest"), [(1, 93), (2, 47), (3, 31), (4, 24)])
def test_every_rank_has_one_slice_of_the_buffer(ranks: int, longest: int) -> None:
    picture = slice_owners(SIZES, ranks)
    check_legible(picture)
    boxes = [p for p in picture.figure.axes[0].patches if hasattr(p, "get_x")]
    mine = [p for p in boxes if p.get_facecolor()[:3] == to_rgb(rank_colour(0))]
    assert [(p.get_x(), p.get_width()) for p in mine] == [(0, longest)]
    assert len(boxes) == 4 + ranks
    assert "down.bias with 5" in picture.alt


def test_parameters_too_narrow_for_their_names_are_named_above() -> None:
    words = {text.get_text() for text in letters_of(slice_owners(SIZES, 4))}
    assert {"up.weight\n40", "up.bias 8", "down.bias 5"} <= words


def test_the_title_names_the_parameters_that_are_cut() -> None:
    assert cut_parameters(SIZES, 4) == ["up.weight", "up.bias", "down.weight"]
    assert cut_parameters({"a": 5, "b": 5}, 2) == []
    assert title_of(slice_owners(SIZES, 2)) == (
        "Each of 2 ranks owns 46 or 47 numbers; a border goes through up.bias"
    )


def test_bars_are_what_is_held_and_the_formula_is_marked() -> None:
    held = [[held_state([10_001], stage, 4, rank) for rank in range(4)] for stage in STAGES]
    picture = held_bars(held, 10_001, ADAM_FP32)
    check_legible(picture)
    bars = [p.get_height() for p in picture.figure.axes[0].patches]
    assert len(bars) == 3 * 16
    assert sum(bars) == pytest.approx(sum(state.total for stage in held for state in stage) / 1e6)
    assert title_of(picture) == (
        "Bytes per parameter that a rank holds, by stage: 16.0, 10.0, 7.0 and 4.0, as the formula says"
    )
    words = {text.get_text() for text in letters_of(picture)}
    assert {"stage 0", "stage 3", "optimizer state"} <= words
    assert len({(look["color"], look["hatch"]) for look in PARTS.values()}) == 3


def test_bars_that_are_off_the_formula_say_by_how_much() -> None:
    held = [[held_state([11_000], stage, 4, rank) for rank in range(4)] for stage in STAGES]
    assert "within 10.0 % of the formula" in title_of(held_bars(held, 10_000, ADAM_FP32))


def test_lines_are_what_is_live() -> None:
    live = {"stage 0": [100_000_000, 130_000_000, 100_000_000], "stage 3": [25_000_000, 60_000_000]}
    held = {"stage 0": 100_000_000, "stage 3": 25_000_000}
    picture = live_lines(live, held)
    check_legible(picture)
    assert title_of(picture) == (
        "From stage 0 to stage 3, held memory falls by 75 %, the peak of a step falls by 54 %"
    )
    lines = [line for line in picture.figure.axes[0].lines if line.get_label() in live]
    assert [list(line.get_ydata()) for line in lines] == [[100, 130, 100], [25, 60]]
    assert {"peak 130 MB", "peak 60 MB"} <= {text.get_text() for text in letters_of(picture)}


def test_a_peak_that_rises_is_not_said_to_fall() -> None:
    live = {"stage 0": [100, 130], "stage 3": [25, 143]}
    title = title_of(live_lines(live, {"stage 0": 100, "stage 3": 25}))
    assert "held memory falls by 75 %, the peak of a step rises by 10 %" in title
