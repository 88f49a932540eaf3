"""A scaling study on one page: what more ranks gain, and what they cost in accuracy.

Both panels read the rows of `study_results.load().rows`: a row is one epoch of one run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from mpi_classroom.figures import (
    FONT_SIZE,
    Look,
    Picture,
    new_panels,
    say_ranks,
    say_seconds,
    series_style,
)

ENGINES = {"mpi": "by hand", "ddp-gloo": "DDP, Gloo", "ddp-mpi4py": "DDP, MPI"}
RULES = {
    ("global", "fixed"): "same global batch",
    ("local", "fixed"): "same batch a rank",
    ("local", "scaled"): "same batch a rank, rate × ranks",
}
WORTH_TELLING = 1.2  # below this speed-up, something ran out


class Epoch(Protocol):
    """What is read of a row."""

    part: str
    model: str
    engine: str
    ranks: int
    threads: int
    batch_rule: str
    rate_rule: str
    epoch: int
    epochs: int
    replayed: bool
    epoch_seconds: float
    compute_seconds: float
    wait_seconds: float
    transfer_seconds: float
    test_accuracy: float | None
    cores: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one model: seconds of an epoch by engine and ranks; accuracies, one a seed, by rule and ranks."""

    model: str
    cores: int
    alone: float
    seconds: Mapping[str, Mapping[int, float]]
    shares: Mapping[str, Mapping[int, Mapping[str, float]]]
    accuracies: Mapping[tuple[str, str], Mapping[int, Sequence[float]]]

    def speedups(self, engine: str) -> dict[int, float]:
        """How many times as fast as one process, by ranks; 1 rank included."""
        return {1: 1.0} | {ranks: self.alone / time for ranks, time in self.seconds[engine].items()}


def summarise(rows: Iterable[Epoch], model: str) -> Summary:
    """What the study measured of `model`, medians over epochs and seeds; ValueError when it did not.

    Replayed runs are left out: what is shown was measured.
    """
    mine = [row for row in rows if row.model == model and row.threads == 1 and not row.replayed]
    timed = [row for row in mine if row.part == "timing"]
    alone = [row.epoch_seconds for row in timed if row.ranks == 1]
    if not alone:
        raise ValueError(f"the study has no time of {model!r} on one rank and one thread to compare with")
    groups: dict[str, dict[int, list[Epoch]]] = {name: {} for name in ENGINES}
    for row in timed:
        if row.engine in groups:
            groups[row.engine].setdefault(row.ranks, []).append(row)
    final: dict[tuple[str, str], dict[int, list[float]]] = {rule: {} for rule in RULES}
    for row in mine:
        if row.part == "accuracy" and row.epoch == row.epochs and row.test_accuracy is not None:
            rules = list(RULES) if row.ranks == 1 else [(row.batch_rule, row.rate_rule)]
            for rule in rules:  # on one rank they are the same
                final[rule].setdefault(row.ranks, []).append(row.test_accuracy)
    return Summary(
        model,
        timed[0].cores,
        median(alone),
        {
            e: {n: median(r.epoch_seconds for r in g) for n, g in sorted(by.items())}
            for e, by in groups.items()
            if by
        },
        {e: {n: parts_of(g) for n, g in sorted(by.items())} for e, by in groups.items() if by},
        {rule: dict(sorted(by.items())) for rule, by in final.items() if len(by) > 1},
    )


def parts_of(rows: Sequence[Epoch]) -> dict[str, float]:
    """The fraction of these epochs that was computing, waiting and transfer."""
    seconds = {
        "compute": sum(row.compute_seconds for row in rows),
        "wait": sum(row.wait_seconds for row in rows),
        "transfer": sum(row.transfer_seconds for row in rows),
    }
    whole = sum(seconds.values()) or 1.0
    return {kind: value / whole for kind, value in seconds.items()}


# ------------------------------------------------------------------ the picture


def study_summary(summary: Summary) -> Picture:
    """Left, speed-up against ranks with each engine; right, final accuracy against ranks under each rule."""
    title = summary_title(summary)
    figure, (left, right) = new_panels(title, columns=2, height=5.0)
    _speedups(left, summary)
    _accuracies(right, summary)
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            below: Look = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "borderaxespad": 0}
            axes.legend(fontsize=FONT_SIZE, frameon=False, **below)
    return Picture(figure, summary_alt(summary, title))


def _ticks(axes: Axes, ranks: Iterable[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(ranks))))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")


def _speedups(axes: Axes, summary: Summary) -> None:
    """Open markers: more ranks than cores."""
    reach = sorted({1, *(n for by in summary.seconds.values() for n in by)})
    grey: Look = {
        "color": "#777777",
        "linewidth": 5,
        "alpha": 0.4,
        "label": f"{summary.cores} cores: the limit",
    }
    corners = sorted({*reach, min(summary.cores, reach[-1])})
    axes.plot(corners, [min(n, summary.cores) for n in corners], **grey)
    for index, engine in enumerate(summary.seconds):
        speedups, look = summary.speedups(engine), series_style(index)
        axes.plot(*zip(*speedups.items(), strict=True), **look, label=ENGINES[engine])
        crowded = {n: value for n, value in speedups.items() if n > summary.cores}
        hollow: Look = {"color": look["color"], "marker": look["marker"], "markerfacecolor": "white"}
        axes.plot(list(crowded), list(crowded.values()), **hollow, markersize=9, linestyle="none")
    axes.set_ylim(0, None)
    axes.set_ylabel("times as fast as 1 rank")
    _ticks(axes, reach)


def _accuracies(axes: Axes, summary: Summary) -> None:
    """The mean of the seeds, and a bar from the worst to the best."""
    for index, (rule, by_ranks) in enumerate(summary.accuracies.items()):
        means = {n: 100 * mean(values) for n, values in by_ranks.items()}
        low = [means[n] - 100 * min(values) for n, values in by_ranks.items()]
        high = [100 * max(values) - means[n] for n, values in by_ranks.items()]
        places = [n * (1 + 0.04 * index) for n in means]
        axes.errorbar(
            places,
            list(means.values()),
            yerr=[low, high],
            capsize=4,
            **series_style(index),
            label=RULES[rule],
        )
    axes.set_ylabel("accuracy after the last epoch, %")
    _ticks(axes, {1, *(n for by in summary.accuracies.values() for n in by)})


# ------------------------------------------------------------------ in words


def summary_title(summary: Summary) -> str:
    """The best speed-up with a core for each rank, and what accuracy did under the two rules of batch."""
    fits = best_that_fits(summary)
    first = f"{summary.model}: no run of several ranks had a core for each"
    if fits:
        engine, ranks, speedup = fits
        where = say_ranks(ranks, summary.cores)
        first = f"{summary.model} on {where}: {speedup:.2f}× as fast ({ENGINES[engine]})"
    told = [f"{signed(change)} points with the {RULES[rule]}" for rule, change in changes_told(summary)]
    return f"{first};\naccuracy on {most_ranks(summary)} ranks: {', '.join(told)}" if told else first


def changes_told(summary: Summary) -> list[tuple[tuple[str, str], float]]:
    """The changes of accuracy under the first two rules: what ranks do, and what a larger batch does."""
    return list(accuracy_changes(summary).items())[:2]


def signed(points: float) -> str:
    """A change with its sign; one that rounds to nothing has none."""
    text = f"{points:+.1f}"
    return "±0.0" if float(text) == 0 else text.replace("-", "−")


def best_that_fits(summary: Summary) -> tuple[str, int, float] | None:
    """Engine, ranks and speed-up of the fastest runs of several ranks that had a core for each."""
    fits = [
        (speedup, engine, ranks)
        for engine in summary.seconds
        for ranks, speedup in summary.speedups(engine).items()
        if 1 < ranks <= summary.cores
    ]
    return (max(fits)[1], max(fits)[2], max(fits)[0]) if fits else None


def most_ranks(summary: Summary) -> int:
    """The largest number of ranks whose accuracy is known under every rule."""
    common = set.intersection(*(set(by) for by in summary.accuracies.values())) if summary.accuracies else {1}
    return max(common)


def accuracy_changes(summary: Summary) -> dict[tuple[str, str], float]:
    """By how many percentage points `most_ranks` are more accurate than one rank, the mean of the seeds."""
    ranks = most_ranks(summary)
    return {
        rule: 100 * (mean(by[ranks]) - mean(by[1])) for rule, by in summary.accuracies.items() if ranks > 1
    }


def points_lost(summary: Summary) -> float:
    """How many points of accuracy `most_ranks` lose when the global batch stays; 0 where it is not known."""
    return round(-accuracy_changes(summary).get(("global", "fixed"), 0.0), 2) + 0.0


def explain_study(summary: Summary) -> str:
    """What ran out, and what moved the accuracy: sentences chosen from the measurement."""
    return "\n".join([*explain_times(summary), *explain_accuracy(summary)])


def explain_times(summary: Summary) -> list[str]:
    """For each engine, its speed-up on as many ranks as have a core, and where the rest of the time went."""
    lines = []
    for engine, by_ranks in summary.seconds.items():
        fits = [n for n in by_ranks if n <= summary.cores]
        ranks = max(fits, default=min(by_ranks))
        speedup, share = summary.alone / by_ranks[ranks], summary.shares[engine][ranks]
        told = (
            f"{ENGINES[engine]}, {say_ranks(ranks, summary.cores)}: {say_seconds(by_ranks[ranks])} an epoch"
        )
        lines.append(f"{told}, {speedup:.2f}× as fast; {what_ran_out(speedup, share, bool(fits))}")
        beyond = max(by_ranks)
        if beyond > summary.cores and fits:
            lines[-1] += f" On {beyond} ranks {summary.alone / by_ranks[beyond]:.2f}×: the cores ran out."
    return lines


def what_ran_out(speedup: float, share: Mapping[str, float], fits: bool) -> str:
    """Where the time went; below a speed-up of 1.2, which resource was missing."""
    went = f"{share['wait']:.0%} waiting, {share['transfer']:.0%} transfer."
    if speedup >= WORTH_TELLING:
        return went
    if not fits:
        return f"the cores ran out: the ranks take turns ({went[:-1]})."
    if share["transfer"] > max(share["wait"], 0.25):
        return f"the transfer ran out of bandwidth: {went}"
    if share["wait"] > 0.25:
        return f"a core was slower or busy elsewhere: {went}"
    return f"the ranks share something else that ran out, memory or busy cores: {went}"


def explain_accuracy(summary: Summary) -> list[str]:
    """Whether ranks alone changed the accuracy by more than seeds do; then what the larger batch did."""
    if not summary.accuracies:
        return []
    changes, ranks = accuracy_changes(summary), most_ranks(summary)
    seeds = summary.accuracies[next(iter(summary.accuracies))][1]
    spread = 100 * (max(seeds) - min(seeds))
    lines = []
    for rule, change in changes.items():
        small = abs(change) <= max(spread, 0.1)
        verdict = "no more than seeds do" if small else f"seeds alone: {spread:.1f}"
        lines.append(f"Accuracy, {RULES[rule]}, {ranks} ranks: {signed(change)} points ({verdict}).")
    return lines


def summary_alt(summary: Summary, title: str) -> str:
    """The same in words, line by line."""
    lines = [
        f"{ENGINES[engine]}: "
        + ", ".join(f"{n} ranks {value:.2f}×" for n, value in summary.speedups(engine).items())
        for engine in summary.seconds
    ]
    lines += [
        f"{RULES[rule]}: " + ", ".join(f"{n} ranks {mean(values):.1%}" for n, values in by.items())
        for rule, by in summary.accuracies.items()
    ]
    kind = "Two charts against the ranks: speed-up, open markers for more ranks than cores, and accuracy"
    return f"{kind}. {title}. {'; '.join(lines)}.".replace("\n", " ")
