"""How long something takes on several ranks: all start together, and the slowest rank counts.

    seconds = timed(comm, lambda: ring_allreduce(comm, buffer))
    rows = measure(comm, {"ring": ring, "MPI's own": own}, bytes=buffer.nbytes)

`timed` gives one number. `measure` gives rows that draw themselves. It lets several functions take turns in
one run, so that all of them meet the same disturbances: compare no two numbers from different runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from mpi4py import MPI

from course_lib.rows import Label, Row

Function = Callable[[], object]


def timed(comm: MPI.Comm, function: Callable[[], object], repeat: int = 10) -> float:
    """Seconds of `function()` on the slowest rank, the median of `repeat` runs; the same on every rank."""
    seconds = []
    for _ in range(repeat):
        comm.Barrier()  # all ranks start together
        start = MPI.Wtime()
        function()
        seconds.append(comm.allreduce(MPI.Wtime() - start, op=MPI.MAX))
    return float(np.median(seconds))


def measure(
    comm: MPI.Comm,
    functions: Mapping[str, Function] | Function,
    *,
    repeat: int = 10,
    by: str = "way",
    **labels: Label,
) -> list[Row]:
    """A row per function: seconds of the slowest rank, the median, least and greatest of `repeat` runs.

    Each function runs once untimed. Then they take turns: all of them once, all of them again. Every row
    has `labels`, the label `ranks`, and the function's name as the label that `by` names; a single
    function without a name has no such label. All ranks pass the same functions in the same order, and get
    the same rows. Raises ValueError if there is nothing to measure.
    """
    named = functions if isinstance(functions, Mapping) else {"": functions}
    if not named or repeat < 1:
        raise ValueError(f"{len(named)} functions, {repeat} runs: pass at least one function and repeat=1")
    for function in named.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(repeat):
        for name, function in named.items():
            seconds[name].append(timed(comm, function, repeat=1))
    return [
        Row(
            {"ranks": comm.size, **labels, **({by: name} if name else {})},
            float(np.median(runs)),
            min(runs),
            max(runs),
        )
        for name, runs in seconds.items()
    ]
