"""The pictures of ZeRO: what ranks hold, as bars and as boxes."""

import pytest

from course.lessons.shared.figures.zero import PARTS, held_bars
from course_lib.theory.memory import ADAM_FP32, STAGES
from tests.formulas import held_state
from tests.unit.figures.pictures import check_legible, letters_of, title_of


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
