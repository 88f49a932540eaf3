"""What `python -m benchmarks.allreduce` measured on the reference machine, as the lesson prints it."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from course.paths import ROOT
from mpi_classroom.figures import say_bytes

RESULTS = ROOT / "benchmarks" / "results" / "allreduce.json"
CASES = {"ring": "all-reduce, ring", "doubling": "all-reduce, recursive doubling"}
PREFIXES = {"the model's prediction": "model: ", "MPI_Allreduce, in place": ""}
SIZES = {
    "the model's prediction": tuple(12 * 4**power for power in range(12)),
    "MPI_Allreduce, in place": tuple(4**power for power in range(1, 14)),
}
Peer = Literal["the model's prediction", "MPI_Allreduce, in place"]


@dataclass(frozen=True, slots=True)
class Reference:
    """One all-reduce of one size, in microseconds: our tuned one, and what it is compared with."""

    ours: float
    peer: float


Times = Mapping[str, Mapping[int, Reference]]  # by name and bytes


def all_reduces(ranks: int, peer: Peer = "the model's prediction") -> Times:
    """The tuned ring and doubling on 2 or 4 ranks, beside `peer`; KeyError where nothing was measured."""
    rows = {
        (row["case"].removesuffix(", oversubscribed"), row["peer_name"]): Reference(row["ours"], row["peer"])
        for row in json.loads(RESULTS.read_text())
        if row["ranks"] == ranks
    }
    return {
        name: {m: rows[f"{PREFIXES[peer]}{case}, {say_bytes(m)}", peer] for m in SIZES[peer]}
        for name, case in CASES.items()
    }


def ratios(times: Times) -> dict[float, float]:
    """The time of doubling divided by that of the ring, by bytes."""
    return {m: times["doubling"][m].ours / ring.ours for m, ring in times["ring"].items()}


def table(title: str, times: Times, sizes: Collection[int], peer: str = "") -> str:
    """A line per size with the microseconds of each; with the name of the `peer`, its times in brackets."""
    beside = f" ({peer})" if peer else ""
    width = 12 + len(beside)
    lines = [title, f"{'µs':>8}" + "".join(f"{name + beside:>{width}}" for name in times)]
    for m in sizes:
        cells = [f"{of[m].ours:.0f}" + (f" ({of[m].peer:.0f})" if peer else "") for of in times.values()]
        lines += [f"{say_bytes(m):>8}" + "".join(f"{cell:>{width}}" for cell in cells)]
    return "\n".join(lines)
