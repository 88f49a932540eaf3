"""Time against array size, both axes logarithmic: measured, predicted, and by how much a prediction is off.

Times are plain numbers: `measured["ring"][4096]` are the seconds that a ring took for 4096 bytes. What a
model says is drawn as a line and called predicted; the panel below shows how far off it was.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from math import inf, isfinite, log
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.theory.cost_model import (
    Hockney,
    crossover_nbytes,
    predict_seconds,
    recursive_doubling_allreduce_cost,
    ring_allreduce_cost,
)
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    listed,
    new_panels,
    say_bytes,
    say_ranks,
    say_seconds,
    series_style,
    three_digits,
)

WHY_8_ALPHA = "Four latencies cost what half an array saves: 4α = ½βm, so m = 8α/β."  # on four ranks
Series = Mapping[str, Mapping[int, float]]  # a value for each number of bytes, for each algorithm
Residuals = Mapping[str, Mapping[int, float]]
MOST_CHANGES, MOST_TICKS = 2, 7
RATIO_TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 4)
HOLLOW: Look = {"markerfacecolor": "none", "markeredgewidth": 1.8, "markersize": 7}
MISS_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)


def times_by_size(
    measured: Series,
    predicted: Series | None = None,
    *,
    ranks: int,
    cores: int,
) -> Picture:
    """Seconds against bytes, a line per algorithm; with `predicted` seconds also lines and residuals."""
    check(measured)
    misses = residuals(measured, predicted or {})
    title = miss_title(misses) if misses else fastest_title(measured)
    figure, panels = _figure(title, misses)
    _lines(panels[0], measured, predicted or {})
    panels[0].set_ylabel("time")
    _finish(figure, panels, say_ranks(ranks, cores))
    if misses:
        _residuals(panels[1], misses)
    return Picture(figure, _alt(title, measured, misses, say_ranks(ranks, cores)))


def predicted_ratios(alpha: float, beta: float, ranks: Sequence[int]) -> Picture:
    """How many times as long as the ring recursive doubling takes, against bytes: a line per number of ranks.

    The alpha-beta model predicts it from `alpha` seconds per message and `beta` per byte; adding is free.
    """
    line, sizes = Hockney(alpha, beta), [2**power for power in range(8, 27)]  # 256 B to 64 MiB
    ratios = {n: {m: doubling_over_ring(n, m, line) for m in sizes} for n in ranks}
    crossovers = {n: crossover_nbytes(n, line) for n in ranks}
    title = crossover_title(crossovers)
    figure, panels = new_panels(title, height=4.8)
    axes = panels[0]
    axes.axhline(1, color=INK, linewidth=1)
    for index, (n, values) in enumerate(ratios.items()):
        style = {**series_style(index), "marker": "none", "linewidth": 2.5}
        axes.plot(*_xy(values), **style, label=f"{n} ranks")
        if sizes[0] <= crossovers[n] <= sizes[-1]:
            axes.plot(crossovers[n], 1, color=style["color"], marker="o", markersize=9, zorder=5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_yticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS])
    axes.set_ylabel("time of recursive doubling\n÷ time of the ring")
    across = axes.get_yaxis_transform()  # the width of the panel, and the numbers of its y axis
    axes.text(0.02, 1.12, "↑ the ring is faster", transform=across, fontsize=FONT_SIZE)
    axes.text(0.02, 0.9, "↓ doubling is faster", transform=across, fontsize=FONT_SIZE, va="top")
    _finish(figure, panels, "predicted, nothing was run")
    told = [f"{n} ranks: {_from(crossovers[n])}" for n in ratios]
    kind = (
        "Line chart, both axes logarithmic: time of recursive doubling divided by that of the ring, predicted"
    )
    return Picture(
        figure,
        f"{kind}, against array size. {title}. Dots mark where the ring becomes faster: {'; '.join(told)}.",
    )


def doubling_over_ring(ranks: int, nbytes: float, line: Hockney) -> float:
    """The predicted time of recursive doubling, divided by that of the ring."""
    doubling, ring = recursive_doubling_allreduce_cost(ranks, nbytes), ring_allreduce_cost(ranks, nbytes)
    return predict_seconds(doubling, line) / predict_seconds(ring, line)


def crossover(ratios: Mapping[float, float]) -> float:
    """From how many bytes on the ratio stays above 1; infinity if it does not end above."""
    sizes = sorted(ratios)
    if ratios[sizes[-1]] <= 1:
        return inf
    below = [size for size in sizes if ratios[size] <= 1]
    if not below:
        return 0.0
    low, high = below[-1], sizes[sizes.index(below[-1]) + 1]
    share = log(1 / ratios[low]) / log(ratios[high] / ratios[low])
    return low * (high / low) ** share


def say_crossover(ratios: Mapping[float, float]) -> str:
    """From which size on the ring is faster, or how often the order changes when that is more than once.

    `ratios` are the times of doubling divided by those of the ring, by bytes.
    """
    ahead = [ratios[size] > 1 for size in sorted(ratios)]
    changes = sum(now != then for then, now in pairwise(ahead))
    if changes > 1:
        return f"no clear crossover (the order changes {changes} times)"
    if changes and ahead[0]:
        return "the ring is faster for small arrays only"
    return _faster(crossover(ratios))


def say_hold(misses: Mapping[int, float], within: float = 2) -> str:
    """Where measured/predicted is `within` a factor, where not, and how far it is off at most."""
    sizes = sorted(misses)
    off = {size: misses[size] for size in sizes if factor(misses[size]) > within}
    told = f"within a factor of {within:g} at {len(sizes) - len(off)} of {len(sizes)} sizes"
    if not off:
        return told
    worst = max(off, key=lambda size: factor(off[size]))
    most = f"off most at {say_bytes(worst)} ({three_digits(off[worst])} × predicted)"
    return f"{told}, not at {listed(map(say_bytes, off))}; {most}"


def say_predictions(measured: Series, predicted: Series, within: float = 2) -> str:
    """Lines that say whether predicted times hold, then whether the crossover of ring and doubling does."""
    misses = residuals(measured, predicted)
    ratios: dict[str, dict[float, float]] = {
        word: {m: seconds["doubling"][m] / ring for m, ring in seconds["ring"].items()}
        for word, seconds in (("measured", measured), ("predicted", predicted))
    }
    lines = [f"{name}: {say_hold(points, within)}" for name, points in misses.items()]
    lines += [f"{word}: {say_crossover(points)}" for word, points in ratios.items()]
    times_hold = all(factor(miss) <= within for points in misses.values() for miss in points.values())
    if times_hold and not same_crossover(ratios["measured"], ratios["predicted"], within):
        lines.append(f"The times hold within a factor of {within:g}; the crossover does not.")
        lines.append("Near it the two take nearly the same time, so small errors move it far.")
    return "\n".join(lines)


def same_crossover(one: Mapping[float, float], other: Mapping[float, float], within: float) -> bool:
    """Whether both have the same order at every size, or a crossover each, `within` a factor."""
    if say_crossover(one) == say_crossover(other):
        return True
    first, second = crossover(one), crossover(other)
    clear = all(say_crossover(ratios) == _faster(crossover(ratios)) for ratios in (one, other))
    return clear and 0 < first < inf and 0 < second < inf and factor(first / second) <= within


def crossover_title(crossovers: Mapping[int, float]) -> str:
    """From which size on the ring is faster, for the fewest and for the most ranks, and where it never is."""
    there = [ranks for ranks, nbytes in crossovers.items() if isfinite(nbytes)]
    never = [ranks for ranks in crossovers if ranks not in there]
    ends = dict.fromkeys([*there[:1], *there[-1:]])
    told = [(_from(crossovers[ranks]), str(ranks)) for ranks in ends]
    told += [("never", listed(never))] if never else []
    words = [f"{where} with {ranks}{' ranks' * (n == 0)}" for n, (where, ranks) in enumerate(told)]
    return f"Predicted: the ring is faster {', '.join(words)}"


def _faster(nbytes: float) -> str:
    return f"the ring is {'never faster' if nbytes == inf else f'faster {_from(nbytes)}'}"


def _from(nbytes: float) -> str:
    return f"from {say_bytes(nbytes)} on" if 0 < nbytes < inf else "at every size" if nbytes == 0 else "never"


# ------------------------------------------------------------------ drawing


def _figure(title: str, misses: Residuals) -> tuple[Figure, list[Axes]]:
    if not misses:
        return new_panels(title, height=4.8)
    return new_panels(title, rows=2, height=6.4, height_ratios=[2, 1], sharex=True)


def _lines(axes: Axes, series: Series, model: Series) -> None:
    """What was measured with markers; what a model predicts as a thin line of the same colour."""
    for index, (name, values) in enumerate(series.items()):
        style = series_style(index)
        line = style["linestyle"]
        if name in model:
            said = dict(sorted(model[name].items()))
            axes.plot(*_xy(said), color=style["color"], linestyle=line, label=f"{name}: predicted")
            line = "none"
        style = {**style, **HOLLOW, "linestyle": line}
        axes.plot(*_xy(dict(sorted(values.items()))), **style, label=f"{name}: measured")
    axes.set_xscale("log", base=2)
    if any(value > 0 for values in series.values() for value in values.values()):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda seconds, _: say_seconds(seconds))


def _residuals(axes: Axes, misses: Residuals) -> None:
    axes.axhline(1, color=INK, linewidth=1)
    for index, points in enumerate(misses.values()):
        style = {**series_style(index), **HOLLOW, "linestyle": "none"}
        axes.plot(*_xy(dict(sorted(points.items()))), **style)
    axes.set_ylabel("measured\n÷ predicted")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    low, high = min(0.9 * low, 0.45), max(1.15 * high, 2.2)  # room for a whole marker at either edge
    axes.set_ylim(low, high)
    axes.set_yticks([tick for tick in MISS_TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _finish(figure: Figure, panels: Sequence[Axes], machine: str) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    entries = list(zip(handles, labels, strict=True))
    entries.sort(key=lambda entry: entry[1].endswith("predicted"))  # what was measured comes first
    handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
    figure.legend(handles, labels, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    panels[-1].set_xlabel(f"array size ({machine})")
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


def residuals(measured: Series, predicted: Series) -> dict[str, dict[int, float]]:
    """measured/predicted, at the sizes that have both: 1.1 is a tenth longer than predicted."""
    found = {
        name: {
            size: seconds / predicted[name][size]
            for size, seconds in values.items()
            if size in predicted[name]
        }
        for name, values in measured.items()
        if name in predicted
    }
    return {name: values for name, values in found.items() if values}


def factor(ratio: float) -> float:
    """By which factor a prediction is off, too long or too short."""
    return max(ratio, 1 / ratio) if ratio > 0 else inf


def miss_title(misses: Residuals) -> str:
    """Within which factor half of the predictions are, and which is off most."""
    every = [(size, factor(miss), name) for name, values in misses.items() for size, miss in values.items()]
    size, worst, name = max(every, key=lambda one: one[1])
    middle = median(miss for _, miss, _ in every)
    most = f"the worst is off by a factor of {three_digits(worst)} ({name}, {say_bytes(size)})"
    return f"Half of the predictions are within a factor of {three_digits(middle)}; {most}"


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


def _alt(title: str, series: Series, misses: Residuals, machine: str) -> str:
    """Kind, axes and finding, then every series at its smallest and its largest size."""
    lines = []
    for name, values in series.items():
        ends = [
            f"{say_seconds(values[size])} at {say_bytes(size)}"
            for size in sorted({*values} and {min(values), max(values)})
        ]
        middle = three_digits(median(map(factor, misses[name].values()))) if name in misses else ""
        off = f", half of its predictions within a factor of {middle}" if middle else ""
        lines.append(f"{name}: {listed(ends)}{off}")
    panel = ", and below it the residuals of the predicted lines" if misses else ""
    kind = f"Line chart, both axes logarithmic: time against array size, {machine}{panel}"
    return f"{kind}. {title}. {'; '.join(lines)}."
