"""Time and bandwidth against message size: both axes logarithmic, the model's line, and what it misses by.

Times are plain numbers: `measured["ring"][4096]` are the seconds that a ring took for 4096 bytes. What a
model says is drawn as a line and called predicted; the panel below shows how far off it was.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Picture,
    listed,
    new_panels,
    say_bytes,
    say_ranks,
    say_seconds,
    series_style,
    three_digits,
)

Series = Mapping[str, Mapping[int, float]]  # a value for each number of bytes, for each algorithm
Residuals = Mapping[str, Mapping[int, float]]
MOST_CHANGES, MOST_TICKS = 2, 7


def times_by_size(
    measured: Series,
    predicted: Series | None = None,
    *,
    ranks: int,
    cores: int,
    fitted: Collection[int] = (),
) -> Picture:
    """Seconds against bytes, a line an algorithm; with `predicted` seconds, the model's lines and residuals.

    `fitted` are the sizes that the model was fitted to: open markers, and not counted in the title.
    """
    check(measured)
    misses = residuals(measured, predicted or {})
    title = miss_title(misses, fitted) if misses else fastest_title(measured)
    figure, panels = _figure(title, misses)
    _lines(panels[0], measured, predicted or {}, fitted)
    panels[0].set_ylabel("time in seconds")
    _finish(figure, panels, say_ranks(ranks, cores))
    if misses:
        _residuals(panels[1], misses, fitted)
    return Picture(figure, _alt("time", title, measured, say_seconds, misses, say_ranks(ranks, cores)))


def bandwidth_by_size(
    measured: Series, predicted: Series | None = None, *, ranks: int, cores: int, fitted: Collection[int] = ()
) -> Picture:
    """The same seconds as gigabytes (10⁹ bytes) of message in a second, against bytes."""
    check(measured)
    rates, model = bandwidths(measured), bandwidths(predicted or {})
    title = bandwidth_title(rates)
    figure, panels = _figure(title, {})
    _lines(panels[0], rates, model, fitted)
    panels[0].set_ylabel("message size / time in GB/s")
    _finish(figure, panels, say_ranks(ranks, cores))
    return Picture(figure, _alt("bandwidth", title, rates, _say_rate, {}, say_ranks(ranks, cores)))


# ------------------------------------------------------------------ drawing


def _figure(title: str, misses: Residuals) -> tuple[Figure, list[Axes]]:
    if not misses:
        return new_panels(title, height=4.8)
    return new_panels(title, rows=2, height=6.4, height_ratios=[2, 1], sharex=True)


def _lines(axes: Axes, series: Series, model: Series, fitted: Collection[int]) -> None:
    """What was measured with markers; what a model predicts as a thin line of the same colour."""
    for index, (name, values) in enumerate(series.items()):
        style = series_style(index)
        points, line = dict(sorted(values.items())), style["linestyle"]
        if name in model:
            said = dict(sorted(model[name].items()))
            axes.plot(*_xy(said), color=style["color"], linestyle=line, label=f"{name}: predicted")
            line = "none"
        style = {**style, "linestyle": line}
        axes.plot(*_xy(points), **style, markersize=6, label=f"{name}: measured")
        _open(axes, points, style, fitted)
    if fitted:
        axes.plot([], [], "o", color=INK, markerfacecolor="white", label="open: fitted to these")
    axes.set_xscale("log", base=2)
    if any(value > 0 for values in series.values() for value in values.values()):
        axes.set_yscale("log")


def _open(
    axes: Axes, points: Mapping[int, float], style: Mapping[str, object], fitted: Collection[int]
) -> None:
    """White over the markers of those sizes that the model was fitted to."""
    inner = {size: value for size, value in points.items() if size in fitted}
    axes.plot(*_xy(inner), marker=style["marker"], linestyle="none", color="white", markersize=3.5)


def _residuals(axes: Axes, misses: Residuals, fitted: Collection[int]) -> None:
    axes.axhline(0, color=INK, linewidth=1)
    for index, points in enumerate(misses.values()):
        style = {**series_style(index), "linestyle": "none"}
        percent = {size: 100 * miss for size, miss in sorted(points.items())}
        axes.plot(*_xy(percent), **style, markersize=6)
        _open(axes, percent, style, fitted)
    axes.set_ylabel("measured\nagainst predicted")
    axes.yaxis.set_major_formatter("{x:+.0f}%")


def _finish(figure: Figure, panels: Sequence[Axes], machine: str) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    panels[-1].set_xlabel(f"message size ({machine})")
    low, high = panels[0].dataLim.intervalx
    ticks = [4**power for power in range(18) if low / 2 <= 4**power <= 2 * high]
    shown = ticks[:: len(ticks) // MOST_TICKS + 1]
    panels[-1].set_xticks(shown, [say_bytes(size) for size in shown])
    panels[-1].minorticks_off()


def _xy(points: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(points), list(points.values())


# ------------------------------------------------------------------ what the numbers say


def check(measured: Series) -> None:
    """ValueError unless every algorithm has at least one size, all above 0: the axis is logarithmic."""
    if not measured or not all(measured.values()):
        raise ValueError(f"{len(measured)} series, one without any size; give {{name: {{bytes: seconds}}}}")
    low = min(min(values) for values in measured.values())
    if low <= 0:
        raise ValueError(f"{low} bytes have no place on a logarithmic axis; leave that size out")


def bandwidths(times: Series) -> dict[str, dict[int, float]]:
    """Gigabytes in a second, from seconds; times of zero, below the clock's resolution, are left out."""
    return {
        name: {size: size / seconds / 1e9 for size, seconds in values.items() if seconds > 0}
        for name, values in times.items()
    }


def residuals(measured: Series, predicted: Series) -> dict[str, dict[int, float]]:
    """measured/predicted - 1, at the sizes that have both: 0.1 is a tenth longer than predicted."""
    found = {
        name: {
            size: seconds / predicted[name][size] - 1
            for size, seconds in values.items()
            if size in predicted[name]
        }
        for name, values in measured.items()
        if name in predicted
    }
    return {name: values for name, values in found.items() if values}


def miss_title(misses: Residuals, fitted: Collection[int]) -> str:
    """By how much the model is off, in the median and at most, at sizes that it was not fitted to."""
    every = [(size, abs(miss), name) for name, values in misses.items() for size, miss in values.items()]
    fresh = [one for one in every if one[0] not in fitted]
    where = f"at {len(fresh)} points it was not fitted to" if fresh and fitted else "at all its points"
    told = fresh or every
    size, worst, name = max(told, key=lambda one: one[1])
    middle = median(miss for _, miss, _ in told)
    return (
        f"{where[0].upper()}{where[1:]}, the model is off by {middle:.0%} in the median, "
        f"by {worst:.0%} at most ({name}, {say_bytes(size)})"
    )


def fastest_title(measured: Series) -> str:
    """Which algorithm was the fastest from which size on; how often each, if that changes more than twice."""
    sizes = sorted(set.intersection(*(set(values) for values in measured.values())))
    if len(measured) < 2 or not sizes:
        return "; ".join(_ends(name, values) for name, values in measured.items())
    best = [min((values[size], name) for name, values in measured.items())[1] for size in sizes]
    runs = [list(run) for _, run in groupby(range(len(sizes)), key=lambda place: best[place])]
    if len(runs) <= MOST_CHANGES + 1:
        told = [f"{best[run[0]]} from {say_bytes(sizes[run[0]])} on" for run in runs]
        return f"The fastest: {', '.join(told)}"
    wins = listed(f"{name} at {best.count(name)}" for name in measured if name in best)
    return f"The fastest of {len(sizes)} sizes: {wins}"


def _ends(name: str, values: Mapping[int, float]) -> str:
    told = [
        f"{say_seconds(values[size])} for {say_bytes(size)}" for size in sorted({min(values), max(values)})
    ]
    return f"{name}: {', '.join(told)}"


def bandwidth_title(rates: Series) -> str:
    """The best bandwidth of each, and at which size."""
    best = [(name, *max((rate, size) for size, rate in rates[name].items())) for name in rates if rates[name]]
    told = [f"{name} {_say_rate(rate)} at {say_bytes(size)}" for name, rate, size in best]
    return f"At best: {'; '.join(told)}" if told else "Every time was below the clock's resolution"


def _say_rate(rate: float) -> str:
    return f"{three_digits(rate)} GB/s"


def _alt(
    what: str, title: str, series: Series, say: Callable[[float], str], misses: Residuals, machine: str
) -> str:
    """Kind, axes and finding, then every series at its smallest and its largest size."""
    lines = []
    for name, values in series.items():
        ends = [
            f"{say(values[size])} at {say_bytes(size)}"
            for size in sorted({*values} and {min(values), max(values)})
        ]
        off = (
            f", off by {median(map(abs, misses[name].values())):.0%} in the median" if name in misses else ""
        )
        lines.append(f"{name}: {listed(ends)}{off}")
    panel = ", and below it the residuals of the predicted lines" if misses else ""
    kind = f"Line chart, both axes logarithmic: {what} against message size, {machine}{panel}"
    return f"{kind}. {title}. {'; '.join(lines)}."
