"""More ranks: how much faster the same job (strong scaling), how much more work in the same time (weak).

Beside the measured points stand two lines that nobody gets past: the ideal one, and the number of cores.
Ranks beyond the cores take turns; their points are open and called oversubscribed.
"""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.theory.cost_model import parallel_efficiency
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    new_panels,
    say_ranks,
    say_seconds,
)

MISSED = "#777777"
Seconds = Mapping[int, float]  # for each number of ranks


def strong_scaling(seconds: Seconds, *, cores: int, predicted: Seconds | None = None) -> Picture:
    """Speed-up and efficiency when `seconds[n]` is the time of the same job on n ranks; 1 rank included."""
    speedups = {n: seconds_on_one(seconds) / time for n, time in sorted(seconds.items()) if time > 0}
    said = {n: predicted[1] / time for n, time in sorted(predicted.items())} if predicted else {}
    return _scaling(strong_title(speedups, cores), "times as fast as 1 rank", speedups, said, seconds, cores)


def weak_scaling(seconds: Seconds, *, cores: int, predicted: Seconds | None = None) -> Picture:
    """The same when n ranks have n times the work: how many times the work of 1 rank is done in its time."""
    gains = {n: n * seconds_on_one(seconds) / time for n, time in sorted(seconds.items()) if time > 0}
    said = {n: n * predicted[1] / time for n, time in sorted(predicted.items())} if predicted else {}
    return _scaling(weak_title(gains, cores), "times the work of 1 rank", gains, said, seconds, cores)


def seconds_on_one(seconds: Seconds) -> float:
    if 1 not in seconds:
        raise ValueError(f"there are times on {sorted(seconds)} ranks; add the one on 1 rank to compare with")
    return seconds[1]


# ------------------------------------------------------------------ drawing


def _scaling(title: str, what: str, gains: Seconds, said: Seconds, seconds: Seconds, cores: int) -> Picture:
    title = title or f"{say_ranks(1, cores)}: {say_seconds(seconds[1])}, and no other time to compare"
    figure, (left, right) = new_panels(title, columns=2, height=4.6)
    efficiencies = {n: parallel_efficiency(gain, n) for n, gain in gains.items()}
    predicted = {n: parallel_efficiency(gain, n) for n, gain in said.items()}
    counts = sorted({*seconds, *said})
    reach = sorted({*counts, *([cores] if cores < counts[-1] else [])})
    _panel(left, gains, said, cores, {n: float(n) for n in reach}, what)
    _panel(right, efficiencies, predicted, cores, dict.fromkeys(reach, 1.0), "efficiency: share of the ideal")
    grey: Look = {"color": MISSED, "linewidth": 5, "alpha": 0.4, "label": f"{cores} core{'s' * (cores != 1)}"}
    left.plot(reach, [min(n, cores) for n in reach], **grey)
    right.plot(reach, [min(1, cores / n) for n in reach], **grey)
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    right.set_ylim(0, 1.05 * max([1, *efficiencies.values(), *predicted.values()]))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, scaling_alt(title, what, gains, seconds, cores))


def _panel(
    axes: Axes, measured: Seconds, said: Seconds, cores: int, ideal: Mapping[int, float], what: str
) -> None:
    axes.plot(*zip(*ideal.items(), strict=True), color=MISSED, linestyle=":", linewidth=2, label="ideal")
    if said:
        axes.plot(*zip(*said.items(), strict=True), color=INK, linestyle="--", label="predicted")
    look: Look = {"marker": "o", "color": INK, "markersize": 9, "linestyle": "none"}
    fits = {n: value for n, value in measured.items() if n <= cores}
    crowded = {n: value for n, value in measured.items() if n > cores}
    axes.plot(list(fits), list(fits.values()), **look, label="measured")
    if crowded:
        look |= {"markerfacecolor": "white", "label": "oversubscribed"}
        axes.plot(list(crowded), list(crowded.values()), **look)
    axes.set(xlabel="ranks", ylabel=what)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ideal)))
    axes.xaxis.set_minor_locator(NullLocator())


# ------------------------------------------------------------------ what the numbers say


def strong_title(speedups: Seconds, cores: int) -> str:
    """The speed-up on as many ranks as there are cores, and what ranks beyond them gained."""
    return ";\n".join(
        f"{say_ranks(n, cores)}: {speedups[n]:.2f}× as fast, "
        f"efficiency {parallel_efficiency(speedups[n], n):.0%}"
        for n in told_ranks(speedups, cores)
    )


def weak_title(gains: Seconds, cores: int) -> str:
    """How much longer n times the work took on n ranks, with a core each and without."""
    return ";\n".join(
        f"{say_ranks(n, cores)}: {n}× the work in {n / gains[n]:.2f}× the time, "
        f"efficiency {parallel_efficiency(gains[n], n):.0%}"
        for n in told_ranks(gains, cores)
    )


def told_ranks(measured: Seconds, cores: int) -> list[int]:
    """Which counts the title tells of: the largest that has a core each, and the largest of all; not 1."""
    several = sorted(n for n in measured if n > 1)
    return sorted({*[n for n in several if n <= cores][-1:], *several[-1:]})


def scaling_alt(title: str, what: str, gains: Seconds, seconds: Seconds, cores: int) -> str:
    """The same in words, count by count."""
    lines = [
        f"{n} rank{'s' * (n > 1)}{', oversubscribed' * (n > cores)}: {say_seconds(seconds[n])}, "
        f"{gain:.2f} {what}, efficiency {parallel_efficiency(gain, n):.0%}"
        for n, gain in gains.items()
    ]
    kind = f"Two charts against the number of ranks: {what}, and efficiency"
    return f"{kind}, with the ideal line and that of {cores} cores. {title}. {'; '.join(lines)}.".replace(
        "\n", " "
    )
