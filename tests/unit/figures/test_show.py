"""Rows that draw themselves: marks by kind, axes with units, and every number in words and in a table."""

import re
from inspect import signature
from typing import Any

import pytest
from matplotlib.collections import LineCollection

from course_lib.rows import Row, count, predicted, published
from mpi_classroom.cluster import show as typed
from mpi_classroom.figures import Picture
from mpi_classroom.show import FEW_BARS, KINDS, show
from tests.unit.figures.pictures import check_legible, title_of


def measured(value: float, **labels: Any) -> Row:
    return Row(labels, value, 0.9 * value, 1.5 * value)


def curves() -> list[Row]:
    """A ring, measured, predicted and published, over sizes from 1 KiB to 8 MiB."""
    sizes = [2**10, 2**16, 2**23]
    ring = [measured(1e-3 + 1e-9 * n, way="ring", bytes=n) for n in sizes]
    tree = [measured(2e-3 + 1e-9 * n, way="tree", bytes=n) for n in sizes]
    said = [predicted(1e-3 + 1e-9 * n, way="ring", bytes=n) for n in sizes]
    return [*ring, *tree, *said, published(0.01, source="Li 2020", way="ring", bytes=2**20)]


def drawn(picture: Picture) -> dict[str, Any]:
    """The lines of the picture by their legend."""
    axes = picture.figure.axes[0]
    return {each.get_label(): each.lines[0] for each in axes.containers if hasattr(each, "lines")}


def test_kinds_differ_in_line_and_mark_and_are_named() -> None:
    picture = show(curves(), x="bytes", y="time per all-reduce", by="way", title="The ring is faster")
    check_legible(picture)
    lines = drawn(picture)
    assert list(lines) == [
        "ring (measured)",
        "tree (measured)",
        "ring (predicted)",
        "ring (published: Li 2020)",
    ]
    looks = [(line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()) for line in lines.values()]
    ring, tree = (line.get_color() for line in list(lines.values())[:2])
    assert looks == [("-", "o", ring), ("-", "s", tree), ("--", "o", "white"), ("None", "D", "white")]
    assert [line.get_color() for line in lines.values()] == [ring, tree, ring, ring] and ring != tree
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == list(lines)


def test_a_replay_is_dotted_and_what_was_counted_is_solid() -> None:
    rows = [Row({"x": x, "of": kind}, x, x, x, "steps", kind) for x in (1, 2) for kind in KINDS]
    styles = {name: line.get_linestyle() for name, line in drawn(show(rows, x="x", by="of")).items()}
    assert styles["replayed (replayed)"] == ":" and styles["counted (counted)"] == "-"


def test_axes_are_logarithmic_where_values_range_far_and_say_their_units() -> None:
    axes = show(curves(), x="bytes", y="time per all-reduce", by="way").figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")  # 1 to 16 ms
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("bytes", "time per all-reduce (ms)")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 KiB", "64 KiB", "1 MiB", "8 MiB"]
    wide = show([measured(1e-5, ranks=1), measured(1e-2, ranks=2)], x="ranks").figure.axes[0]
    assert (wide.get_xscale(), wide.get_yscale()) == ("linear", "log")
    assert wide.get_ylabel() == "time (ms), measured"
    zero = show([count(0, unit="bytes", ranks=1), count(2**21, unit="bytes", ranks=99)], x="ranks")
    assert zero.figure.axes[0].get_yscale() == "linear"
    assert zero.figure.axes[0].get_ylabel() == "size (MiB), counted"
    assert zero.figure.axes[0].get_ylim()[0] == 0


def test_the_line_at_a_mark_goes_from_the_least_to_the_greatest() -> None:
    rows = [measured(2e-3, ranks=1), measured(4e-3, ranks=2)]
    (bars,) = show(rows, x="ranks").figure.axes[0].findobj(LineCollection)
    ends = [sorted(y for _, y in segment) for segment in bars.get_segments()]
    assert ends == [pytest.approx([1.8, 3.0]), pytest.approx([3.6, 6.0])]


def test_every_number_is_in_the_alt_text_and_in_the_table() -> None:
    picture = show(curves(), x="bytes", y="time", by="way", title="The ring is faster")
    assert picture.alt.startswith(
        "The ring is faster. Lines. Across: bytes, logarithmic; upwards: time (ms)."
    )
    assert "ring (measured): 1 ms (901 µs to 1.5 ms) at 1 KiB" in picture.alt
    assert "ring (published: Li 2020): 10 ms at 1 MiB." in picture.alt
    assert re.search(r'<th scope="row">1 MiB</th><td></td><td></td><td></td><td>10 ms</td>', picture.table)
    assert picture.table.count("<tr>") == 5 and picture.table.count('scope="col"') == 5
    shown = picture._repr_mimebundle_()["text/html"]
    assert shown.endswith(f"<details><summary>Numbers</summary>{picture.table}</details>")


def test_words_and_a_single_place_make_bars_with_their_numbers() -> None:
    rows = [measured(1e-3, way="ring & co", ranks=4), measured(2e-3, way="tree", ranks=4)]
    rows += [predicted(1.5e-3, way="tree", ranks=4), published(3e-3, source="me", way="tree", ranks=4)]
    picture = show(rows, x="way", title="Four ranks")
    check_legible(picture)
    axes = picture.figure.axes[0]
    assert [round(bar.get_height(), 9) for bar in axes.patches] == [1, 2, 1.5]
    assert [bar.get_linestyle() for bar in axes.patches] == ["-", "-", "--"]
    assert sorted(text.get_text() for text in axes.texts) == ["1", "1.5", "2", "3"]
    assert "Bars. Across: way;" in picture.alt and "ring &amp; co" in picture.table
    one = show(rows, x="ranks", by="way").figure.axes[0]
    assert len(one.patches) == 3 and [tick.get_text() for tick in one.get_xticklabels()] == ["4"]
    many = show([measured(1.0, way=f"{n}") for n in range(FEW_BARS + 1)], x="way")
    assert not many.figure.axes[0].texts


def test_rows_of_all_ranks_and_dicts_are_drawn_too() -> None:
    rows = [measured(1e-3, ranks=1), measured(2e-3, ranks=2)]
    other = [measured(9e-3, ranks=1), measured(9e-3, ranks=2)]
    assert show([rows, other], x="ranks").alt == show(rows, x="ranks").alt
    assert show([{"labels": {"ranks": 2}, "value": 1e-3}], x="ranks").alt.endswith("measured: 1 ms at 2.")


@pytest.mark.parametrize(
    "rows, names, words",
    [
        ([], {}, r"0 rows in 0 units \[\]"),
        ([measured(1, ranks=1), count(1, unit="bytes", ranks=1)], {}, r"2 rows in 2 units \['bytes', 's'\]"),
        ([measured(1, way="ring")], {}, "a row has no label ranks; it has way"),
        ([measured(1, ranks=1)], {"by": "way"}, "a row has no label way; it has ranks"),
        (
            [measured(1, ranks=1, way="a"), measured(1, ranks=1, way="b")],
            {},
            "two measured rows have ranks = 1; let by= name a label",
        ),
        (
            [{"labels": {"ranks": 1}, "value": 1, "kind": "guessed"}],
            {},
            "kind is 'guessed'; it must be one of",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_remedy(
    rows: list[Any], names: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        show(rows, x="ranks", **names)


def test_what_a_notebook_calls_show_is_the_same_with_the_same_words() -> None:
    assert signature(typed).parameters.keys() == signature(show).parameters.keys()
    assert typed([measured(1e-3, ranks=1)], x="ranks", y="wait", title="One").alt.startswith(
        "One. Bars. Across"
    )


def test_the_title_is_the_persons_and_nothing_is_concluded_for_them() -> None:
    assert title_of(show(curves(), x="bytes", by="way")) == ""
    assert title_of(show(curves(), x="bytes", by="way", title="A person's words")) == "A person's words"
