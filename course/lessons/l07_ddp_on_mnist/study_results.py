"""The results of a study: a folder with one line of CSV for each epoch of each run.

    measurements.csv    a `EpochRow` a line; its first columns are the `Case` that was run
    machine.json        {"machine": {...}, "versions": {...}, "data": "...", "command": "...", "date": "..."}
    report.html         made from the two, for people

A file is only ever replaced as a whole, so that whoever ends the study ends it between two runs: a case
whose last epoch is in the file is done, every other one is not. `load(folder)` reads it back; `COMMITTED` is
the study that the course was published with.

    study = load()
    [row.epoch_seconds for row in study.rows if row.model == "cnn" and row.engine == "ddp-gloo"]
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from course.paths import ROOT
from course_lib.training.saving import atomic_save

COMMITTED = ROOT / "benchmarks" / "results" / "study"
MEASUREMENTS, MACHINE, REPORT = "measurements.csv", "machine.json", "report.html"

TIMING, THREADS, ACCURACY = "timing", "threads", "accuracy"
PARTS = (TIMING, THREADS, ACCURACY)
SEQUENTIAL, OWN_MPI, DDP_GLOO, DDP_MPI4PY = "sequential", "mpi", "ddp-gloo", "ddp-mpi4py"
ENGINES = (SEQUENTIAL, OWN_MPI, DDP_GLOO, DDP_MPI4PY)
GLOBAL, LOCAL = "global", "local"  # which batch stays the same on more ranks
FIXED, SCALED = "fixed", "scaled"  # whether the learning rate grows with the ranks
MEASURED, OVERSUBSCRIBED, REPLAYED = "measured", "oversubscribed", "replayed"


@dataclass(frozen=True, slots=True)
class Case:
    """One training run: everything that has to be the same for it to be the same run.

    `part`: timing, threads or accuracy. `engine`: sequential, mpi, ddp-gloo or ddp-mpi4py. `threads`: of
    each rank. `batch_rule`: global when `batch_size` is the same on any number of ranks, local when that of
    each rank is. `rate_rule`: fixed, or scaled (`learning_rate` grows as the ranks). `batch_size` is that of
    the global batch, `learning_rate` that of the first step, `images` how many there are to train on.
    `replayed`: computed from times of single operations, not run.
    """

    part: str
    model: str
    engine: str
    ranks: int
    threads: int
    batch_rule: str
    rate_rule: str
    batch_size: int
    learning_rate: float
    images: int
    epochs: int
    seed: int
    data: str
    replayed: bool

    @property
    def name(self) -> str:
        """How a sentence calls it."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        threads = f" × {self.threads} threads" if self.threads > 1 else ""
        rules = f", fixed {self.batch_rule} batch, {self.rate_rule} rate" if self.part == ACCURACY else ""
        replayed = ", replayed" if self.replayed else ""
        return f"{self.model} {self.engine} on {ranks}{threads}{rules}, seed {self.seed}{replayed}"


@dataclass(frozen=True, slots=True)
class EpochRow(Case):
    """One epoch of a case.

    `epoch` counts from 1. `epoch_seconds`: the slowest rank's, evaluation not included; `wall_seconds`: of
    all epochs so far. `compute_seconds`, `wait_seconds` and `transfer_seconds` add up to the epoch, the mean
    of all ranks; what a transfer hides behind computing counts as computing. Losses are means of a sample;
    accuracy is from 0 to 1, on the test images. What a replay cannot say is None. Seconds on another machine
    than the one of the study are NaN (committed results only: decision 7). `cores`: that the machine has, or
    the machines of its ranks together.
    """

    epoch: int
    epoch_seconds: float
    wall_seconds: float
    compute_seconds: float
    wait_seconds: float
    transfer_seconds: float
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    cores: int

    @property
    def case(self) -> Case:
        """The run that this is an epoch of."""
        return Case(*(getattr(self, each.name) for each in fields(Case)))

    @property
    def label(self) -> str:
        """How to read its times: measured, oversubscribed (more ranks or threads than cores), or replayed."""
        if self.replayed:
            return REPLAYED
        return OVERSUBSCRIBED if self.ranks * self.threads > self.cores else MEASURED


COLUMNS = tuple(each.name for each in fields(EpochRow))


@dataclass(frozen=True, slots=True)
class Study:
    """What is in a folder of results."""

    rows: tuple[EpochRow, ...] = field(repr=False)
    about: dict[str, Any] = field(repr=False)

    @property
    def cores(self) -> int:
        """Of the machine that it was measured on."""
        return int(self.about["machine"]["cores"])


class ResultsError(RuntimeError):
    """Results that cannot be read, or that are not those one asked for: one sentence."""


def load(folder: Path = COMMITTED) -> Study:
    """The results in `folder`; ResultsError when there are none or they are damaged."""
    name = MEASUREMENTS
    try:
        with open(folder / name, newline="", encoding="utf-8") as file:
            table = csv.reader(file)
            if tuple(next(table, ())) != COLUMNS:
                raise ValueError("its columns are others")
            rows = tuple(map(_row, table))
        name = MACHINE
        return Study(rows, dict(json.loads((folder / name).read_text(encoding="utf-8"))))
    except FileNotFoundError as error:
        raise ResultsError(f"{folder} holds no results of a study: {error.filename} is missing") from None
    except ValueError as error:
        raise ResultsError(f"{folder / name} cannot be read ({error}); move it away") from None


def _row(line: Sequence[str]) -> EpochRow:
    if len(line) != len(COLUMNS):
        raise ValueError(f"a line has {len(line)} entries instead of {len(COLUMNS)}")
    return EpochRow(*(_value(text, each.type) for text, each in zip(line, fields(EpochRow), strict=True)))


def _value(text: str, kind: Any) -> Any:
    if kind is bool:
        return text == "True"
    for number in (int, float):
        if kind == number | None:
            return number(text) if text else None
    return kind(text)


def as_csv(rows: Iterable[EpochRow]) -> str:
    """The rows as the text of a CSV; seconds in microseconds' precision."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in rows:
        table.writerow([_entry(getattr(row, name)) for name in COLUMNS])
    return text.getvalue()


def _entry(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def save(folder: Path, rows: Iterable[EpochRow], about: dict[str, Any]) -> None:
    """Replace the results in `folder`; OSError leaves those that were there."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_save(folder / MACHINE, f"{json.dumps(about, indent=2, ensure_ascii=False)}\n".encode())
    atomic_save(folder / MEASUREMENTS, as_csv(rows).encode())
