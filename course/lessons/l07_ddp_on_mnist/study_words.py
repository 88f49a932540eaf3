"""A study in words: tables and sentences, chosen from its rows, with the published figures beside them."""

from collections.abc import Iterable, Sequence
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
    TIMING,
    EpochRow,
)
from course.lessons.l07_ddp_on_mnist.study_tables import NAMES, Final, finals, grouped, timings, way_name
from course_lib.training.models import MNIST_MODELS

PUBLISHED_RANKS = 8  # the most that the published study ran
WAY, CELL, NARROW = 32, 26, 16  # letters in a column of a table

# ---------------------------------------------------------------- accuracy


def span(values: Sequence[float]) -> str:
    """The mean of some accuracies (0 to 1), and the lowest and highest, in percent."""
    low, high = 100 * min(values), 100 * max(values)
    return f"{100 * fmean(values):.2f} % ({low:.2f} to {high:.2f})"


def explain_accuracies(rows: Iterable[EpochRow], model: str) -> str:
    """For each rule, its most ranks beside one rank: a change counts if the seeds' ranges do not overlap."""
    found = [one for one in finals(rows) if one.model == model]
    alone = next(one for one in found if (one.batch_rule, one.rate_rule, one.ranks) == (GLOBAL, FIXED, 1))
    lines = [f"1 rank, batch {alone.batch_size}: {span(alone.accuracies)} over {len(alone.accuracies)} seeds"]
    for rule, group in grouped(found, lambda one: one.rule).items():
        most = max(group, key=lambda one: one.ranks)
        if most.ranks == 1:
            continue
        points = 100 * (most.mean - alone.mean)
        verdict = verdict_on(points, overlap=ranges_overlap(alone.accuracies, most.accuracies))
        batch = f"global batch {most.batch_size}"
        lines.append(f"{most.ranks} ranks, {rule} ({batch}): {span(most.accuracies)}: {verdict}")
    return "\n".join([*lines, *nearest_to_published(found)])


def nearest_to_published(found: Sequence[Final]) -> list[str]:
    """Which rule comes nearest to the published accuracy, for the most ranks that both studies ran."""
    published = {one.ranks: one.accuracy for one in TABLE if one.model == found[0].model and one.accuracy}
    common = [one.ranks for one in found if one.ranks > 1 and one.ranks in published]
    if not common:
        return []
    ranks = max(common)
    theirs = published[ranks]
    best = min((one for one in found if one.ranks == ranks), key=lambda one: abs(one.mean - theirs))
    listed = ", ".join(f"{100 * value:.4g} % on {n}" for n, value in sorted(published.items()))
    return [f"Published: {listed}. On {ranks} ranks, nearest to that here: {best.rule}."]


def ranges_overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the lowest and the highest of both leave no gap between them."""
    return min(one) <= max(other) and min(other) <= max(one)


def verdict_on(points: float, *, overlap: bool) -> str:
    """A change in percentage points, and whether seeds or rounding can explain it."""
    change = f"{points:+.2f} points".replace("-", "−")
    if overlap:
        return f"{change}, within what seeds change"
    return f"{change}, and the ranges of the seeds do not overlap"


def after_equal_epochs(rows: Iterable[EpochRow]) -> str:
    """A table: the accuracy of each model in each way that was timed, mean and range of its seeds."""
    last = [row for row in rows if row.part == TIMING and row.epoch == row.epochs and row.test_accuracy]
    found = grouped(last, lambda row: (way_name(row.engine, row.ranks, row.threads), row.model))
    ways, models = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    seeds = len({row.seed for row in last})
    lines = [f"test accuracy after {last[0].epochs} epochs: mean (lowest to highest) of {seeds} seeds"]
    lines.append(f"{'':{WAY}}" + "".join(f"{model:>{CELL}}" for model in models))
    for name in ways:
        cells = [span([row.test_accuracy or 0.0 for row in found.get((name, model), ())]) for model in models]
        lines.append(f"{name:{WAY}}" + "".join(f"{cell:>{CELL}}" for cell in cells))
    return "\n".join(lines)


# ---------------------------------------------------------------- what was not run


def not_in(rows: Iterable[EpochRow]) -> str:
    """What the published study has and these rows do not, as a sentence; empty when nothing is missing."""
    last = [row for row in rows if row.part == ACCURACY and row.epoch == row.epochs]
    epochs = max((row.epochs for row in last), default=0)
    missing = []
    eight = [row for row in last if row.batch_rule == LOCAL and row.ranks == PUBLISHED_RANKS]
    if not eight:
        most = max((row.ranks for row in last if row.batch_rule == LOCAL), default=1)
        missing.append(
            f"{PUBLISHED_RANKS} ranks with the same batch per rank (the most are {most}), so the published "
            f"98.7 % "
            "is not repeated"
        )
    models = [model for model in MNIST_MODELS if model not in {row.model for row in last}]
    if models:
        missing.append(f"{' and '.join(models)} for {epochs} epochs")
    engines = {row.engine for row in last if row.ranks > 1}
    absent = [NAMES[engine] for engine in ("ddp-gloo", "ddp-mpi4py") if engine not in engines]
    if absent:
        missing.append(f"{epochs} epochs by {' and '.join(absent)}")
    return f"These results do not have: {'; '.join(missing)}." if missing else ""


# ---------------------------------------------------------------- times beside the published ones


def beside_published(rows: Iterable[EpochRow]) -> str:
    """A table: seconds per epoch and speed-up over one thread by way and model, ours beside published."""
    ours = {(one.model, way_name(one.engine, one.ranks, one.threads)): one for one in reversed(timings(rows))}
    theirs = {
        (one.model, way_name(one.engine, one.ranks, one.threads)): one for one in TABLE if one.epoch_seconds
    }
    alone = {
        model: one.epoch_seconds for (model, name), one in theirs.items() if one.ranks * one.threads == 1
    }
    models = list(dict.fromkeys(model for model, _ in theirs))
    lines = [f"{'':{WAY}}" + "".join(f"{model:>{NARROW}}{'published':>{NARROW}}" for model in models)]
    for name in dict.fromkeys(name for _, name in [*reversed(ours), *theirs]):
        cells = []
        for model in models:
            mine, other = ours.get((model, name)), theirs.get((model, name))
            cells.append(timed(mine.epoch_seconds, mine.speedup, mine.label) if mine else "")
            cells.append(timed_there(other, alone.get(model)) if other else "")
        lines.append((f"{name:{WAY}}" + "".join(f"{cell:>{NARROW}}" for cell in cells)).rstrip())
    return "\n".join([*lines, "o: oversubscribed, r: replayed; published: on 8 cores"])


def timed_there(one: Published, alone: float | None) -> str:
    """A published time; its speed-up is the published one, or follows from the time `alone` of one thread."""
    seconds = one.epoch_seconds or 0.0
    return timed(seconds, one.speedup or (alone / seconds if alone and seconds else None))


def timed(seconds: float, gain: float | None, label: str = MEASURED) -> str:
    """Seconds per epoch, speed-up over one thread, and a mark for what was oversubscribed or replayed."""
    mark = {OVERSUBSCRIBED: " o", REPLAYED: " r"}.get(label, "")
    return f"{seconds:.3g} s" + (f" {gain:.2f}×" if gain else "") + mark
