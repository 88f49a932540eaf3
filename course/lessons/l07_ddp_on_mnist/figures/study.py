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

from course.lessons.l07_ddp_on_mnist.figures.errors import error_row
from course.lessons.l07_ddp_on_mnist.study_results import MEASURED, OVERSUBSCRIBED, REPLAYED
from course.lessons.l07_ddp_on_mnist.study_tables import Curve
from course_lib.rows import Label, Row
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    new_panels,
    say_seconds,
)
from mpi_classroom.show import show

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


# ------------------------------------------------------------------ one look per way

WAYS: dict[str, Look] = {  # by engine; colour and line differ, so that no meaning hangs on one
    "sequential": {"color": INK, "linestyle": "-"},
    "mpi": {"color": "#D55E00", "linestyle": "--"},
    "ddp-gloo": {"color": "#0072B2", "linestyle": ":"},
    "ddp-mpi4py": {"color": "#009E73", "linestyle": "-."},
}
MARKS: dict[str, Look] = {  # of a point, by how it came about
    MEASURED: {"marker": "o", "markersize": 9},
    OVERSUBSCRIBED: {"marker": "o", "markersize": 9, "fillstyle": "left", "markerfacecoloralt": "white"},
    REPLAYED: {"marker": "o", "markersize": 9, "markerfacecolor": "white"},
}

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
        speed = {n: gain for n, (gain, _) in sorted(line.points.items())}
        for axes, values in ((left, speed), (right, {n: gain / n for n, gain in speed.items()})):
            axes.plot(list(values), list(values.values()), **line.look, label=name)
            for n, value in values.items():
                axes.plot([n], [value], color=line.look["color"], **MARKS[line.points[n][1]])
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
    handles += [
        Line2D([], [], color=INK, linestyle="none", label=label, **mark) for label, mark in MARKS.items()
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


def learning_curves(lines: Mapping[str, Curve], *, what: str) -> list[Picture]:
    """Test errors, and test losses, against the seconds of training that they took."""
    errors, losses = [], []
    for name, line in lines.items():
        for seconds, accuracy, loss in zip(line.seconds, line.accuracies, line.losses, strict=True):
            labels: dict[str, Label] = {"seconds": seconds, "way": name}
            error = 100 * (1 - accuracy)
            errors.append(Row(labels, error, error, error, "%"))
            losses.append(Row(labels, loss, loss, loss, "nats"))
    title = curves_title(lines, what)
    return [
        show(errors, x="seconds", y="test error", by="way", title=title),
        show(losses, x="seconds", y="test loss", by="way"),
    ]


def curves_title(lines: Mapping[str, Curve], what: str) -> str:
    """How far apart the ends are, in accuracy and in time."""
    ends = [100 * line.accuracies[-1] for line in lines.values()]
    fast, slow = (choose(lines, key=lambda name: lines[name].seconds[-1]) for choose in (min, max))
    if len(lines) == 1:
        return f"{named(what)}: {fast} ends after {say_seconds(lines[fast].seconds[-1])}"
    return (
        f"{named(what)}: all curves end within {max(ends) - min(ends):.2f} points of each other, "
        f"{fast} after {say_seconds(lines[fast].seconds[-1])}, {slow} after "
        f"{say_seconds(lines[slow].seconds[-1])}"
    )


# ------------------------------------------------------------------ what lowers the accuracy


def accuracy_by_rule(
    values: Mapping[str, Mapping[int, Sequence[float]]], *, what: str, first: Sequence[float] = ()
) -> Picture:
    """Test errors by ranks, a line per rule, from all seeds' accuracies (0 to 1); `first`: on one rank."""
    values = {rule: ({1: first} if first and 1 not in by else {}) | dict(by) for rule, by in values.items()}
    rows = [error_row(seeds, ranks, rule) for rule, by in values.items() for ranks, seeds in by.items()]
    return show(rows, x="ranks", y="test error", by="batch", title=rules_title(values, what))


def rules_title(values: Mapping[str, Mapping[int, Sequence[float]]], what: str) -> str:
    """By how many points each rule changes the mean error from the fewest to the most ranks."""
    many = {rule: by for rule, by in values.items() if len(by) > 1}
    if not many:
        return f"{named(what)}: errors at the end"
    told, ranks = [], 1
    for rule, by in many.items():
        where = f"at {max(by)} ranks, " if max(by) != ranks else ""
        told.append(f"{where}{signed(100 * change(by))} points of error with the {rule}")
        ranks = max(by)
    return f"{named(what)}: " + "; ".join(told)


def change(by: Mapping[int, Sequence[float]]) -> float:
    """How much the mean error changes from the fewest to the most ranks."""
    few, many = by[min(by)], by[max(by)]
    return fmean(few) - fmean(many)


def signed(points: float) -> str:
    """With a sign, and two digits after the point."""
    return f"{points:+.2f}".replace("-", "−")


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
