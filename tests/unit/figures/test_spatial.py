"""The pictures of lesson 10 say in words where rows are dark."""

import numpy as np

from course.lessons.l10_spatial_and_hybrid.figures import draw
from tests.unit.figures.pictures import check_legible


def test_a_picture_with_a_seam_is_said_to_have_one_and_one_without_is_not() -> None:
    whole = np.ones((20, 20))
    seam = whole.copy()
    seam[9:11] = 0.6
    picture = draw({"whole": [whole[None, None]], "from strips": np.split(seam[None, None], 2, axis=2)})
    check_legible(picture)
    assert "whole, without dark rows" in picture.alt
    assert "from strips, with dark rows 9, 10" in picture.alt
