"""Grids of what collectives leave and the ring's film: what they show and say is what the ranks held."""

import pytest
from matplotlib.colors import to_hex

from course.lessons.l04_collectives.figures.collectives import (
    COMBINED,
    COMPLETE,
    ByRank,
    ring_film,
    what_each_leaves,
)
from mpi_classroom.figures import Picture, rank_colour
from tests.unit.figures.pictures import check_legible, letters_of, title_of

PARTS = ("a", "b", "c", "d", "e", "f", "g", "h")
OWN = [[PARTS[rank]] for rank in range(4)]
ROOT_HAS_ALL: ByRank = [PARTS[:4], [], [], []]
POWERS = [[10**rank] for rank in range(4)]


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (4 * [["a"]], "every rank holds the same value"),
        (OWN, "every rank holds 1 of 4 values"),
        (ROOT_HAS_ALL, "rank 0 alone holds 4 values"),
        (4 * [PARTS[:4]], "every rank holds the same 4 values"),
        ([[1111], [0], [0], [0]], "rank 0 alone holds 1 value"),
        ([[f"{f}{r}" for f in range(4)] for r in range(4)], "every rank holds 4 of 16 values"),
        ([["a", "b"], ["c"], ["d"], ["e"]], "every rank holds 1 to 2 of 5 values"),
        ([[], [], [0, 0], []], "no rank holds anything"),
        ([["a"], ["a"], [], ["a"]], "each of ranks 0, 1 and 3 holds the same value"),
    ],  # a broadcast that missed a rank is not said to have reached every rank
)
def test_the_title_is_read_from_what_the_ranks_hold(after: ByRank, told: str) -> None:
    picture = what_each_leaves(POWERS, {"A": after})
    check_legible(picture)
    assert title_of(picture) == f"After A {told}"


def test_collectives_that_leave_the_same_are_named_together() -> None:
    after = {"Gather": [PARTS[:4], [], [], []], "Scatter": OWN, "Reduce": ROOT_HAS_ALL}
    assert title_of(what_each_leaves(OWN, after)) == (
        "After Gather and Reduce rank 0 alone holds 4 values; after Scatter every rank holds 1 of 4 values"
    )


def test_the_title_names_those_that_leave_all_ranks_the_same() -> None:
    after = {"bcast": 4 * [["a", "b"]], "Scatter": OWN, "all_reduce": 4 * [["e", "f"]]}
    assert title_of(what_each_leaves(OWN, after)) == (
        "After bcast and all_reduce every rank holds the same 2 values"
    )


def cells_of(picture: Picture, panel: int) -> list[tuple[int, int, str]]:
    """Row, column and fill of every cell."""
    cells = picture.figure.axes[panel].patches
    return [(int(cell.get_y()), int(cell.get_x()), to_hex(cell.get_facecolor())) for cell in cells]


def test_a_value_keeps_the_colour_of_the_rank_that_had_it() -> None:
    picture = what_each_leaves(OWN, {"All-gather": 4 * [PARTS[:4]]})
    colours = [cell.get_facecolor() for cell in picture.figure.axes[1].patches[:4]]
    before = [cell.get_facecolor() for cell in picture.figure.axes[0].patches]
    assert colours == before
    assert len({tuple(colour) for colour in colours}) == 4
    assert rank_colour(0) != rank_colour(1)


def test_a_value_that_nobody_had_is_grey_and_explained() -> None:
    picture = what_each_leaves(POWERS, {"All-reduce": 4 * [[1111]]})
    assert cells_of(picture, 1) == [(rank, 0, COMBINED["facecolor"]) for rank in range(4)]
    assert "combined from several ranks" in [text.get_text() for text in letters_of(picture)]


def test_an_array_that_was_not_written_is_said_to_be_still_zeros() -> None:
    picture = what_each_leaves(OWN, {"Reduce": [[1111], [0], [0], [0]]})
    assert [text.get_text() for text in picture.figure.axes[1].texts].count("still zeros") == 3
    assert (
        "After Reduce: rank 0 1111; rank 1 still zeros; rank 2 still zeros; rank 3 still zeros."
        in picture.alt
    )


def test_who_holds_nothing_is_said_to() -> None:
    picture = what_each_leaves(ROOT_HAS_ALL, {"Scatter": OWN})
    assert [text.get_text() for text in picture.figure.axes[0].texts].count("nothing") == 3
    assert "Before: rank 0 a, b, c and d; rank 1 nothing; rank 2 nothing; rank 3 nothing." in picture.alt
    assert "After Scatter: rank 0 a; rank 1 b; rank 2 c; rank 3 d." in picture.alt


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_any_number_of_ranks_is_drawn_from_top_to_bottom(ranks: int) -> None:
    rows = [[f"{rank}→{to}" for to in range(ranks)] for rank in range(ranks)]
    columns = [[f"{other}→{rank}" for other in range(ranks)] for rank in range(ranks)]
    picture = what_each_leaves(rows, {"All-to-all": columns})
    check_legible(picture)
    numbers = [str(rank) for rank in range(ranks)]
    for panel in picture.figure.axes:
        assert [label.get_text().split()[-1] for label in panel.get_yticklabels()] == numbers
        bottom, top = panel.get_ylim()
        assert bottom > top


def test_labels_that_cannot_fit_are_refused_with_the_length_that_would() -> None:
    long = 8 * [["x" * 20] * 8]
    with pytest.raises(
        ValueError, match="8 cells with 20 letters do not fit; give labels of at most 7 letters"
    ):
        what_each_leaves(long, {"All-to-all": long})


# ---------------------------------------------------------------- the ring


def ring(ranks: int) -> list[list[list[int]]]:
    """By rank and step: what a ring all-reduce of one number per chunk, 2**rank, leaves."""
    now = {rank: [2**rank] * ranks for rank in range(ranks)}
    states = [{rank: list(chunks) for rank, chunks in now.items()}]
    for step in range(2 * (ranks - 1)):
        shift, adds = (step, True) if step < ranks - 1 else (step - ranks, False)
        sent = {rank: now[rank][(rank - shift) % ranks] for rank in now}
        for rank in now:
            chunk = (rank - 1 - shift) % ranks
            now[rank][chunk] = sent[(rank - 1) % ranks] + (now[rank][chunk] if adds else 0)
        states.append({rank: list(chunks) for rank, chunks in now.items()})
    return [[state[rank] for state in states] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_rank_and_every_step_is_in_the_film(ranks: int) -> None:
    films = ring(ranks)
    assert [film[-1] for film in films] == ranks * [[2**ranks - 1] * ranks]
    picture = ring_film(films)
    check_legible(picture)
    half, steps = ranks - 1, "s" * (ranks > 2)
    assert title_of(picture) == (
        f"After {half} step{steps} every rank has 1 complete chunk, after {2 * half} all {ranks}"
    )
    frames = [axes.get_title(loc="left") for axes in picture.figure.axes if axes.axison]
    assert frames == ["start", "after 1 step", *(f"after {step} steps" for step in range(2, 2 * ranks - 1))]
    assert "After 1 step: rank 0" in picture.alt
    assert f"rank {ranks - 1} {2**ranks - 1}" in picture.alt


def test_what_changed_has_a_thick_border_and_what_is_complete_is_filled() -> None:
    picture = ring_film(ring(2))
    start, first, last = ([axes.patches[k] for k in range(4)] for axes in picture.figure.axes[:3])
    assert [cell.get_linewidth() > 1 for cell in start] == [False] * 4
    assert [cell.get_linewidth() > 1 for cell in first] == [False, True, True, False]
    filled = first[1].get_facecolor()
    assert [cell.get_facecolor() == filled for cell in last] == [True] * 4
    assert [cell.get_facecolor() == filled for cell in first] == [False, True, True, False]
    assert COMPLETE["facecolor"] != "white"


def test_the_columns_have_the_numbers_of_the_chunks() -> None:
    picture = ring_film(ring(4))
    grids = [axes for axes in picture.figure.axes if axes.axison]
    assert {tuple(tick.get_text() for tick in axes.get_xticklabels()) for axes in grids} == {
        ("0", "1", "2", "3")
    }
    words = [[text for text in axes.texts if text.get_text() == "chunk"] for axes in grids]
    assert len(words[0]) == 1 and len(words[1]) == 0
    heading = next(text for text in letters_of(picture) if text.get_text() == "start").get_window_extent()
    word, first = words[0][0].get_window_extent(), grids[0].get_xticklabels()[0].get_window_extent()
    assert word.x1 < first.x0 and abs(word.y0 - first.y0) < 5 and first.y1 < heading.y0


def test_a_reduce_scatter_is_half_the_film() -> None:
    picture = ring_film([film[:4] for film in ring(4)])
    assert title_of(picture) == "After 3 steps every rank has 1 complete chunk of 4"


def test_a_ring_that_forgot_to_add_is_not_called_complete() -> None:
    films = [len(film) * [film[0]] for film in ring(4)]
    assert title_of(ring_film(films)) == "After 6 steps some rank still has no complete chunk"


def test_a_ring_of_one_rank_has_nothing_to_do() -> None:
    picture = ring_film(ring(1))
    check_legible(picture)
    assert title_of(picture) == "1 rank, no step: this is how it starts"
