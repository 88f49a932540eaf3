"""A row: one number with its unit, its spread, how we know it, and labels that say what it belongs to.

    Row({"way": "ring", "ranks": 4, "bytes": 65536}, value=0.00021, low=0.00019, high=0.00034)

Benchmarks, the study and lessons all use this type, from the rank that measures to the picture. It is pure
Python: a notebook reads and makes rows without starting MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Label = str | int | float
Kind = Literal["measured", "counted", "predicted", "published"]


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `low` and `high` are the least and greatest of the repetitions; without any, `value`."""

    labels: Mapping[str, Label]
    value: float
    low: float
    high: float
    unit: str = "s"
    kind: Kind = "measured"

    def __getitem__(self, name: str) -> Label:
        """The label of that name: `row["ranks"]`."""
        return self.labels[name]


def predicted(value: float, *, unit: str = "s", **labels: Label) -> Row:
    """What a formula says."""
    return Row(labels, value, value, value, unit, "predicted")


def published(value: float, *, source: str, unit: str = "s", **labels: Label) -> Row:
    """What others have published; `source` becomes a label too: "Awan et al. 2017, figure 5"."""
    return Row({**labels, "source": source}, value, value, value, unit, "published")


def count(value: float, *, unit: str, **labels: Label) -> Row:
    """What was counted, exactly: bytes, messages, steps."""
    return Row(labels, value, value, value, unit, "counted")
