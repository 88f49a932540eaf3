"""Who has which item: dealt in turn, in blocks, or neither, and every item with the number of its rank."""

import pytest

from course.lessons.shared.figures.shares import owner_map
from mpi_classroom.figures import RANK_COLOURS, ink_on, to_rgb
from tests.unit.figures.pictures import check_legible, title_of


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_terms_dealt_in_turn(ranks: int) -> None:
    picture = owner_map([term % ranks for term in range(50)])
    check_legible(picture)
    numbers = [text.get_text() for text in picture.figure.axes[0].texts]
    assert numbers == [str(term % ranks) for term in range(50)]
    every = {1: "Rank 0 has all 50 terms", 2: "every second term: 2 ranks, 25 each"}
    assert every.get(ranks, f"{ranks} ranks, {50 // ranks} or {50 // ranks + 1} each") in title_of(picture)
    assert f"rank {ranks - 1} has {50 // ranks}" in picture.alt


def test_the_same_rank_stands_in_the_same_column() -> None:
    picture = owner_map([term % 3 for term in range(60)])
    rows = {}
    for cell in picture.figure.axes[0].patches:
        rows.setdefault(int(cell.get_x()), set()).add(cell.get_facecolor())
    assert all(len(colours) == 1 for colours in rows.values())


def test_blocks_are_told_from_strides() -> None:
    assert title_of(owner_map([0, 0, 0, 1, 1, 1], what="sample")) == (
        "Every rank has one block of samples: 2 ranks, 3 each"
    )
    assert title_of(owner_map([0, 0, 1, 1, 2, 3], what="head")) == (
        "6 heads on 4 ranks: ranks 0 and 1 have 2, ranks 2 and 3 have 1"
    )
    assert title_of(owner_map([0, 0, 1])) == "3 terms on 2 ranks: rank 0 has 2, rank 1 has 1"
    assert title_of(owner_map([0, 1, 1, 0, 2, 2, 2])) == (
        "3 ranks have 2 or 3 each of 7 terms, neither in strides nor in blocks"
    )
    assert "2 ranks have 1 to 3 each" in title_of(owner_map([1, 0, 1, 1]))


def test_items_count_from_where_they_begin() -> None:
    labels = [
        t.get_text() for t in owner_map([0, 1] * 20, what="sample", first=1).figure.axes[0].get_yticklabels()
    ]
    assert labels == ["sample 1", "sample 25"]


def test_a_single_row_numbers_its_cells() -> None:
    axes = owner_map([0, 0, 1, 1, 2, 3], what="head").figure.axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "1", "2", "3", "4", "5"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["head"]


def test_the_text_goes_on_only_where_cells_were_left_out() -> None:
    assert "their ranks: 0, 0, 1, 1, 2, 3. 6 heads" in owner_map([0, 0, 1, 1, 2, 3], what="head").alt
    assert "their ranks: 0, 1, 0, 1 and so on. Every" in owner_map([0, 1] * 20).alt


@pytest.mark.parametrize("count", [0, 481])
def test_too_few_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} items cannot be drawn; pass 1 to 480"):
        owner_map([0] * count)


def test_one_item_can_be_drawn() -> None:
    check_legible(owner_map([0]))


def brightness(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", RANK_COLOURS)
def test_numbers_can_be_read_on_the_colour_of_every_rank(colour: str) -> None:
    dark, light = sorted([brightness(colour), brightness(ink_on(colour))])
    assert (light + 0.05) / (dark + 0.05) >= 3  # WCAG's minimum for large letters
