"""The picture of two layers that are cut, and the bars of what a rank keeps."""

import pytest

from course.lessons.l09_tensor_parallelism.beside_dtensor import explain_dtensor, reference_table
from course.lessons.l09_tensor_parallelism.figures import cut_layers, kept_bars
from mpi_classroom.figures import rank_colour, to_rgb
from tests.unit.figures.pictures import check_legible, letters_of, title_of


@pytest.mark.parametrize("columns", [[8], [4, 4], [3, 3, 2], [2, 2, 2, 2], [5, 1, 1, 1]], ids=str)
def test_every_rank_has_its_share_of_both_matrices(columns: list[int]) -> None:
    picture = cut_layers(columns, forward=1, backward=1)
    check_legible(picture)
    blocks = [p for p in picture.figure.axes[0].patches if hasattr(p, "get_x")]
    for rank, count in enumerate(columns):
        mine = [p for p in blocks if p.get_facecolor()[:3] == to_rgb(rank_colour(rank))]
        assert len(mine) == 3
        assert mine[0].get_width() == pytest.approx(3 * count / sum(columns))
        assert mine[2].get_height() == pytest.approx(3 * count / sum(columns))
        assert f"rank {rank} has {count}" in picture.alt


def test_the_blocks_fit_as_matrices() -> None:
    axes = cut_layers([8], forward=1, backward=1).figure.axes[0]
    x, A, hidden, B, y = [p for p in axes.patches if hasattr(p, "get_x")]
    assert axes.get_aspect() == 1
    for left, right, product in ((x, A, hidden), (hidden, B, y)):
        assert left.get_width() == right.get_height()
        assert (product.get_height(), product.get_width()) == (left.get_height(), right.get_width())


def test_the_title_says_what_was_counted() -> None:
    assert title_of(cut_layers([2, 2], forward=1, backward=0)) == (
        "2 ranks share two layers: 1 all-reduce forward, 0 all-reduces backward"
    )
    words = [text.get_text() for text in letters_of(cut_layers([2, 2], forward=3, backward=0))]
    assert "3 all-reduces" in words and "nothing sent" in words


def test_the_bars_are_what_is_kept() -> None:
    picture = kept_bars({"one process": 4e5, "tensor": 2e5, "with the sequence": 1e5}, ranks=4)
    check_legible(picture)
    assert title_of(picture) == "With the sequence: a rank keeps at most 25 % (an even share: 25 %)"
    assert [bar.get_width() for bar in picture.figure.axes[0].patches] == [400, 200, 100]
    assert "keeps most" in picture.figure.axes[0].get_xlabel()
    assert picture.alt.endswith("Kept: one process 400 kB, tensor 200 kB and with the sequence 100 kB.")


def test_dtensor_is_explained_by_what_was_measured() -> None:
    slower = explain_dtensor(2.0, 13, 17)
    assert "ours has 13 all-reduces, one of DTensor's has 17" in slower and "three layers" in slower
    assert "looks up the layouts" in slower
    assert "faster all the same" in explain_dtensor(0.8, 13, 17)
    assert explain_dtensor(0.9, 13, 17).endswith("no clear difference.")
    assert "three layers" not in explain_dtensor(2.0, 13, 13)


def test_the_reference_compares_over_mpi_only() -> None:
    table = reference_table()
    assert "DTensor" in table and "Gloo" not in table and "sequence" not in table
    assert table.count("times as long") == 2
    assert "median (slowest minus fastest)" in table and "the ratio says little" in table
