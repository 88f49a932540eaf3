"""The figures of a study: where an epoch goes, what ranks gain, accuracy against time, and what lowers it.

Measured values are filled, oversubscribed ones hatched or open, replayed ones open with a dashed edge; each
says so in words as well.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    new_figure,
    new_panels,
    say_seconds,
    series_style,
    three_digits,
)

MEASURED, OVERSUBSCRIBED, REPLAYED = "measured", "oversubscribed", "replayed"
GREY = "#777777"


class Bar(NamedTuple):
    """An epoch: seconds of computing, waiting and transferring, the mean of the ranks; how it came about."""

    compute: float
    wait: float
    transfer: float
    label: str

    @property
    def seconds(self) -> float:
        return self.compute + self.wait + self.transfer


class Line(NamedTuple):
    """A training: seconds so far, test loss and accuracy (0 to 1) after each epoch."""

    seconds: Sequence[float]
    losses: Sequence[float]
    accuracies: Sequence[float]


# ------------------------------------------------------------------ where an epoch goes


def epoch_bars(bars: Mapping[str, Bar], *, what: str) -> Picture:
    """A bar a way of training, split into computing, waiting and transferring; `what` was trained."""
    title = bars_title(bars, what)
    figure, axes = new_figure(title, width=8.0, height=1.7 + 0.36 * len(bars))
    for row, bar in enumerate(bars.values()):
        left = 0.0
        for kind, look in ACTIVITIES.items():
            seconds = getattr(bar, kind)
            edge: Look = {
                "edgecolor": INK,
                "linewidth": 0.8,
                "linestyle": "--" if bar.label == REPLAYED else "-",
            }
            axes.barh(row, seconds, left=left, height=0.7, **look, **edge)
            left += seconds
        said = say_seconds(left) + ("" if bar.label == MEASURED else f" ({bar.label})")
        axes.text(left, row, f" {said}", va="center", fontsize=FONT_SIZE, color=INK)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.35 * max(bar.seconds for bar in bars.values()))
    axes.set_xlabel("seconds of an epoch, the mean of the ranks")
    axes.grid(False, axis="y")
    handles = [Patch(**look, edgecolor=INK, label=kind) for kind, look in ACTIVITIES.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bars_alt(bars, title))


def bars_title(bars: Mapping[str, Bar], what: str) -> str:
    """The fastest way that was measured, and what of its time was not computing."""
    measured = {name: bar for name, bar in bars.items() if bar.label == MEASURED} or bars
    name, bar = min(measured.items(), key=lambda item: item[1].seconds)
    lost = (bar.wait + bar.transfer) / bar.seconds
    told = (
        f"; waiting {bar.wait / bar.seconds:.0%}, transfer {bar.transfer / bar.seconds:.0%}" if lost else ""
    )
    return f"{what}, fastest: {name},\n{say_seconds(bar.seconds)} an epoch{told}"


def bars_alt(bars: Mapping[str, Bar], title: str) -> str:
    """The same in words."""
    lines = [
        f"{name} ({bar.label}): {say_seconds(bar.seconds)}, computing {bar.compute / bar.seconds:.0%}, "
        f"waiting {bar.wait / bar.seconds:.0%}, transfer {bar.transfer / bar.seconds:.0%}"
        for name, bar in bars.items()
    ]
    return _one_line(f"Bar chart of an epoch's seconds. {title}. {'; '.join(lines)}.")


# ------------------------------------------------------------------ what ranks gain


def speedups(gains: Mapping[str, Mapping[int, tuple[float, str]]], *, cores: int, what: str) -> Picture:
    """Speed-up over one thread, and efficiency: for each engine, by ranks, a gain and how it came about."""
    title = speedup_title(gains, what)
    figure, (left, right) = new_panels(title, columns=2, height=4.8)
    counts = sorted({1, cores, *(n for points in gains.values() for n in points)})
    dotted: Look = {"color": GREY, "linestyle": ":", "linewidth": 2, "label": "ideal"}
    left.plot(counts, counts, **dotted)
    right.plot(counts, [1.0] * len(counts), **dotted)
    bound: Look = {"color": GREY, "linewidth": 6, "alpha": 0.35, "label": f"{cores} cores"}
    left.plot(counts, [min(n, cores) for n in counts], **bound)
    right.plot(counts, [min(1.0, cores / n) for n in counts], **bound)
    for index, (name, points) in enumerate(gains.items()):
        look = series_style(index + 1) | {"label": name, "markersize": 0}
        ordered = sorted(points.items())
        left.plot([n for n, _ in ordered], [gain for _, (gain, _) in ordered], **look)
        right.plot([n for n, _ in ordered], [gain / n for n, (gain, _) in ordered], **look)
        for n, (gain, label) in ordered:
            mark: Look = {"color": look["color"], "marker": look["marker"], "markersize": 9}
            mark["markerfacecolor"] = look["color"] if label == MEASURED else "white"
            mark["fillstyle"] = "full" if label != OVERSUBSCRIBED else "left"
            if label == OVERSUBSCRIBED:
                mark |= {"markerfacecolor": look["color"], "markerfacecoloralt": "white"}
            left.plot([n], [gain], **mark)
            right.plot([n], [gain / n], **mark)
    left.set_ylabel("times as fast as one thread")
    right.set_ylabel("efficiency: share of the ideal")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ranks", ylim=(0, None))
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    left.set_ylim(0, 1.25 * max(cores, *(gain for points in gains.values() for gain, _ in points.values())))
    handles = left.get_legend_handles_labels()[0]
    handles += [Line2D([], [], color=INK, marker="o", linestyle="none", label=MEASURED)]
    half: Look = {"fillstyle": "left", "markerfacecolor": INK, "markerfacecoloralt": "white"}
    handles += [Line2D([], [], color=INK, marker="o", linestyle="none", label=OVERSUBSCRIBED, **half)]
    handles += [
        Line2D([], [], color=INK, marker="o", linestyle="none", markerfacecolor="white", label=REPLAYED)
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, speedup_alt(gains, title, cores))


def speedup_title(gains: Mapping[str, Mapping[int, tuple[float, str]]], what: str) -> str:
    """The best that was measured, with a core for each rank where there are such."""
    points = [(gain, n, name, label) for name, by in gains.items() for n, (gain, label) in by.items()]
    measured = [point for point in points if point[3] == MEASURED] or points
    gain, n, name, label = max(measured)
    where = "" if label == MEASURED else f" ({label})"
    return (
        f"{what}: {name} on {n} ranks{where} is {gain:.2f}× as fast as one thread, efficiency {gain / n:.0%}"
    )


def speedup_alt(gains: Mapping[str, Mapping[int, tuple[float, str]]], title: str, cores: int) -> str:
    """The same in words."""
    lines = [
        f"{name}: " + ", ".join(f"{n} ranks {gain:.2f}× ({label})" for n, (gain, label) in sorted(by.items()))
        for name, by in gains.items()
    ]
    kind = f"Two charts against the number of ranks, speed-up and efficiency, with the bound of {cores} cores"
    return _one_line(f"{kind}. {title}. {'; '.join(lines)}.")


# ------------------------------------------------------------------ accuracy and loss against seconds


def learning_curves(lines: Mapping[str, Line], *, what: str) -> Picture:
    """Test accuracy and test loss against the seconds of training that they took."""
    title = curves_title(lines, what)
    figure, (left, right) = new_panels(title, columns=2, height=4.4)
    for index, (name, line) in enumerate(lines.items()):
        look = series_style(index) | {"markersize": 7}
        left.plot(line.seconds, [100 * accuracy for accuracy in line.accuracies], **look, label=name)
        right.plot(line.seconds, line.losses, **look)
    left.set(xlabel="seconds of training", ylabel="test accuracy, %", xlim=(0, None))
    right.set(xlabel="seconds of training", ylabel="test loss", xlim=(0, None))
    figure.legend(loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(lines, title))


def curves_title(lines: Mapping[str, Line], what: str) -> str:
    """How far apart the ends are, in accuracy and in time."""
    ends = [100 * line.accuracies[-1] for line in lines.values()]
    fast = min(lines, key=lambda name: lines[name].seconds[-1])
    told = f"the curves end within {max(ends) - min(ends):.2f} points; " if len(ends) > 1 else ""
    return f"{what}: {told}first at its end is {fast}, after {say_seconds(lines[fast].seconds[-1])}"


def curves_alt(lines: Mapping[str, Line], title: str) -> str:
    """The same in words: where each curve ends."""
    ends = [
        f"{name}: {100 * line.accuracies[-1]:.2f} % and loss {three_digits(line.losses[-1])} "
        f"after {say_seconds(line.seconds[-1])}"
        for name, line in lines.items()
    ]
    return _one_line(
        f"Line charts: test accuracy and test loss against seconds of training. {title}. {'; '.join(ends)}."
    )


def time_and_accuracy(points: Mapping[str, tuple[float, float]], *, what: str) -> Picture:
    """The seconds of an epoch against the final accuracy (0 to 1), a point a way of training."""
    best, fast = max(points, key=lambda name: points[name][1]), min(points, key=lambda name: points[name][0])
    low, high = (100 * extreme(value for _, value in points.values()) for extreme in (min, max))
    title = f"{what}: accuracies lie within {high - low:.2f} points; fastest is {fast}, most accurate {best}"
    figure, (axes,) = new_panels(title, height=4.2)
    for index, (name, (seconds, accuracy)) in enumerate(points.items()):
        look = series_style(index) | {"linestyle": "none", "markersize": 11}
        axes.plot([seconds], [100 * accuracy], **look, label=name)
    axes.set(xlabel="seconds of an epoch", ylabel="test accuracy at the end, %", xlim=(0, None))
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = [f"{name}: {say_seconds(s)}, {100 * accuracy:.2f} %" for name, (s, accuracy) in points.items()]
    alt = f"Points: seconds of an epoch against final test accuracy. {title}. {'; '.join(told)}."
    return Picture(figure, _one_line(alt))


# ------------------------------------------------------------------ what lowers the accuracy


def accuracy_by_rule(
    values: Mapping[str, Mapping[int, Sequence[float]]], *, what: str, first: Sequence[float] = ()
) -> Picture:
    """Final accuracies (0 to 1) of all seeds, for each rule, by ranks; `first`: on one rank."""
    values = {rule: ({1: first} if first and 1 not in by else {}) | dict(by) for rule, by in values.items()}
    title = rules_title(values, what)
    figure, (axes,) = new_panels(title, height=4.6)
    counts = sorted({n for by in values.values() for n in by})
    for index, (rule, by) in enumerate(values.items()):
        look = series_style(index)
        ordered = sorted(by.items())
        means = [100 * sum(seeds) / len(seeds) for _, seeds in ordered]
        axes.plot([n for n, _ in ordered], means, **look, markersize=9, label=rule)
        for n, seeds in ordered:
            place = n * 2 ** (0.06 * (index - 1))  # beside each other
            dots: Look = {"color": look["color"], "marker": "_", "linestyle": "none", "markersize": 12}
            axes.plot([place] * len(seeds), [100 * seed for seed in seeds], **dots)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="ranks", ylabel="test accuracy at the end, %")
    figure.legend(loc="outside lower left", ncols=1, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, rules_alt(values, title))


def rules_title(values: Mapping[str, Mapping[int, Sequence[float]]], what: str) -> str:
    """By how many points each rule changes the accuracy from the fewest to the most ranks."""
    told = [f"{signed(100 * change(by))} points: {rule}" for rule, by in values.items() if len(by) > 1]
    most = max(n for by in values.values() for n in by)
    heading = f"{what}, from 1 rank to at most {most}:" if told else f"{what}: accuracy at the end"
    return "\n".join([heading, *told])


def change(by: Mapping[int, Sequence[float]]) -> float:
    """How much the mean changes from the fewest to the most ranks."""
    few, many = by[min(by)], by[max(by)]
    return sum(many) / len(many) - sum(few) / len(few)


def signed(points: float) -> str:
    """With a sign, and two digits after the point."""
    return f"{points:+.2f}".replace("-", "−")


def rules_alt(values: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> str:
    """The same in words."""
    lines = [
        f"{rule}: " + ", ".join(f"{n} ranks {100 * sum(s) / len(s):.2f} %" for n, s in sorted(by.items()))
        for rule, by in values.items()
    ]
    kind = "Line chart: final test accuracy against ranks, a line a rule and a dash a seed"
    return _one_line(f"{kind}. {title}. {'; '.join(lines)}.")


# ------------------------------------------------------------------ more than there are cores


def thread_grid(rates: Mapping[tuple[int, int], float], *, cores: int, what: str) -> Picture:
    """Images per second for each (ranks, threads of each); cells with more of them than cores are marked."""
    ranks, threads = (sorted({pair[axis] for pair in rates}) for axis in (0, 1))
    best = max(rates, key=lambda pair: rates[pair])
    title = grid_title(rates, best, cores, what)
    figure, axes = new_figure(title, width=7.0, height=1.9 + 0.62 * len(ranks))
    for (rank_count, thread_count), rate in rates.items():
        row, column = ranks.index(rank_count), threads.index(thread_count)
        crowded = rank_count * thread_count > cores
        share = rate / rates[best]
        cell: Look = {
            "facecolor": (1 - 0.65 * share, 1 - 0.35 * share, 1.0),
            "edgecolor": "white",
            "linewidth": 3,
        }
        axes.barh(row, 1, left=column - 0.5, height=1, **cell, hatch="")
        text = f"{rate:.0f}" + ("\noversubscribed" if crowded else "")
        weight = "bold" if (rank_count, thread_count) == best else "normal"
        axes.text(column, row, text, ha="center", va="center", fontsize=FONT_SIZE, weight=weight, color=INK)
    axes.set_xticks(range(len(threads)), [f"{n} thread{'s' * (n > 1)}" for n in threads])
    axes.set_yticks(range(len(ranks)), [f"{n} rank{'s' * (n > 1)}" for n in ranks])
    axes.set(xlim=(-0.5, len(threads) - 0.5), ylim=(len(ranks) - 0.5, -0.5))
    axes.set_xlabel("images per second; threads of each rank")
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    told = [f"{r} ranks × {t} threads {rate:.0f}" for (r, t), rate in rates.items()]
    return Picture(
        figure, _one_line(f"Table of images per second by ranks and threads. {title}. {'; '.join(told)}.")
    )


def grid_title(rates: Mapping[tuple[int, int], float], best: tuple[int, int], cores: int, what: str) -> str:
    """Which cell is best, and what more than the cores did."""
    crowded = [rate for (r, t), rate in rates.items() if r * t > cores]
    told = f";\nmore of them than cores: at most {max(crowded) / rates[best]:.0%} of that" if crowded else ""
    ranks, threads = (f"{n} {word}{'s' * (n > 1)}" for n, word in zip(best, ("rank", "thread"), strict=True))
    return f"{what}: {ranks} × {threads} are fastest{told}"


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
