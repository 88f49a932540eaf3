"""Rows that draw themselves: marks by kind, axes with units, and every number in words and in a table."""

import re
from typing import Any

import pytest

from course_lib.rows import Row, count, predicted, published
from mpi_classroom.show import show


def measured(value: float, **labels: Any) -> Row:
    return Row(labels, value, 0.9 * value, 1.5 * value)


def curves() -> list[Row]:
    """A ring, measured, predicted and published, over sizes from 1 KiB to 8 MiB."""
    sizes = [2**10, 2**16, 2**23]
    ring = [measured(1e-3 + 1e-9 * n, way="ring", bytes=n) for n in sizes]
    tree = [measured(2e-3 + 1e-9 * n, way="tree", bytes=n) for n in sizes]
    said = [predicted(1e-3 + 1e-9 * n, way="ring", bytes=n) for n in sizes]
    return [*ring, *tree, *said, published(0.01, source="Li 2020", way="ring", bytes=2**20)]


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


def test_numbers_below_an_axis_do_not_touch() -> None:
    sizes = [100, 1_000, 10_000, 100_000, 200_000, 300_000]
    rows = [Row({"strips": size}, size, size, size, "s", "measured") for size in sizes]
    axes = show(rows, x="strips", y="time").figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "100",
        "1000",
        "10000",
        "100000",
        "300000",
    ]
