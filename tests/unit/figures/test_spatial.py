"""Tiles with their arrows, and accuracy by tile: what they show and say is what they were given."""

import pytest
from matplotlib.patches import FancyArrowPatch

from course.lessons.l10_spatial_and_hybrid.figures import accuracy_by_tile, halo_arrows
from tests.unit.figures.pictures import check_legible, title_of


@pytest.mark.parametrize("rows", [(3, 3), (3, 2, 2), (1, 1, 1, 1)])
def test_every_ghost_has_an_arrow_to_it_and_one_home(rows: tuple[int, ...]) -> None:
    picture = halo_arrows(rows)
    check_legible(picture)
    arrows = [patch for patch in picture.figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 4 * (len(rows) - 1)
    assert f"{len(rows)} strips" in picture.alt and f"{2 * (len(rows) - 1)} dashed arrows" in picture.alt


def test_strips_without_a_halo_are_refused() -> None:
    with pytest.raises(ValueError, match="have no halo of 2"):
        halo_arrows([3, 1], width=2)
    with pytest.raises(ValueError, match="two or more"):
        halo_arrows([3])


def test_accuracy_by_tile_says_the_best_and_the_smallest() -> None:
    picture = accuracy_by_tile({8: 0.51, 32: 1.0, 16: 0.6}, side=32)
    check_legible(picture)
    assert "tiles of 32 of 32 pixels, 100 % are right" in title_of(picture)
    assert "51 % with tiles of 8" in picture.alt
