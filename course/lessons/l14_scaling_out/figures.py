"""Figures of lesson 14: a step on three networks, a forecast, what crosses a link, trainings, efficiency."""

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from course.lessons.l14_scaling_out.fits import fitted, ring_band, ring_seconds
from course_lib.theory.hockney import Hockney
from course_lib.theory.scale_out import DataParallelStep, efficiency_band, repeated_doublings
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    listed,
    new_figure,
    new_panels,
    say_seconds,
    series_style,
    three_digits,
)

RANKS = tuple(2**power for power in range(1, 12))  # 2 to 2048
MANY = tuple(2**power for power in range(13))  # 1 to 4096
Runs = Mapping[str, Mapping[str, Any]]
SAME_POINTS = 1  # accuracies that differ by fewer points are not told apart

# ------------------------------------------------------------------ a step


def step_bars(steps: Runs) -> Picture:
    """Milliseconds of computing and of the all-reduce in a step, a bar per network."""
    names = list(steps)
    times = slower(steps)
    title = f"The step over the slow link takes {three_digits(times)} times as long as on one node"
    figure, axes = new_figure(title, width=8, height=2.9)
    computing = [1e3 * steps[name]["computing"] for name in names]
    allreduce = [1e3 * steps[name]["allreduce"] for name in names]
    axes.barh(names, computing, **ACTIVITIES["compute"], edgecolor=INK, label="computing")
    axes.barh(names, allreduce, left=computing, **ACTIVITIES["transfer"], edgecolor=INK, label="all-reduce")
    for row, (first, second) in enumerate(zip(computing, allreduce, strict=True)):
        axes.text(
            first + second, row, f" {three_digits(first)} + {three_digits(second)}", va="center", fontsize=12
        )
    axes.grid(visible=False, axis="y")  # it would cross the numbers
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_xlabel("ms per step, 2 ranks")
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{name}: computing {three_digits(a)} ms, all-reduce {three_digits(b)} ms"
        for name, a, b in zip(names, computing, allreduce, strict=True)
    ]
    return Picture(figure, f"Bar chart: milliseconds per step. {title}. {'; '.join(told)}.")


def slower(steps: Runs) -> float:
    """The last step's time divided by the first one's."""
    first, *_, last = (sum(_parts(each)) for each in steps.values())
    return float(last / first)


def _parts(step: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of computing and of the all-reduce."""
    return step["computing"], step["allreduce"]


# ------------------------------------------------------------------ a forecast


def forecasts(
    exchanges: Mapping[str, Mapping[str, Any]], nbytes: int, measured: Mapping[int, float]
) -> Picture:
    """Seconds of a ring against ranks, log-log: by α and β, by β alone, and by repetition.

    `exchanges`: over each link, from which α and β are fitted; `measured`, seconds by ranks, is of the last
    link. Bands lie between the fits of the single rounds. Beyond the measured ranks the figure is shaded.
    """
    *others, name = exchanges
    first, last, many = min(measured), max(measured), RANKS[-1]
    ratio = (measured[last] / measured[first]) ** (1 / log2(last / first))
    link = fitted(exchanges[name])
    by_model = [ring_seconds(n, nbytes, link) for n in RANKS]
    by_beta = [ring_seconds(n, nbytes, Hockney(0.0, link.beta_seconds_per_byte)) for n in RANKS]
    title = (
        f"Over the {name}, an all-reduce on {many:,} ranks takes "
        f"{three_digits(by_model[-1] / by_model[0])} times as long as on 2 by α and β, "
        f"{three_digits(by_beta[-1] / by_beta[0])} times by β alone, "
        f"{three_digits(repeated_doublings(ratio, many))} times by repeated doubling"
    )
    series = {
        f"{name}, α and β": by_model,
        f"{name}, β alone": by_beta,
        f"{name}, repeated doubling": [measured[first] * repeated_doublings(ratio, n) for n in RANKS],
        **{
            f"{each}, α and β": [ring_seconds(n, nbytes, fitted(exchanges[each])) for n in RANKS]
            for each in others
        },
    }
    bands = {f"{each}, α and β": [ring_band(n, nbytes, of) for n in RANKS] for each, of in exchanges.items()}
    figure = _forecast_lines(title, series, bands, measured)
    ends = [f"{label}: {say_seconds(values[-1])}" for label, values in series.items()]
    between = [
        f"{label} between {say_seconds(band[-1][0])} and {say_seconds(band[-1][1])}"
        for label, band in bands.items()
    ]
    points = [f"{say_seconds(seconds)} on {n}" for n, seconds in measured.items()]
    kind = "Line chart with bands, both axes logarithmic: seconds of a ring all-reduce against ranks"
    found = f"On {many:,}: {'; '.join(ends)}. By the fits of single rounds, {listed(between)}."
    return Picture(figure, f"{kind}. {title}. Measured: {listed(points)}. {found}")


def _forecast_lines(
    title: str,
    series: Mapping[str, Sequence[float]],
    bands: Mapping[str, Sequence[tuple[float, float]]],
    measured: Mapping[int, float],
) -> Figure:
    """The lines, the bands, and the measured points; the first three lines are thick."""
    figure, panels = new_panels(title, height=4.7)
    axes, last = panels[0], max(measured)
    for index, (label, values) in enumerate(series.items()):
        style: Look = {**series_style(index), "marker": "none", "linewidth": 2.5 if index < 3 else 1.5}
        axes.plot(RANKS, values, **style, label=label)
        if label in bands:
            low, high = zip(*bands[label], strict=True)
            axes.fill_between(RANKS, low, high, color=style["color"], alpha=0.25, linewidth=0)
    axes.plot(list(measured), list(measured.values()), "o", color=INK, markersize=9, label="measured")
    axes.axvspan(last, RANKS[-1], color="#999999", alpha=0.15, linewidth=0)
    upper: Look = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": FONT_SIZE}
    axes.text(last * 1.1, 0.97, "not measured", **upper)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: say_seconds(seconds)))
    axes.set_xticks(RANKS[::2], [f"{n:,}" for n in RANKS[::2]])
    axes.set_xlabel("ranks, each on a node of its own")
    axes.set_ylabel("a ring all-reduce takes")
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    return figure


# ------------------------------------------------------------------ what crosses the link


def link_bars(results: Runs, nbytes: int) -> Picture:
    """What all nodes together send over the link, and the seconds, of each all-reduce."""
    names = list(results)
    ring, ours = results["ring"], results["hierarchical"]
    times = ring["seconds"] / ours["seconds"]
    bytes_times = ring["link_nbytes"] / ours["link_nbytes"]
    title = (
        f"The ring sends {three_digits(bytes_times)} times as many bytes between the nodes as the hierarchy, "
        f"and takes {three_digits(times)} times as long"
    )
    figure, panels = new_panels(title, columns=2, height=3.0, sharey=True)
    shown = (("link_nbytes", 1e-6, "MB between the nodes"), ("seconds", 1e3, "ms"))
    for axes, (what, factor, words) in zip(panels, shown, strict=True):
        values = [factor * results[name][what] for name in names]
        axes.barh(names, values, **ACTIVITIES["transfer"], edgecolor=INK)
        for row, value in enumerate(values):
            axes.text(value, row, f" {three_digits(value)}", va="center", fontsize=FONT_SIZE)
        axes.margins(x=0.22)
        axes.set_xlabel(words)
    panels[0].invert_yaxis()
    told = [
        f"{name}: {three_digits(each['link_nbytes'] / 1e6)} MB, {say_seconds(each['seconds'])}"
        for name, each in results.items()
    ]
    size = three_digits(nbytes / 1e6)
    return Picture(
        figure, f"Two bar charts: an all-reduce of {size} MB on two nodes. {title}. {'; '.join(told)}."
    )


# ------------------------------------------------------------------ trainings


def trainings(runs: Runs) -> Picture:
    """The loss against the seconds of a training and of one to compare with; the legend has the accuracy."""
    names = list(runs)
    title = _training_title(runs)
    figure, panels = new_panels(title, height=4.5)
    axes = panels[0]
    told = []
    for index, name in enumerate(names):
        losses, seconds = runs[name]["losses"], runs[name]["seconds"]
        at = [seconds * (n + 1) / len(losses) for n in range(len(losses))]
        words = (
            f"{name}: {say_seconds(seconds)}, {100 * runs[name]['accuracy']:.1f} % of the test images right"
        )
        axes.plot(at, losses, **{**series_style(index), "markevery": max(1, len(at) // 8)}, label=words)
        told.append(f"{words}, loss {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} updates")
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("loss of the batch")
    figure.legend(loc="outside lower left", fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, f"Line chart: loss against seconds. {title}. {'; '.join(told)}.")


def _training_title(runs: Runs) -> str:
    """Seconds of the last run instead of the first one's, and which is more accurate; of one run, its own."""
    names = list(runs)
    first, last = names[0], names[-1]
    seconds, accuracy = ({name: run[what] for name, run in runs.items()} for what in ("seconds", "accuracy"))
    takes = f"{last} takes {say_seconds(seconds[last])}"
    if first == last:
        return takes
    accurate = f"{max(first, last, key=accuracy.__getitem__)} is more accurate"
    if 100 * abs(accuracy[last] - accuracy[first]) < SAME_POINTS:
        accurate = "the accuracy is the same within a point"
    return f"{takes} instead of {say_seconds(seconds[first])}; {accurate}"


# ------------------------------------------------------------------ efficiency


def efficiency_curves(step: DataParallelStep, links: Mapping[str, Sequence[Hockney]], steps: Runs) -> Picture:
    """Efficiency against ranks for each link, as a band over its fits; nothing was run beyond 2 ranks.

    Dots: the steps that 2 ranks took over these links.
    """
    measured = {name: steps[name]["computing"] / sum(_parts(steps[name])) for name in links}
    bands = {name: [efficiency_band(step, n, fits) for n in MANY] for name, fits in links.items()}
    ends = {name: band[-1] for name, band in bands.items()}
    words = listed(f"{_percents(*end)} over the {name}" for name, end in ends.items())
    title = f"Predicted efficiency on {MANY[-1]:,} ranks: {words}"
    figure, panels = new_panels(title, height=4.2)
    axes = panels[0]
    for index, (name, band) in enumerate(bands.items()):
        low, high = ([100 * each[side] for each in band] for side in (0, 1))
        style = series_style(index)
        axes.fill_between(MANY, low, high, color=style["color"], alpha=0.25, linewidth=0)
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        axes.plot(MANY, middle, color=style["color"], linestyle=style["linestyle"], linewidth=2, label=name)
        axes.plot(2, 100 * measured[name], "o", color=style["color"], markersize=8)
    axes.axvspan(2, MANY[-1], color="#999999", alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(MANY[::2], [f"{n:,}" for n in MANY[::2]])
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks, each on a node of its own (shaded: not measured)")
    axes.set_ylabel("efficiency, %")
    axes.plot([], [], "o", color=INK, markersize=8, label="measured")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    kind = "Line chart with bands: predicted efficiency in percent against ranks"
    dots = listed(f"{100 * each:.2g} % over the {name}" for name, each in measured.items())
    return Picture(figure, f"{kind}. {title}. Measured on 2 ranks: {dots}.")


def _percents(low: float, high: float) -> str:
    """`28 to 30 %`, or one number where both are the same in two digits."""
    least, most = (f"{100 * each:.2g}" for each in (low, high))
    return f"{least} %" if least == most else f"{least} to {most} %"


# ------------------------------------------------------------------ one device, several jobs


def throughput(by_batch: Mapping[int, Mapping[int, float]]) -> Picture:
    """Images per second against batch size, a line per image side, relative to each line's largest."""
    sides = list(by_batch)
    first, last = sides[0], sides[-1]
    small = {side: 100 * of[min(of)] / max(of.values()) for side, of in by_batch.items()}
    title = (
        f"A batch of {min(by_batch[first])} reaches {small[first]:.0f} % of the best throughput with "
        f"images of {first} × {first} pixels, and {small[last]:.0f} % with {last} × {last}"
    )
    figure, panels = new_panels(title, height=3.8)
    axes = panels[0]
    for index, (side, of) in enumerate(by_batch.items()):
        values = [100 * value / max(of.values()) for value in of.values()]
        axes.plot(list(of), values, **series_style(index), label=f"{side} × {side} pixels")
    batches = list(by_batch[sides[0]])
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_ylim(0, 108)
    axes.set_xlabel("images per batch")
    axes.set_ylabel("images per second,\n% of the best")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{side} pixels: " + listed(f"{value:.0f} per second at {batch}" for batch, value in of.items())
        for side, of in by_batch.items()
    ]
    return Picture(figure, f"Line chart: throughput against batch size. {title}. {'; '.join(told)}.")
