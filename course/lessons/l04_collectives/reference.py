"""What `python -m benchmarks.allreduce` measured on the reference machine, as the lesson prints it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import log
from typing import Literal

from course.lessons.shared.reference import rows
from mpi_classroom.figures import listed, say_bytes

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
    found = {
        (row["case"].removesuffix(", oversubscribed"), row["peer_name"]): Reference(row["ours"], row["peer"])
        for row in rows("allreduce")
        if row["ranks"] == ranks
    }
    return {
        name: {m: found[f"{PREFIXES[peer]}{case}, {say_bytes(m)}", peer] for m in SIZES[peer]}
        for name, case in CASES.items()
    }


def ratios(times: Times) -> dict[float, float]:
    """The time of doubling divided by that of the ring, by bytes."""
    return {m: times["doubling"][m].ours / ring.ours for m, ring in times["ring"].items()}


def misses(times: Times) -> dict[str, dict[int, float]]:
    """The time of each divided by that of its peer, by name and bytes."""
    return {name: {m: each.ours / each.peer for m, each in of.items()} for name, of in times.items()}


def say_closest(times: Times) -> str:
    """The microseconds of both at the size where they differ least."""
    of = ratios(times)
    m = min(of, key=lambda nbytes: abs(log(of[nbytes])))
    told = listed(f"{name} {by_size[int(m)].ours:.0f} µs" for name, by_size in times.items())
    return f"closest at {say_bytes(m)}, {told}"


def say_alike(times: Times, within: float = 0.15) -> str:
    """At how many sizes ring and doubling take nearly the same time."""
    of = ratios(times)
    alike = sum(abs(log(ratio)) < log(1 + within) for ratio in of.values())
    return f"ring and doubling differ by less than {within:.0%} at {alike} of {len(of)} sizes"


def table(title: str, times: Times, sizes: Collection[int], peer: str = "") -> str:
    """A line per size with the microseconds of each.

    With the name of the `peer`, its times in brackets; without, the `ratios` in the last column.
    """
    if peer:
        heads = [f"{name} ({peer})" for name in times]
        cells = {m: [f"{of[m].ours:.0f} ({of[m].peer:.0f})" for of in times.values()] for m in sizes}
    else:
        heads, quotients = [*times, "ratio"], ratios(times)
        cells = {m: [*(f"{of[m].ours:.0f}" for of in times.values()), f"{quotients[m]:.2f}"] for m in sizes}
    width = max(12, *(len(head) + 4 for head in heads))
    lines = [_line("µs", heads, width), *(_line(say_bytes(m), cells[m], width) for m in sizes)]
    return "\n".join([title, *lines])


def _line(head: str, cells: Collection[str], width: int) -> str:
    return f"{head:>8}" + "".join(f"{cell:>{width}}" for cell in cells)
