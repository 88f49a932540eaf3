"""What the reference machine measured when nothing else ran on it: the rows of benchmarks/results."""

import json
from typing import Any

from course.paths import ROOT


def rows(benchmark: str) -> list[dict[str, Any]]:
    """What `python -m benchmarks.BENCHMARK` measured: `case`, `ranks`, the times `ours` and `peer`, and more.

    Raises FileNotFoundError where no result of this benchmark is committed.
    """
    text = (ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def reference(benchmark: str, case: str) -> dict[str, Any]:
    """The row `case` of `rows(benchmark)`; KeyError where there is no such row."""
    return {row["case"]: row for row in rows(benchmark)}[case]
