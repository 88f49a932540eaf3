"""What NumPy gains and what ranks gain: 10⁸ darts against the article's loop of pure Python.

The loop takes most of a minute for 10⁸ darts, so it throws 10⁷ and its time is scaled by 10 (with
`--quick` 10⁶ and 100); it is linear in the darts. Everything else is measured at full size.

    python -m benchmarks.pi [--quick] [--json FILE]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Row, Timing, main, on_ranks, row, time_alternately
from course_lib.pi import count_inside, estimate_pi, rank_stream, sample

if TYPE_CHECKING:
    from mpi4py import MPI

DARTS, RANKS = 10**8, 2


def race(comm: MPI.Intracomm, loop_darts: int, repetitions: int) -> dict[str, tuple[float, float]]:
    """Median and spread in seconds of the loop and of NumPy on rank 0 alone, and of all ranks together."""

    def loop() -> None:
        if comm.rank == 0:
            sample(loop_darts)

    def numpy() -> None:
        if comm.rank == 0:
            count_inside(rank_stream(1, 0, 1), DARTS)

    def ranks() -> None:
        estimate_pi(comm, DARTS, seed=1)

    contenders = {"loop": loop, "numpy": numpy, "ranks": ranks}
    timings = time_alternately(contenders, repetitions=repetitions, comm=comm)
    return {name: (timing.median, timing.spread) for name, timing in timings.items()}


def measure(quick: bool) -> list[Row]:
    """Three rows: NumPy's share, the ranks' share, both together."""
    loop_darts, repetitions = (10**6, 3) if quick else (10**7, 5)
    result = on_ranks(RANKS, race, loop_darts=loop_darts, repetitions=repetitions)
    loop, numpy, together = (Timing(*result[name]) for name in ("loop", "numpy", "ranks"))
    loop = loop.times(DARTS / loop_darts)
    scaled = f"the article's loop, scaled from {loop_darts:,} darts"
    return [
        row("NumPy's share: NumPy for the loop", 1, numpy, loop, scaled),
        row(f"the ranks' share: {RANKS} ranks for 1", RANKS, together, numpy, "NumPy on 1 rank"),
        row(f"both: NumPy on {RANKS} ranks for the loop", RANKS, together, loop, scaled),
    ]


if __name__ == "__main__":
    main("Monte Carlo π, 10⁸ darts: what NumPy gains and what ranks gain", measure)
