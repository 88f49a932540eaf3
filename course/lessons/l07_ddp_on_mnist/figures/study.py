"""The figures of a study: where an epoch goes, what ranks gain, accuracy against time, and what lowers it.

Measured points are filled, oversubscribed ones half, replayed ones open; the bars of replays are pale and
hatched all over. Each says so in words as well.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
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
REPLAYED_LOOK: Look = {"alpha": 0.55, "hatch": "xxx", "linestyle": "--"}  # over the colour of an activity
TITLES = {"mlp": "MLP", "cnn": "CNN", "lstm": "LSTM"}
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


class Gains(NamedTuple):
    """The line of a way: its look; for each number of ranks, the speed-up and how it came about."""

    look: Look
    points: dict[int, tuple[float, str]]


class Point(NamedTuple):
    """A way of training: its look, seconds per epoch, the final accuracies (0 to 1) of all seeds."""

    look: Look
    seconds: float
    accuracies: Sequence[float]


class Line(NamedTuple):
    """A training: its look; seconds so far, test loss and accuracy (0 to 1) after each epoch."""

    look: Look
    seconds: Sequence[float]
    losses: Sequence[float]
    accuracies: Sequence[float]


# ------------------------------------------------------------------ one look per way

WAYS: dict[str, Look] = {  # by engine; colour and line differ, so that no meaning hangs on one
    "sequential": {"color": INK, "linestyle": "-"},
    "mpi": {"color": "#D55E00", "linestyle": "--"},
    "ddp-gloo": {"color": "#0072B2", "linestyle": ":"},
    "ddp-mpi4py": {"color": "#009E73", "linestyle": "-."},
}
MARKERS = {1: "o", 2: "s", 4: "^", 8: "D"}  # by ranks, or by the threads of one process


def way_style(engine: str, workers: int) -> Look:
    """Colour and line of the engine, marker of the number of ranks or threads: the same in every figure."""
    return WAYS[engine] | {"marker": MARKERS.get(workers, "P")}


# ------------------------------------------------------------------ where an epoch goes


def epoch_bars(bars: Mapping[str, Bar], *, what: str) -> Picture:
    """A bar per way of training, split into computing, waiting and transfer; `what` was trained."""
    title = bars_title(bars, what)
    figure, (axes,) = new_panels(title, height=2.0 + 0.36 * len(bars))
    for row, bar in enumerate(bars.values()):
        left = 0.0
        for kind, look in ACTIVITIES.items():
            seconds = getattr(bar, kind)
            edge: Look = {"edgecolor": INK, "linewidth": 0.8}
            style = look | edge | (REPLAYED_LOOK if bar.label == REPLAYED else {})
            axes.barh(row, seconds, left=left, height=0.7, **style)
            left += seconds
        said = say_seconds(left) + (f" ({bar.label})" if bar.label == OVERSUBSCRIBED else "")
        axes.text(left, row, f" {said}", va="center", fontsize=FONT_SIZE, color=INK)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.5 * max(bar.seconds for bar in bars.values()))
    axes.set_xlabel("seconds per epoch, the mean of the ranks")
    axes.grid(False, axis="y")
    handles = [Patch(**look, edgecolor=INK, label=kind) for kind, look in ACTIVITIES.items()]
    if any(bar.label == REPLAYED for bar in bars.values()):
        handles.append(Patch(facecolor="white", edgecolor=INK, **REPLAYED_LOOK, label="replayed, not run"))
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bars_alt(bars, title))


def bars_title(bars: Mapping[str, Bar], what: str) -> str:
    """The fastest way that was measured, and how much of its time was waiting and transfer."""
    measured = {name: bar for name, bar in bars.items() if bar.label == MEASURED} or bars
    name, bar = min(measured.items(), key=lambda item: item[1].seconds)
    fastest = (
        f"{named(what)}: the fastest way that was measured is\n{name}, {say_seconds(bar.seconds)} per epoch"
    )
    if not bar.wait + bar.transfer:
        return fastest
    waiting, transfer = bar.wait / bar.seconds, bar.transfer / bar.seconds
    return f"{fastest}; of that, {waiting:.0%} is waiting and {transfer:.0%} transfer"


def named(model: str) -> str:
    """How a title calls a model."""
    return TITLES.get(model, model)


def bars_alt(bars: Mapping[str, Bar], title: str) -> str:
    """The same in words."""
    lines = [
        f"{name.removesuffix(', ' + REPLAYED)} ({bar.label}): {say_seconds(bar.seconds)}, "
        f"computing {bar.compute / bar.seconds:.0%}, "
        f"waiting {bar.wait / bar.seconds:.0%}, transfer {bar.transfer / bar.seconds:.0%}"
        for name, bar in bars.items()
    ]
    return _one_line(f"Bar chart of seconds per epoch. {title}. {'; '.join(lines)}.")


# ------------------------------------------------------------------ what ranks gain


def speedups(gains: Mapping[str, Gains], *, cores: int, what: str) -> Picture:
    """Speed-up over one thread, and efficiency, by ranks: a line per way."""
    title = speedup_title(gains, what)
    figure, (left, right) = new_panels(title, columns=2, height=4.8)
    counts = sorted({1, cores, *(n for line in gains.values() for n in line.points)})
    dotted: Look = {"color": GREY, "linestyle": ":", "linewidth": 2, "label": "ideal"}
    left.plot(counts, counts, **dotted)
    right.plot(counts, [1.0] * len(counts), **dotted)
    bound: Look = {
        "color": GREY,
        "linewidth": 6,
        "alpha": 0.35,
        "label": f"bound of {cores} core{'s' * (cores != 1)}",
    }
    left.plot(counts, [min(n, cores) for n in counts], **bound)
    right.plot(counts, [min(1.0, cores / n) for n in counts], **bound)
    for name, line in gains.items():
        ordered = sorted(line.points.items())
        face = "white" if all(label == REPLAYED for _, (_, label) in ordered) else line.look["color"]
        look = line.look | {"marker": "o", "markersize": 9, "markerfacecolor": face, "label": name}
        left.plot([n for n, _ in ordered], [gain for _, (gain, _) in ordered], **look)
        right.plot([n for n, _ in ordered], [gain / n for n, (gain, _) in ordered], **look)
        for n, (gain, label) in ordered:
            mark: Look = {"color": line.look["color"], "marker": "o", "markersize": 9}
            mark["markerfacecolor"] = line.look["color"] if label == MEASURED else "white"
            mark["fillstyle"] = "full" if label != OVERSUBSCRIBED else "left"
            if label == OVERSUBSCRIBED:
                mark |= {"markerfacecolor": line.look["color"], "markerfacecoloralt": "white"}
            left.plot([n], [gain], **mark)
            right.plot([n], [gain / n], **mark)
    left.set_ylabel("speed-up over one thread")
    right.set_ylabel("efficiency")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ranks", ylim=(0, None))
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    left.set_ylim(
        0, 1.25 * max(cores, *(gain for line in gains.values() for gain, _ in line.points.values()))
    )
    handles = left.get_legend_handles_labels()[0]
    handles += [Line2D([], [], color=INK, marker="o", linestyle="none", label=MEASURED)]
    half: Look = {"fillstyle": "left", "markerfacecolor": INK, "markerfacecoloralt": "white"}
    handles += [Line2D([], [], color=INK, marker="o", linestyle="none", label=OVERSUBSCRIBED, **half)]
    handles += [
        Line2D([], [], color=INK, marker="o", linestyle="none", markerfacecolor="white", label=REPLAYED)
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, speedup_alt(gains, title, cores))


def speedup_title(gains: Mapping[str, Gains], what: str) -> str:
    """The best that was measured, with a core for each rank where there are such."""
    points = [
        (gain, n, name, label) for name, line in gains.items() for n, (gain, label) in line.points.items()
    ]
    measured = [point for point in points if point[3] == MEASURED] or points
    gain, n, name, label = max(measured)
    where = "" if label == MEASURED else f" ({label})"
    fast = f"a speed-up of {gain:.2f} over one thread, an efficiency of {gain / n:.0%}"
    return f"{named(what)}: {name} on {n} ranks{where} has\n{fast}"


def speedup_alt(gains: Mapping[str, Gains], title: str, cores: int) -> str:
    """The same in words."""
    lines = [
        f"{name}: "
        + ", ".join(f"{n} ranks {gain:.2f}× ({label})" for n, (gain, label) in sorted(line.points.items()))
        for name, line in gains.items()
    ]
    kind = f"Two charts against the number of ranks, speed-up and efficiency, with the bound of {cores} cores"
    return _one_line(f"{kind}. {title}. {'; '.join(lines)}.")


# ------------------------------------------------------------------ accuracy and loss against seconds


def learning_curves(lines: Mapping[str, Line], *, what: str) -> Picture:
    """Test accuracy and test loss against the seconds of training that they took."""
    title = curves_title(lines, what)
    figure, (left, right) = new_panels(title, columns=2, height=4.4)
    for name, line in lines.items():
        look = line.look | {"markersize": 7}
        left.plot(line.seconds, [100 * accuracy for accuracy in line.accuracies], **look, label=name)
        right.plot(line.seconds, line.losses, **look)
    left.set(xlabel="seconds of training", ylabel="test accuracy, %", xlim=(0, None))
    right.set(xlabel="seconds of training", ylabel="test loss", xlim=(0, None))
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(lines, title))


def curves_title(lines: Mapping[str, Line], what: str) -> str:
    """How far apart the ends are, in accuracy and in time."""
    ends = [100 * line.accuracies[-1] for line in lines.values()]
    fast, slow = (choose(lines, key=lambda name: lines[name].seconds[-1]) for choose in (min, max))
    if len(lines) == 1:
        return f"{named(what)}: {fast} ends after {say_seconds(lines[fast].seconds[-1])}"
    return (
        f"{named(what)}: all curves end within {max(ends) - min(ends):.2f} points of each other,\n"
        f"{fast} after {say_seconds(lines[fast].seconds[-1])}, {slow} after "
        f"{say_seconds(lines[slow].seconds[-1])}"
    )


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


def time_and_accuracy(points: Mapping[str, Point], *, what: str) -> Picture:
    """Final accuracies of all seeds against seconds per epoch: mean, lowest and highest per way."""
    means = {name: 100 * fmean(one.accuracies) for name, one in points.items()}
    title = scatter_title(points, what)
    figure, (axes,) = new_panels(title, height=5.2)
    for name, (style, seconds, seeds) in points.items():
        reach = [[means[name] - 100 * min(seeds)], [100 * max(seeds) - means[name]]]
        look = style | {"linestyle": "none", "markersize": 10}
        drawn = axes.errorbar([seconds], [means[name]], yerr=reach, capsize=5, **look, label=name)
        drawn[2][0].set_linestyle(style["linestyle"])
    axes.set(xlabel="seconds per epoch", ylabel="test accuracy, %", xlim=(0, None))
    close: Look = {"columnspacing": 0.8, "handlelength": 1.2}
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False, **close)
    told = [
        f"{name}: {say_seconds(seconds)}, {means[name]:.2f} % ({100 * min(seeds):.2f} to "
        f"{100 * max(seeds):.2f})"
        for name, (_, seconds, seeds) in points.items()
    ]
    alt = f"Points with bars: final test accuracy against seconds per epoch. {title}. {'; '.join(told)}."
    return Picture(figure, _one_line(alt))


def scatter_title(points: Mapping[str, Point], what: str) -> str:
    """How far the times and the accuracies lie apart, and how far the seeds of one way do."""
    means = [100 * fmean(one.accuracies) for one in points.values()]
    spread = 100 * max(max(one.accuracies) - min(one.accuracies) for one in points.values())
    times = [one.seconds for one in points.values()]
    return (
        f"{named(what)}: the slowest way takes {max(times) / min(times):.1f} times as long as the fastest;\n"
        f"all mean accuracies differ by at most {max(means) - min(means):.2f} points, seeds of one way "
        f"by {spread:.2f}"
    )


# ------------------------------------------------------------------ what lowers the accuracy


def accuracy_by_rule(
    values: Mapping[str, Mapping[int, Sequence[float]]], *, what: str, first: Sequence[float] = ()
) -> Picture:
    """Final accuracies (0 to 1) of all seeds, for each rule, by ranks; `first`: on one rank."""
    values = {rule: ({1: first} if first and 1 not in by else {}) | dict(by) for rule, by in values.items()}
    title = rules_title(values, what)
    figure, (axes,) = new_panels(title, height=5.4)
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
    axes.set(xlabel="ranks", ylabel="test accuracy, %")
    figure.legend(loc="outside lower left", ncols=1, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, rules_alt(values, title))


def rules_title(values: Mapping[str, Mapping[int, Sequence[float]]], what: str) -> str:
    """By how many points each rule changes the mean accuracy from the fewest to the most ranks."""
    many = {rule: by for rule, by in values.items() if len(by) > 1}
    if not many:
        return f"{named(what)}: accuracy at the end"
    told, ranks = [], 1
    for rule, by in many.items():
        where = f"at {max(by)} ranks, " if max(by) != ranks else ""
        told.append(f"{where}{signed(100 * change(by))} points with the {rule}")
        ranks = max(by)
    return f"{named(what)}: " + ";\n".join(told)


def change(by: Mapping[int, Sequence[float]]) -> float:
    """How much the mean changes from the fewest to the most ranks."""
    few, many = by[min(by)], by[max(by)]
    return sum(many) / len(many) - sum(few) / len(few)


def signed(points: float) -> str:
    """With a sign, and two digits after the point."""
    return f"{points:+.2f}".replace("-", "−")


def rules_alt(values: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> str:
    """The same in words, every seed."""
    lines = [
        f"{rule}: "
        + ", ".join(
            f"{n} rank{'s' * (n > 1)} {' and '.join(f'{100 * seed:.2f} %' for seed in seeds)}"
            for n, seeds in sorted(by.items())
        )
        for rule, by in values.items()
    ]
    kind = "Line chart: final test accuracy against ranks, one line per rule and one dash per seed"
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
    axes.set_xlabel("threads per rank; in the cells, images per second")
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    told = [f"{counted(pair)} {rate:.0f}" for pair, rate in rates.items()]
    return Picture(
        figure, _one_line(f"Table of images per second by ranks and threads. {title}. {'; '.join(told)}.")
    )


def grid_title(rates: Mapping[tuple[int, int], float], best: tuple[int, int], cores: int, what: str) -> str:
    """Which cell is best, and what more than the cores did."""
    crowded = [rate for (r, t), rate in rates.items() if r * t > cores]
    told = f";\noversubscribed, at most {max(crowded) / rates[best]:.0%} of that" if crowded else ""
    return f"{named(what)}: most images per second with {counted(best)}{told}"


def counted(pair: tuple[int, int]) -> str:
    """Ranks and threads in words."""
    ranks, threads = (f"{n} {word}{'s' * (n > 1)}" for n, word in zip(pair, ("rank", "thread"), strict=True))
    return f"{ranks} × {threads}"


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
