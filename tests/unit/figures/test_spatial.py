"""Tiles with their arrows, and accuracy by tile: what they show and say is what they were given."""

import pytest
from matplotlib.patches import FancyArrowPatch

from course.lessons.l10_spatial_and_hybrid.figures import (
    accuracy_by_tile,
    halo_arrows,
    loss_by_step,
    memory_by_side,
    ways_to_split,
)
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


def test_accuracy_by_tile_says_that_of_the_smallest_tiles_and_that_of_one_judgement() -> None:
    picture = accuracy_by_tile({8: 0.51, 32: 1.0, 16: 0.6}, side=32, with_halos=0.98)
    check_legible(picture)
    title = " ".join(title_of(picture).split())
    assert title.startswith("One judgement per tile: 51 % with tiles of 8 pixels")
    assert title.endswith("one judgement from all tiles: 98 %")
    assert "60 % with tiles of 16" in picture.alt
    assert "98 % with tiles of 16, halos and one judgement" in picture.alt


def test_memory_by_side_says_what_one_process_and_each_rank_keep() -> None:
    picture = memory_by_side({256: 4.0, 512: 16.0}, {256: 1.0, 512: 4.2}, ranks=4)
    check_legible(picture)
    assert "At 512², one process keeps 16.0 MiB for backward, each of 4 ranks 4.2 MiB" in title_of(picture)
    assert "256 pixels 4.0 and 1.0 MiB" in picture.alt


def test_loss_by_step_says_its_ends_and_nothing_of_a_loss_that_was_not_measured() -> None:
    picture = loss_by_step([0.7, 0.4, 0.2], ranks=4)
    check_legible(picture)
    assert title_of(picture) == "On 4 ranks the loss goes from 0.70 to 0.20"
    assert "3 steps" in picture.alt
    assert "did not train" in title_of(loss_by_step([], ranks=4))


def test_every_way_to_split_has_a_part_for_each_rank() -> None:
    picture = ways_to_split()
    check_legible(picture)
    panels = picture.figure.axes
    assert len(panels) == 8
    for panel in panels:
        assert {text.get_text() for text in panel.texts} == {"0", "1", "2", "3"}
