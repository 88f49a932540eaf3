"""What the measurements say: medians, speed-up and efficiency, shares of time, accuracy."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TypeVar

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    ENGINES,
    FIXED,
    GLOBAL,
    LOCAL,
    REPLAYED,
    SCALED,
    SEQUENTIAL,
    TIMING,
    EpochRow,
)

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
NAMES = {
    "sequential": "one process",
    "mpi": "by hand",
    "ddp-gloo": "DDP over Gloo",
    "ddp-mpi4py": "DDP over MPI",
}
RULES = {  # of batch and learning rate, as a sentence calls them
    (GLOBAL, FIXED): "same global batch",
    (LOCAL, FIXED): "same batch per rank",
    (LOCAL, SCALED): "same batch per rank, rate × ranks",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to train one model: medians over the epochs of all seeds; `spread`: slowest minus fastest.

    `speedup` is over one thread of one process; `efficiency` divides it by ranks × threads; both are None
    when that baseline was not measured. `compute`, `wait` and `transfer` are shares of the ranks' time.
    """

    model: str
    engine: str
    ranks: int
    threads: int
    label: str
    epoch_seconds: float
    spread: float
    images_per_s: float
    speedup: float | None
    efficiency: float | None
    compute: float
    wait: float
    transfer: float
    epochs: int

    @property
    def name(self) -> str:
        """How a table calls it."""
        return way_name(self.engine, self.ranks, self.threads)


@dataclass(frozen=True, slots=True)
class Final:
    """The test accuracy after the last epoch, of each seed and its mean; `deviation`: None for one seed."""

    model: str
    batch_rule: str
    rate_rule: str
    ranks: int
    batch_size: int
    learning_rate: float
    accuracies: tuple[float, ...]
    mean: float
    deviation: float | None
    loss: float

    @property
    def rule(self) -> str:
        """Batch and learning rate in words."""
        return RULES[self.batch_rule, self.rate_rule]


@dataclass(frozen=True, slots=True)
class Curve:
    """One training: its seconds, test losses and test accuracies after each epoch, the mean of all seeds."""

    name: str
    engine: str
    ranks: int
    threads: int
    label: str
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]


def way_name(engine: str, ranks: int, threads: int) -> str:
    """How a table calls a way of training: one process, 2 threads; DDP over Gloo, 4 ranks."""
    where = "" if engine == SEQUENTIAL else f", {ranks} rank{'s' * (ranks > 1)}"
    return NAMES[engine] + where + (f", {threads} threads" if threads > 1 else "")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their key, in the order in which keys come first."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def timings(rows: Iterable[EpochRow], part: str = TIMING) -> list[Timing]:
    """What the rows of a part say about time, model by model: what was measured, then the replays."""
    chosen = [row for row in rows if row.part == part]
    ways = grouped(chosen, lambda row: (row.model, row.engine, row.ranks, row.threads, row.label, row.images))
    alone = {
        (model, images): median(row.epoch_seconds for row in group)
        for (model, engine, ranks, threads, _, images), group in ways.items()
        if engine == SEQUENTIAL and ranks * threads == 1
    }
    found = [_timing(group, alone.get((key[0], key[-1]))) for key, group in ways.items()]
    models = list(dict.fromkeys(row.model for row in chosen))
    return sorted(found, key=lambda one: (models.index(one.model), one.label == REPLAYED, *_place(one)))


def _place(one: Timing) -> tuple[int, int, int]:
    return ENGINES.index(one.engine), one.ranks, one.threads


def _timing(rows: Sequence[EpochRow], alone: float | None) -> Timing:
    first, seconds = rows[0], [row.epoch_seconds for row in rows]
    middle = median(seconds)
    speedup = alone / middle if alone else None
    kinds = [
        fmean(getattr(row, f"{kind}_seconds") for row in rows) for kind in ("compute", "wait", "transfer")
    ]
    compute, wait, transfer = (kind / sum(kinds) for kind in kinds)
    return Timing(
        first.model,
        first.engine,
        first.ranks,
        first.threads,
        first.label,
        middle,
        max(seconds) - min(seconds),
        first.images / middle,
        speedup,
        speedup / (first.ranks * first.threads) if speedup else None,
        compute,
        wait,
        transfer,
        len(rows),
    )


def finals(rows: Iterable[EpochRow]) -> list[Final]:
    """The accuracies at the end of the accuracy part, by model, rule and ranks."""
    last = [row for row in rows if row.part == ACCURACY and row.epoch == row.epochs]
    ways = grouped(last, lambda row: (row.model, row.batch_rule, row.rate_rule, row.ranks))
    models = list(dict.fromkeys(row.model for row in last))
    found = [_final(group) for group in ways.values()]
    rules = list(RULES)
    return sorted(
        found,
        key=lambda one: (models.index(one.model), rules.index((one.batch_rule, one.rate_rule)), one.ranks),
    )


def _final(rows: Sequence[EpochRow]) -> Final:
    first, values = rows[0], [row.test_accuracy or 0.0 for row in rows]
    return Final(
        first.model,
        first.batch_rule,
        first.rate_rule,
        first.ranks,
        first.batch_size,
        first.learning_rate,
        tuple(values),
        fmean(values),
        stdev(values) if len(values) > 1 else None,
        fmean(row.test_loss or 0.0 for row in rows),
    )


def curves(rows: Iterable[EpochRow], *, model: str) -> list[Curve]:
    """Accuracy and loss against seconds of training, by ranks, of the runs with the same global batch."""
    chosen = [row for row in rows if row.part == ACCURACY and row.model == model and row.batch_rule == GLOBAL]
    found = []
    for (engine, ranks, threads), group in grouped(
        chosen, lambda row: (row.engine, row.ranks, row.threads)
    ).items():
        epochs = grouped(group, lambda row: row.epoch).values()
        found.append(
            Curve(
                way_name(engine, ranks, threads),
                engine,
                ranks,
                threads,
                group[0].label,
                tuple(fmean(row.wall_seconds for row in rows) for rows in epochs),
                tuple(fmean(row.test_loss or 0.0 for row in rows) for rows in epochs),
                tuple(fmean(row.test_accuracy or 0.0 for row in rows) for rows in epochs),
            )
        )
    return found
