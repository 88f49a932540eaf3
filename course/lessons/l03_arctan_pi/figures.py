"""The pictures of lesson 03: times by strips or by ranks, and straight lines beside them."""

from collections.abc import Mapping
from typing import Any

from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def draw_times(
    times: Mapping[str, Mapping[int, float]],
    lines: Mapping[str, tuple[float, float]] | None = None,
    *,
    x: str = "strips",
    kind: str = "measured",
) -> Picture:
    """Draw seconds by `x`, a curve per name, and for a name in `lines` (a, b) the line a + b · x, dashed."""
    rows = [_row(x, n, name, t, kind) for name, of in times.items() for n, t in of.items()]
    for name, (a, b) in (lines or {}).items():
        rows += [_row(x, n, name, a + b * n, "predicted") for n in times[name]]
    return show(rows, x=x, y="time", by="on")


def _row(x: str, n: int, name: str, seconds: float, kind: str) -> dict[str, Any]:
    return {"labels": {x: n, "on": name}, "value": seconds, "kind": kind}
