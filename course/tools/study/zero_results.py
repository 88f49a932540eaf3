"""The results of `course study --zero`: a line of CSV for each rank of each case.

zero.csv        a `ZeroRow` a line; its first columns are the `ZeroCase` that was run
machine.json    as in the other study
report.html     a table and figures
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from course.lessons.l07_ddp_on_mnist.study_results import MEASURED, OVERSUBSCRIBED, read_about, read_rows
from course.tools.study.plan import powers_of_two
from course_lib.theory.memory import ADAM_FP32, STAGES, StateBytes, bytes_per_parameter

ZERO = "zero.csv"
RANDOM = "random tokens"


@dataclass(frozen=True, slots=True)
class ZeroCase:
    """A training: `stage` on `ranks`, of a Transformer, with `batch` sequences per rank."""

    stage: int
    ranks: int
    width: int
    layers: int
    length: int
    batch: int
    steps: int

    @property
    def name(self) -> str:
        """How a sentence calls it."""
        return f"stage {self.stage} on {self.ranks} rank{'s' * (self.ranks != 1)}"


@dataclass(frozen=True, slots=True)
class ZeroRow(ZeroCase):
    """What one rank held, and how long its step took.

    The bytes are those of `parameters` parameters between two steps. `peak_bytes`: of the process's memory,
    above what it had before the model was built; None where the system does not report it. `step_seconds`:
    the median of all steps, the slowest rank's; `step_spread`: between the fastest and the slowest step.
    `loss`: of all ranks' last batch. `cores`: of the machine.
    """

    rank: int
    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    peak_bytes: int | None
    step_seconds: float
    step_spread: float
    loss: float
    cores: int

    @property
    def case(self) -> ZeroCase:
        """The training that this is a rank of."""
        return ZeroCase(*(getattr(self, each.name) for each in fields(ZeroCase)))

    @property
    def held(self) -> StateBytes:
        """All three kinds."""
        return StateBytes(self.weights_bytes, self.gradients_bytes, self.optimizer_bytes)

    @property
    def formula_bytes(self) -> float:
        """What the formula says a rank holds."""
        return bytes_per_parameter(self.stage, self.ranks, ADAM_FP32) * self.parameters

    @property
    def label(self) -> str:
        """How to read its times."""
        return OVERSUBSCRIBED if self.ranks > self.cores else MEASURED


def zero_cases(*, quick: bool, cores: int, ranks: Sequence[int] = ()) -> list[ZeroCase]:
    """All stages on each number of ranks; ValueError for numbers that are none of ranks."""
    if any(not 1 <= count <= 64 for count in ranks):
        raise ValueError(f"ranks {tuple(ranks)}; give 1 to 64 ranks")
    counts = ranks or powers_of_two(2 if quick else max(cores, 4))
    sizes = (128, 2, 32, 2, 3) if quick else (512, 6, 128, 8, 5)
    return [ZeroCase(stage, count, *sizes) for count in counts for stage in STAGES]


def load_zero(folder: Path) -> tuple[tuple[ZeroRow, ...], dict[str, Any]]:
    """The rows in `folder` and where they were measured; ResultsError when there are none."""
    return read_rows(folder, ZERO, ZeroRow), read_about(folder)


def cases_of(rows: Iterable[ZeroRow]) -> dict[ZeroCase, list[ZeroRow]]:
    """The rows of each case."""
    return {case: list(group) for case, group in groupby(rows, key=lambda row: row.case)}
