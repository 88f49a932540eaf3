"""A study in words: tables and sentences, chosen from its rows, with the published figures beside them."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from course.lessons.l07_ddp_on_mnist.study_published import TABLE, Published
from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    FIXED,
    GLOBAL,
    LOCAL,
    MEASURED,
    OVERSUBSCRIBED,
    REPLAYED,
    SCALED,
    TIMING,
    EpochRow,
    Study,
)
from course.lessons.l07_ddp_on_mnist.study_tables import (
    NAMES,
    Final,
    finals,
    grouped,
    thread_grid,
    timings,
    way_name,
)
from course_lib.training.models import MNIST_MODELS

PUBLISHED_RANKS = 8  # the most that the published study ran
WAY, CELL, NARROW = 24, 9, 16  # letters in a column of a table

# ---------------------------------------------------------------- accuracy


def span(values: Sequence[float]) -> str:
    """The mean of some accuracies (0 to 1), and the lowest and highest, in percent."""
    low, high = 100 * min(values), 100 * max(values)
    return f"{100 * fmean(values):.2f} % ({low:.2f} to {high:.2f})"


def explain_accuracies(rows: Iterable[EpochRow], model: str) -> str:
    """For each rule, its most ranks beside one rank, and whether seeds alone may explain the change."""
    found = [one for one in finals(rows) if one.model == model]
    alone = next(one for one in found if (one.batch_rule, one.rate_rule, one.ranks) == (GLOBAL, FIXED, 1))
    lines = [f"1 rank, batch {alone.batch_size}: {span(alone.accuracies)} over {len(alone.accuracies)} seeds"]
    for rule, group in grouped(found, lambda one: one.rule).items():
        most = max(group, key=lambda one: one.ranks)
        if most.ranks == 1:
            continue
        points = 100 * (most.mean - alone.mean)
        verdict = verdict_on(points, alone.accuracies, most.accuracies)
        batch = f"global batch {most.batch_size}"
        lines.append(f"{most.ranks} ranks, {rule} ({batch}): {span(most.accuracies)}: {verdict}")
    return "\n".join([*lines, *won_back(found, alone.mean), *nearest_to_published(found)])


def in_percent(accuracy: float) -> float:
    """In the digits that a sentence has: what a reader subtracts must come out as we say."""
    return round(100 * accuracy, 2)


def won_back(found: Sequence[Final], alone: float) -> list[str]:
    """How much of what larger batches cost comes back with a larger learning rate; can seeds explain it?"""
    local = {(one.rate_rule, one.ranks): in_percent(one.mean) for one in found if one.batch_rule == LOCAL}
    both = [ranks for rate, ranks in local if rate == SCALED and (FIXED, ranks) in local]
    if not both:
        return []
    ranks = max(both)
    lost, back = in_percent(alone) - local[FIXED, ranks], local[SCALED, ranks] - local[FIXED, ranks]
    if lost <= 0 or back <= 0:
        return []
    seeds = {one.rate_rule: one.accuracies for one in found if (one.batch_rule, one.ranks) == (LOCAL, ranks)}
    of = f"{back:.2f} of the {lost:.2f} points lost there"
    beside = beside_seeds(seeds[FIXED], seeds[SCALED])
    return [f"On {ranks} ranks, a learning rate that grows with the ranks wins back {of}; this is {beside}."]


def nearest_to_published(found: Sequence[Final]) -> list[str]:
    """Which rule comes nearest to the published accuracy, for the most ranks that have more than one rule."""
    published = {one.ranks: one.accuracy for one in TABLE if one.model == found[0].model and one.accuracy}
    common = [one.ranks for one in found if one.ranks > 1 and one.ranks in published]
    several = [ranks for ranks in common if common.count(ranks) > 1]
    if not several:
        return []
    ranks = max(several)
    theirs = published[ranks]
    best = min((one for one in found if one.ranks == ranks), key=lambda one: abs(one.mean - theirs))
    listed = ", ".join(f"{100 * value:.4g} % on {n}" for n, value in sorted(published.items()))
    reached = f"{best.rule} ({100 * best.mean:.2f} %)"
    return [f"Published: {listed}. On {ranks} ranks, nearest to that here: {reached}."]


def gap_between(one: Sequence[float], other: Sequence[float]) -> float:
    """From the range of the one to that of the other; negative where they overlap."""
    return max(min(one) - max(other), min(other) - max(one))


def verdict_on(points: float, alone: Sequence[float], most: Sequence[float]) -> str:
    """A change in percentage points, and whether seeds can explain it."""
    change = f"{points:+.2f} points".replace("-", "−")
    return f"{change}, {beside_seeds(alone, most)}"


def beside_seeds(some: Sequence[float], others: Sequence[float]) -> str:
    """Whether seeds can explain how two ranges of accuracies differ: is there a gap, and is it wide?"""
    gap = gap_between(some, others)
    if gap <= 0:
        return "within what seeds change"
    if gap < max(max(seeds) - min(seeds) for seeds in (some, others)):
        return f"too little to tell from chance with {len(others)} seeds"
    return "more than seeds change"


def after_equal_epochs(rows: Iterable[EpochRow]) -> str:
    """A table: the mean accuracy of each model in each way that was timed, and how far seeds differ."""
    last = [row for row in rows if row.part == TIMING and row.epoch == row.epochs and row.test_accuracy]
    found = grouped(last, lambda row: (way_name(row.engine, row.ranks, row.threads), row.model))
    ways, models = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    seeds = len({row.seed for row in last})
    percents = {key: [100 * (row.test_accuracy or 0.0) for row in group] for key, group in found.items()}
    lines = [f"test accuracy after {last[0].epochs} epochs in %, mean of {seeds} seeds"]
    lines.append(f"{'':{WAY}}" + "".join(f"{model:>{CELL}}" for model in models))
    for name in ways:
        cells = "".join(f"{fmean(percents[name, model]):{CELL}.2f}" for model in models)
        lines.append(f"{name:{WAY}}{cells}")
    widest = [max(max(percents[way, model]) - min(percents[way, model]) for way in ways) for model in models]
    differences = "".join(f"{most:{CELL}.2f}" for most in widest)
    lines.append(f"{'seeds differ by at most':{WAY}}{differences}")
    return "\n".join(lines)


# ---------------------------------------------------------------- what was not run


def not_in(rows: Iterable[EpochRow]) -> str:
    """What the published study has and these rows do not, as a sentence; empty when nothing is missing.

    The published accuracies are those of the CNN: what another model reaches does not repeat them.
    """
    last = [row for row in rows if row.part == ACCURACY and row.epoch == row.epochs]
    epochs = max((row.epochs for row in last), default=0)
    missing = []
    ran = {row.ranks for row in last if (row.model, row.batch_rule) == ("cnn", LOCAL)}
    if PUBLISHED_RANKS not in ran:
        missing.append(
            f"the CNN on {PUBLISHED_RANKS} ranks with the same batch per rank (the most are "
            f"{max(ran, default=1)}), so the published 98.7 % is not repeated"
        )
    models = [model for model in MNIST_MODELS if model not in {row.model for row in last}]
    if models:
        missing.append(f"{' and '.join(model.upper() for model in models)} for {epochs} epochs")
    engines = {row.engine for row in last if row.ranks > 1}
    absent = [NAMES[engine] for engine in ("ddp-gloo", "ddp-mpi4py") if engine not in engines]
    if absent:
        missing.append(f"{epochs} epochs by {' and '.join(absent)}")
    return f"Not measured: {'; '.join(missing)}." if missing else ""


# ---------------------------------------------------------------- times beside the published ones


def epoch_tables(rows: Iterable[EpochRow]) -> str:
    """Two tables, ours and the published: seconds per epoch and speed-up over one thread by way and model."""
    rows = list(rows)
    ours = {
        (way_name(one.engine, one.ranks, one.threads), one.model): timed(
            one.epoch_seconds, one.speedup, one.label
        )
        for one in reversed(timings(rows))  # what was measured is in place of its replay
    }
    published = [one for one in TABLE if one.epoch_seconds]
    alone = {one.model: one.epoch_seconds for one in published if one.ranks * one.threads == 1}
    theirs = {
        (way_name(one.engine, one.ranks, one.threads), one.model): timed_there(one, alone.get(one.model))
        for one in published
    }
    models = list(dict.fromkeys(one.model for one in published))
    return "\n".join(
        [
            *table(f"ours, on {rows[0].cores} cores", dict(reversed(ours.items())), models),
            "o: oversubscribed, r: replayed",
            "",
            *table("published, on 8 cores", theirs, models),
            "The slides name no model for 17 s and 19 s.",
            "Their 3.9× is 67 s / 17 s: they give one process both 65 s and 67 s.",
        ]
    )


def table(title: str, cells: Mapping[tuple[str, str], str], models: Sequence[str]) -> list[str]:
    """Lines: a row per way, a column per model; `cells` by way and model, missing ones stay empty."""
    lines = [f"{title:{WAY}}" + "".join(f"{model:>{NARROW}}" for model in models)]
    for name in dict.fromkeys(name for name, _ in cells):
        row = "".join(f"{cells.get((name, model), ''):>{NARROW}}" for model in models)
        lines.append(f"{name:{WAY}}{row}".rstrip())
    return lines


def timed_there(one: Published, alone: float | None) -> str:
    """A published time; its speed-up is the published one, or follows from the time `alone` of one thread."""
    seconds = one.epoch_seconds or 0.0
    if one.speedup:
        return f"{seconds:.3g} s {one.speedup:g}×  "  # with the digits of the slides
    return timed(seconds, alone / seconds if alone and seconds else None)


def timed(seconds: float, gain: float | None, label: str = MEASURED) -> str:
    """Seconds per epoch, speed-up over one thread, and a mark: oversubscribed, replayed or, as wide, none."""
    mark = {OVERSUBSCRIBED: " o", REPLAYED: " r"}.get(label, "  ")
    return f"{seconds:.3g} s" + (f" {gain:.2f}×" if gain else "") + mark


# ---------------------------------------------------------------- more threads than cores

FAR = 2  # times as many images per second: not noise


def explain_threads(study: Study) -> str:
    """A guess, where more threads than cores are far slower than even more threads; else empty."""
    rates = {pair: one.images_per_s for pair, one in thread_grid(study.rows).items()}
    far = [
        (ranks, few, more)
        for ranks, few in rates
        for same, more in rates
        if same == ranks and few <= study.cores < more and ranks * few > study.cores
        if rates[ranks, more] > FAR * rates[ranks, few]
    ]
    if not far:
        return ""
    ranks, few, more = min(far)
    return (
        f"Why are {ranks} ranks × {few} threads ({rates[ranks, few]:.0f} images per second) slower than "
        f"{ranks} × {more} ({rates[ranks, more]:.0f})?\nA guess: OpenMP's threads spin while they wait, and "
        "yield their core sooner once their own process\nhas more threads than there are cores."
    )
