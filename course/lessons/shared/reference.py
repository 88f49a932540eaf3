"""What the reference machine measured when nothing else ran on it: the rows of benchmarks/results."""

import json
from typing import Any

from course.paths import ROOT


def rows(benchmark: str) -> list[dict[str, Any]]:
    """What `python -m benchmarks.BENCHMARK` measured: `case`, `ranks`, the times `ours` and `peer`, and more.

    Raises FileNotFoundError where no result of this benchmark is committed.
    """
    return list(_read(f"{benchmark}.json"))


def log_of(benchmark: str) -> dict[str, Any]:
    """What was logged in a long run of this benchmark, by name: settings, losses and what else it says."""
    return dict(_read(f"{benchmark}.run.json"))


def _read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def reference(benchmark: str, case: str) -> dict[str, Any]:
    """The row `case` of `rows(benchmark)`; KeyError where there is no such row."""
    return {row["case"]: row for row in rows(benchmark)}[case]
