"""By how much NumPy, ranks and a better formula speed π up.

Darts: the article's loop of pure Python against NumPy, one rank against two. The loop takes most of a minute
for 10⁸ darts, so it throws 10⁷ and its time is scaled by 10 (with `--quick` 10⁶ and 100); it is linear in the
darts. Everything else is measured at the size that its row says.

Terms and strips: the loops against NumPy (scaled likewise), and one rank against two with NumPy.

    python -m benchmarks.pi [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row, time_alternately
from course_lib.pi import (
    arctan_loop,
    arctan_part,
    arctan_pi,
    count_inside,
    estimate_pi,
    midpoint_loop,
    midpoint_part,
    midpoint_pi,
    rank_stream,
    sample,
    sum_on_root,
)

if TYPE_CHECKING:
    from mpi4py import MPI

DARTS, TERMS, STRIPS, RANKS = 10**8, 10**8, 10**7, 2
Timings = dict[str, tuple[float, float]]


def only_on_root(comm: MPI.Intracomm, work: Callable[[], object]) -> Callable[[], None]:
    """`work` for rank 0; the others wait at the barrier that follows."""

    def contender() -> None:
        if comm.rank == 0:
            work()

    return contender


def race(comm: MPI.Intracomm, loop_darts: int, loop_terms: int, strips: int, repetitions: int) -> Timings:
    """Median and spread in seconds of each, on rank 0 alone and on all ranks together."""
    alone: dict[str, Callable[[], object]] = {
        "darts: loop": lambda: sample(loop_darts),
        "darts: numpy": lambda: count_inside(rank_stream(1, 0, 1), DARTS),
        "arctan: loop": lambda: arctan_loop(loop_terms),
        "arctan: numpy": lambda: arctan_part(TERMS),
        "midpoint: loop": lambda: midpoint_loop(loop_terms),
        "midpoint: numpy": lambda: midpoint_part(TERMS),
        "strips: loop": lambda: midpoint_loop(strips),
    }
    together: dict[str, Callable[[], object]] = {
        "darts: ranks": lambda: estimate_pi(comm, DARTS, seed=1),
        "arctan: ranks": lambda: arctan_pi(comm, TERMS),
        "midpoint: ranks": lambda: midpoint_pi(comm, TERMS),
        "strips: ranks": lambda: sum_on_root(comm, midpoint_loop(strips, comm.rank, comm.size)),
    }
    contenders = {name: only_on_root(comm, work) for name, work in alone.items()} | together
    timings = time_alternately(comm, contenders, repetitions=repetitions)
    return {name: (timing.median, timing.spread) for name, timing in timings.items()}


def measure(quick: bool) -> list[Row]:
    """NumPy's share, the ranks' share and both together, of each way to π; then loops on ranks."""
    loop_darts, loop_terms, repetitions = (10**6, 10**6, 3) if quick else (10**7, 10**7, 5)
    sizes: dict[str, Any] = {"loop_darts": loop_darts, "loop_terms": loop_terms, "repetitions": repetitions}
    strips = STRIPS // 10 if quick else STRIPS
    found = on_ranks(RANKS, race, timeout=900, strips=strips, **sizes)
    time = {name: Timing(*values) for name, values in found.items()}
    scales = {"darts": DARTS / loop_darts, "arctan": TERMS / loop_terms, "midpoint": TERMS / loop_terms}
    loops = {"darts": "the article's loop", "arctan": "the loop", "midpoint": "the loop"}
    rows = []
    for way, scale in scales.items():
        loop = time[f"{way}: loop"].times(scale)
        scaled = f"{loops[way]}, scaled by {scale:g}"
        numpy, together = time[f"{way}: numpy"], time[f"{way}: ranks"]
        rows += [
            row(f"{way}, NumPy's share: NumPy for the loop", 1, numpy, loop, scaled),
            row(f"{way}, the ranks' share: {RANKS} ranks for 1", RANKS, together, numpy, "NumPy on 1 rank"),
            row(f"{way}, both: NumPy on {RANKS} ranks for the loop", RANKS, together, loop, scaled),
        ]
    what = f"{strips:,} strips, pure Python"
    serial, resident = time["strips: loop"], time["strips: ranks"]
    return [
        *rows,
        row(f"{what}: {RANKS} ranks for 1", RANKS, resident, serial, "the same loop, 1 process"),
    ]


if __name__ == "__main__":
    main("π from 10⁸ darts, terms and strips: the speed-ups of NumPy and ranks", measure)
