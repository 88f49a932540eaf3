"""Darts of one stream lie on each other; the alt text counts at how many points."""

import numpy as np
import pytest

from course.lessons.l02_monte_carlo_pi.figures import draw_darts
from tests.unit.figures.pictures import check_legible


@pytest.mark.parametrize(("seeds", "points"), [((0, 0, 0, 0), 40), ((0, 1, 2, 3), 160)])
def test_darts_at_one_point_are_counted_once(seeds: tuple[int, ...], points: int) -> None:
    picture = draw_darts([np.random.default_rng(seed).random((2, 40)) for seed in seeds])
    check_legible(picture)
    assert f"160 darts of 4 ranks, at {points} different points" in picture.alt
