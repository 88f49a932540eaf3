"""Rows that draw themselves: `show(rows, x="ranks", y="time per step", by="way")`.

A row has `labels` (a mapping), `value`, `low`, `high`, `unit` and `kind`. Numbers along x make lines; words,
or a single x, make bars. The picture names its axes with their units, says how each number is known, and
carries its numbers as alt text and as a table. What they mean a person says, in `title`.

    measured, counted   filled, solid; a line at the mark goes from `low` to `high`
    predicted           hollow, dashed
    published           hollow diamonds
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

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
    "predicted": {"linestyle": "--", "markerfacecolor": "white"},
    "published": {"linestyle": "", "markerfacecolor": "white", "marker": "D"},
}
UNITS_OF_LABELS = {"bytes": "bytes", "nbytes": "bytes", "seconds": "s"}
WIDE = 30  # a range of more than this factor gets a logarithmic axis
FEW_TICKS = 9
FEW_BARS = 10  # of which each has its number above it
ALONE = 2  # the style of a series without a name: blue


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
    """Draw rows: the label `x` to the right, values upwards (`y`: their name), a series per label `by`.

    `rows` are rows, or dicts with the same keys, or a list of rows per rank, of which rank 0's is drawn.
    Raises ValueError when there is none, when their units differ, when a row lacks a label, and when two rows
    would be the same point.
    """
    found = flat(rows)
    units = sorted({row.unit for row in found})
    if len(units) != 1:
        raise ValueError(f"{len(found)} rows in {len(units)} units {units}: one picture shows one unit")
    series, unit = in_series(found, x, by), UNITS_OF_LABELS.get(x, "")
    places: list[Any] = list(dict.fromkeys(place for each in series for place in each.points))
    words = any(isinstance(place, str) for place in places)
    places = places if words else sorted(places)
    lines = len(places) > 1 and not words

    figure, axes = new_figure(wrapped(title, 7.5), width=8.0, height=4.0 + 0.25 * len(series))
    factor, upwards = scale_y(axes, found, y, units[0], may_be_log=lines)  # a bar is as long as its value
    if lines:
        draw_lines(axes, series, factor)
        scale_x(axes, places, unit)
    else:
        draw_bars(axes, series, places, factor)
        axes.set_xlim(-0.6, len(places) - 0.4)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(places)), [wrapped(say(place, unit), 7 / len(places)) for place in places])
    axes.set_xlabel(x)
    if len(series) > 1 or series[0].name:
        figure.legend(loc="outside lower center", ncols=2, fontsize=FONT_SIZE, frameon=False)
    else:
        axes.set_ylabel(f"{axes.get_ylabel()}, {series[0].legend}")
    across = f"{x}, logarithmic" if axes.get_xscale() == "log" else x
    kind = f"{'Lines' if lines else 'Bars'}. Across: {across}; upwards: {upwards}."
    spoken = [title.rstrip(".") + "." if title else "", kind, *(said(each, places, unit) for each in series)]
    return Picture(figure, " ".join(filter(None, spoken)), table(x, series, places, unit))


# ------------------------------------------------------------------ from rows to series


def flat(rows: Sequence[Any]) -> list[Row]:
    """The rows themselves: rank 0's, if there is a list per rank; a dict becomes an object."""
    if rows and isinstance(rows[0], Sequence):
        rows = rows[0]
    return [as_row(row) if isinstance(row, Mapping) else row for row in rows]


def as_row(row: Mapping[str, Any]) -> Any:
    """The dict as an object; without `low`, `high`, `unit`, `kind` it is one measured time in seconds."""
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
        style = series_style(names.index(name) if by else ALONE)
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


def scale_y(axes: Axes, rows: Sequence[Row], words: str, unit: str, may_be_log: bool) -> tuple[float, str]:
    """Scale and name the vertical axis; returns the factor by which values are drawn, and the name."""
    ends = [end for row in rows for end in (row.low, row.high)]
    factor, name = in_unit(unit, max(map(abs, ends)))
    words = f"{words or {'s': 'time', 'bytes': 'size'}.get(unit, 'value')} ({name})"
    axes.set_ylabel(words)
    if may_be_log and is_wide(ends):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(ends) < 1e3 * min(ends) else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return factor, f"{words}, logarithmic"
    axes.set_ylim(factor * min(0.0, 1.15 * min(ends)), factor * max(0.0, 1.15 * max(ends)) or None)
    return factor, words


def in_unit(unit: str, largest: float) -> tuple[float, str]:
    """Factor and name of the unit in which values of up to `largest` read well."""
    if unit == "s":
        return time_unit(largest)
    if unit == "bytes":
        power = next((power for power in (3, 2, 1) if largest >= 1024**power), 0)
        return 1024.0**-power, ("B", "KiB", "MiB", "GiB")[power]
    return 1.0, unit


def scale_x(axes: Axes, places: Sequence[float], unit: str) -> None:
    """Scale the horizontal axis; a few places have a tick each."""
    if is_wide(places):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        if unit == "bytes":
            axes.xaxis.set_major_locator(LogLocator(base=32))  # 1 KiB, 32 KiB, 1 MiB …
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: say(value, unit)))
    if len(places) <= FEW_TICKS:
        axes.set_xticks(apart(places, axes.get_xscale() == "log"))


def apart(places: Sequence[float], logarithmic: bool) -> list[float]:
    """Those of `places` whose numbers do not touch: the first, and each that is far enough from the last."""
    at = [math.log(place) if logarithmic else place for place in sorted(places)]
    least, kept = (at[-1] - at[0]) / FEW_TICKS, [0]
    for number in range(1, len(at)):
        if at[number] - at[kept[-1]] >= least:
            kept.append(number)
    return [sorted(places)[number] for number in kept]


# ------------------------------------------------------------------ the drawing


def draw_lines(axes: Axes, series: Sequence[Series], factor: float) -> None:
    """A line per series, with its spread where there is one."""
    for each in series:
        places: list[Any] = sorted(each.points)
        rows = [each.points[place] for place in places]
        look: Look = {"marker": each.marker, "color": each.colour, "label": each.legend}
        values = [factor * row.value for row in rows]
        axes.errorbar(places, values, spread(rows, factor), capsize=4, ms=7, **look | KINDS[each.kind])


def draw_bars(axes: Axes, series: Sequence[Series], places: Sequence[Label], factor: float) -> None:
    """Bars side by side at each place; what was published is a diamond."""
    present = {place: [each for each in series if place in each.points] for place in places}
    width = 0.8 / max(map(len, present.values()))
    for each in series:
        rows, left = list(each.points.values()), {p: (len(present[p]) - 1) / 2 for p in each.points}
        where = [places.index(p) + width * (present[p].index(each) - left[p]) for p in each.points]
        values = [factor * row.value for row in rows]
        if each.kind == "published":
            axes.plot(where, values, "D", mfc="white", mec=each.colour, ms=10, label=each.legend)
        else:
            look = bar_look(each) | {"yerr": spread(rows, factor), "capsize": 4, "ecolor": "#777777"}
            axes.bar(where, values, 0.92 * width, label=each.legend, **look)
        for row, x in zip(rows, where, strict=True) if len(series) * len(places) <= FEW_BARS else ():
            above: Look = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
            words = three_digits(factor * row.value)
            axes.annotate(words, (x, factor * row.high), fontsize=FONT_SIZE, **above)


def bar_look(series: Series) -> Look:
    """Filled or hollow, as the kind of the numbers asks."""
    solid = series.kind in ("measured", "counted")
    look: Look = {"facecolor": series.colour if solid else "white", "edgecolor": series.colour}
    return look | {"linestyle": KINDS[series.kind]["linestyle"], "linewidth": 1.5}


def spread(rows: Sequence[Row], factor: float) -> list[list[float]] | None:
    """How far `low` and `high` are from the values; None where no row has a spread."""
    below = [factor * (row.value - row.low) for row in rows]
    above = [factor * (row.high - row.value) for row in rows]
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


def said(series: Series, places: Sequence[Label], unit: str) -> str:
    """A series in words: its legend, and each number with its x."""
    points = [(series.points[place], say(place, unit)) for place in places if place in series.points]
    return f"{series.legend}: {', '.join(f'{with_spread(row)} at {name}' for row, name in points)}."


def table(x: str, series: Sequence[Series], places: Sequence[Label], unit: str) -> str:
    """The numbers as an HTML table: a row per x, a column per series."""
    head = "".join(f'<th scope="col">{html.escape(word)}</th>' for word in (x, *(s.legend for s in series)))
    body = ""
    for place in places:
        cells = (with_spread(each.points[place]) if place in each.points else "" for each in series)
        row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{html.escape(say(place, unit))}</th>{row}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
