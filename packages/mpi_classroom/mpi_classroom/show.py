"""Rows that draw themselves: `show(rows, x="ranks", y="time per step", by="way")`.

A row has `labels` (a mapping), `value`, `low`, `high`, `unit` and `kind`. Numbers along x make lines; words,
or a single x, make bars. The picture names its axes with their units, says how each number is known, and
carries its numbers as alt text and as a table. What they mean a person says, in `title`.

    measured, counted   filled, solid; a line at the mark goes from `low` to `high`
    replayed            filled, dotted
    predicted           hollow, dashed
    published           hollow diamonds
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from mpi_classroom.figures import (
    FONT_SIZE,
    Look,
    Picture,
    new_figure,
    say_bytes,
    say_seconds,
    series_style,
    three_digits,
    time_unit,
    wrapped,
)

Label = str | int | float
KINDS: dict[str, Look] = {
    "measured": {"linestyle": "-"},
    "counted": {"linestyle": "-"},
    "replayed": {"linestyle": ":"},
    "predicted": {"linestyle": "--", "markerfacecolor": "white"},
    "published": {"linestyle": "", "markerfacecolor": "white", "marker": "D"},
}
UNITS_OF_LABELS = {"bytes": "bytes", "nbytes": "bytes", "seconds": "s"}
WIDE = 30  # a range of more than this factor gets a logarithmic axis
FEW_TICKS = 9
FEW_BARS = 10  # of which each has its number above it


class Row(Protocol):
    """One number, as `course_lib.rows.Row` has it."""

    labels: Mapping[str, Label]
    value: float
    low: float
    high: float
    unit: str
    kind: str


@dataclass(frozen=True)
class Series:
    """Rows of one name and kind, by their x: one line, or one bar in each group."""

    name: str
    kind: str
    colour: str
    marker: str
    points: dict[Label, Row] = field(default_factory=dict)

    @property
    def legend(self) -> str:
        """Its name, how its numbers are known, and who published them."""
        sources = {str(row.labels["source"]) for row in self.points.values() if "source" in row.labels}
        known = ": ".join([self.kind, *(["; ".join(sorted(sources))] if sources else [])])
        return f"{self.name} ({known})" if self.name else known


def show(rows: Sequence[Any], *, x: str, y: str = "", by: str = "", title: str = "") -> Picture:
    """Draw rows: the label `x` to the right, values upwards (`y` says what they are), a series per label `by`.

    `rows`: rows, or dicts with the same keys, or a list of rows per rank, of which rank 0's is drawn. Raises
    ValueError when there is none, when units differ, when a row lacks a label, and when two would be one point.
    """
    found = flat(rows)
    units = sorted({row.unit for row in found})
    if len(units) != 1:
        raise ValueError(f"{len(found)} rows in {len(units)} units {units}: one picture shows one unit")
    series = in_series(found, x, by)
    places = list(dict.fromkeys(place for each in series for place in each.points))
    words = any(isinstance(place, str) for place in places)
    places = places if words else sorted(places, key=float)
    names = [say(place, UNITS_OF_LABELS.get(x, "")) for place in places]
    lines = len(places) > 1 and not words

    figure, axes = new_figure(wrapped(title, 7.5), width=8.0, height=4.2)
    above = scale_y(axes, found, y, units[0])
    if lines:
        draw_lines(axes, series)
        scale_x(axes, places, names, UNITS_OF_LABELS.get(x, ""))
    else:
        draw_bars(axes, series, places)
        axes.set_xticks(range(len(places)), [wrapped(name, 7 / len(places)) for name in names])
    axes.set_xlabel(x)
    axes.legend(fontsize=FONT_SIZE, framealpha=0.8, edgecolor="none")
    across = f"{x}{', logarithmic' if axes.get_xscale() == 'log' else ''}"
    kind = f"{'Lines' if lines else 'Bars'}. Across: {across}; upwards: {above}."
    alt = " ".join(filter(None, [title, kind, *(said(each, places, names) for each in series)]))
    return Picture(figure, alt, table(x, series, places, names))


# ------------------------------------------------------------------ from rows to series


def flat(rows: Sequence[Any]) -> list[Row]:
    """The rows themselves: rank 0's, if there is a list per rank; a dict becomes an object."""
    if rows and isinstance(rows[0], Sequence):
        rows = rows[0]
    return [as_row(row) if isinstance(row, Mapping) else row for row in rows]


def as_row(row: Mapping[str, Any]) -> Any:
    """The dict as an object; without `low`, `high`, `unit` and `kind` it is one measured number of seconds."""
    value = row["value"]
    return SimpleNamespace(**{"low": value, "high": value, "unit": "s", "kind": "measured", **row})


def in_series(rows: Sequence[Row], x: str, by: str) -> list[Series]:
    """The rows by name and kind, in the order of their first rows; those of one name have one colour."""
    series: dict[tuple[str, str], Series] = {}
    names: list[str] = []
    for row in rows:
        if missing := {x, by} - {""} - row.labels.keys():
            raise ValueError(f"a row has no label {listed(missing)}; it has {listed(row.labels)}")
        if row.kind not in KINDS:
            raise ValueError(f"a row's kind is {row.kind!r}; it must be one of {listed(KINDS)}")
        name, place = str(row.labels[by]) if by else "", row.labels[x]
        if name not in names:
            names.append(name)
        style = series_style(names.index(name))
        new = Series(name, row.kind, style["color"], style["marker"])
        points = series.setdefault((name, row.kind), new).points
        if place in points:
            who = f"{row.kind} rows of {name}" if name else f"{row.kind} rows"
            raise ValueError(f"two {who} have {x} = {place}; let by= name a label in which they differ")
        points[place] = row
    return list(series.values())


def listed(words: Any) -> str:
    return ", ".join(sorted(words))


# ------------------------------------------------------------------ axes


def is_wide(values: Sequence[float]) -> bool:
    """Whether the values ask for a logarithmic axis."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def scale_y(axes: Axes, rows: Sequence[Row], words: str, unit: str) -> str:
    """Scale and name the vertical axis, in a unit in which the values read well; returns its name."""
    ends = [end for row in rows for end in (row.low, row.high)]
    factor, name = in_unit(unit, max(map(abs, ends)))
    words = f"{words or {'s': 'time', 'bytes': 'size'}.get(unit, 'value')} ({name})"
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(factor * value)))
    axes.set_ylabel(words)
    if not is_wide(ends):
        axes.set_ylim(min(0.0, 1.1 * min(ends)), 1.15 * max(ends) or 1.0)
        return words
    axes.set_yscale("log")
    return f"{words}, logarithmic"


def in_unit(unit: str, largest: float) -> tuple[float, str]:
    """Factor and name of the unit in which values of up to `largest` read well."""
    if unit == "s":
        return time_unit(largest)
    if unit == "bytes":
        power = next((power for power in (3, 2, 1) if largest >= 1024**power), 0)
        return 1024.0**-power, ("B", "KiB", "MiB", "GiB")[power]
    return 1.0, unit


def scale_x(axes: Axes, places: Sequence[Any], names: Sequence[str], unit: str) -> None:
    """Scale the horizontal axis; a few places have a tick each."""
    if is_wide(places):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: say(value, unit)))
    if len(places) <= FEW_TICKS:
        axes.set_xticks(places, names)


# ------------------------------------------------------------------ the drawing


def draw_lines(axes: Axes, series: Sequence[Series]) -> None:
    """A line per series, with its spread where there is one."""
    for each in series:
        places = sorted(each.points, key=float)
        look = {"marker": each.marker, "color": each.colour, "label": each.legend} | KINDS[each.kind]
        rows = [each.points[place] for place in places]
        axes.errorbar(places, [row.value for row in rows], spread(rows), capsize=4, markersize=7, **look)


def draw_bars(axes: Axes, series: Sequence[Series], places: Sequence[Label]) -> None:
    """A bar per row, side by side in each group; what was published is a diamond."""
    width = 0.8 / len(series)
    for number, each in enumerate(series):
        rows = list(each.points.values())
        where = [places.index(place) + (number - (len(series) - 1) / 2) * width for place in each.points]
        values, solid = [row.value for row in rows], "markerfacecolor" not in KINDS[each.kind]
        if each.kind == "published":
            axes.plot(where, values, "D", mfc="white", mec=each.colour, ms=10, label=each.legend)
            continue
        look: Look = {"edgecolor": each.colour, "linestyle": KINDS[each.kind]["linestyle"], "linewidth": 1.5}
        look |= {"facecolor": each.colour if solid else "white", "label": each.legend}
        look |= {"hatch": "...", "facecolor": "white"} if each.kind == "replayed" else {}
        bars = axes.bar(where, values, 0.92 * width, yerr=spread(rows), capsize=4, ecolor="#777777", **look)
        if len(series) * len(places) <= FEW_BARS:
            axes.bar_label(bars, [say(row.value, row.unit) for row in rows], padding=3, fontsize=FONT_SIZE)


def spread(rows: Sequence[Row]) -> list[list[float]] | None:
    """How far `low` and `high` are from the values; None where no row has a spread."""
    below, above = [row.value - row.low for row in rows], [row.high - row.value for row in rows]
    return [below, above] if any(below + above) else None


# ------------------------------------------------------------------ in words


def say(value: Label, unit: str) -> str:
    """A value with its unit."""
    if isinstance(value, str):
        return value
    if unit in ("s", "bytes"):
        return say_seconds(value) if unit == "s" else say_bytes(value)
    return f"{value if isinstance(value, int) else three_digits(value)} {unit}".rstrip()


def with_spread(row: Row) -> str:
    """A value, and from where to where its repetitions lie."""
    between = f" ({say(row.low, row.unit)} to {say(row.high, row.unit)})" if row.low < row.high else ""
    return say(row.value, row.unit) + between


def said(series: Series, places: Sequence[Label], names: Sequence[str]) -> str:
    """A series in words: its legend, and each number with its x."""
    pairs = zip(places, names, strict=True)
    return (
        f"{series.legend}: "
        + ", ".join(
            f"{with_spread(series.points[place])} at {name}"
            for place, name in pairs
            if place in series.points
        )
        + "."
    )


def table(x: str, series: Sequence[Series], places: Sequence[Label], names: Sequence[str]) -> str:
    """The numbers as an HTML table: a row per x, a column per series."""
    head = "".join(f'<th scope="col">{html.escape(word)}</th>' for word in (x, *(s.legend for s in series)))
    body = ""
    for place, name in zip(places, names, strict=True):
        cells = (with_spread(each.points[place]) if place in each.points else "" for each in series)
        row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{html.escape(name)}</th>{row}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
