"""π three ways: the course's hello world, alone and with a communicator.

    throw darts       4 · inside / samples            off by 1.64/√N typically    `estimate_pi`
    arctan series     4 · (1 - 1/3 + 1/5 - …)         off by 1/N                  `arctan_pi`
    midpoint rule     the area under 4/(1 + x²)       off by 1/(12 N²)            `midpoint_pi`

Each exists as a loop, as the course's sources wrote it (with their mistakes repaired), with NumPy, and
distributed over ranks. No part of the work needs another part, so the ranks communicate once, to add up their
results: the simplest parallel programs there are. Two things can still go wrong: ranks that do the *same*
work, and counts that overflow their integer. Counts are 64-bit, and NumPy works in blocks that stay in the
core's cache, so memory does not grow with N.

Darts: NumPy draws 16-bit coordinates, and the test for the circle is exact. So the darts land on a grid
instead of a continuum. The grid's own π can be counted; it differs from π by less than any run that we can
afford would show. Streams are spawned from one `SeedSequence`, which hashes seed and rank (NumPy's manual,
"Parallel random number generation"). Terms: rank r of n adds up the terms r, r + n, r + 2n, …

Sources: `sample` and `midpoint_loop` are from Davis (2022), "Large Scale Deep Learning Using the
High-Performance Computing Libraries OpenMPI and DeepSpeed", the second out of the demos of mpi4py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # importing mpi4py.MPI starts MPI, and one process can do without it
    from mpi4py import MPI

# ------------------------------------------------------------------ darts


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of π from `samples` darts, `inside` of them in the circle, thrown by `ranks` ranks."""

    estimate: float
    standard_error: float
    inside: int
    samples: int
    ranks: int

    @classmethod
    def from_count(cls, inside: int, samples: int, ranks: int) -> Estimate:
        """The estimate when `inside` of `samples` darts are in the circle."""
        return cls(4 * inside / samples, standard_error(samples), inside, samples, ranks)


def standard_error(samples: int) -> float:
    """The typical distance from π after N = `samples` darts: 4 √(p(1-p)/N) with p = π/4, which is 1.64/√N."""
    return math.sqrt(math.pi * (4 - math.pi) / samples)


def sample(num_samples: int) -> int:
    """Throw `num_samples` darts at the square; return how many land inside the circle."""
    num_inside = 0
    for _ in range(num_samples):
        x, y = random.uniform(-1, 1), random.uniform(-1, 1)
        if math.hypot(x, y) <= 1:
            num_inside += 1
    return num_inside


def count_inside(stream: np.random.Generator, samples: int) -> int:
    """Throw `samples` darts at the square; return how many land inside the circle.

    They land on a grid of 65 536 × 65 536 points, whose own π is 9e-7 too small: less than the standard
    error of 3 · 10¹² darts.
    """
    chunk, radius = 2**14, 2**15
    inside = 0
    for start in range(0, samples, chunk):
        shape = (2, min(chunk, samples - start))
        x, y = stream.integers(-radius, radius, size=shape, dtype=np.int16).astype(np.int32)
        inside += int(np.count_nonzero(y * y <= radius**2 - x * x))  # fits 32 bits; x² + y² does not
    return inside


def rank_stream(seed: int, rank: int, size: int) -> np.random.Generator:
    """A random generator for one of `size` ranks: independent of the others', the same in every run."""
    child = np.random.SeedSequence(seed).spawn(size)[rank]
    return np.random.Generator(np.random.SFC64(child))  # the fastest that NumPy has


def share(total: int, rank: int, size: int) -> int:
    """How many of `total` items this rank takes: total // size, and one more on the first ranks."""
    return total // size + (rank < total % size)


def estimate_pi(comm: MPI.Intracomm, samples: int, *, seed: int) -> Estimate | None:
    """π from `samples` darts that the ranks of `comm` throw together: on rank 0, None elsewhere.

    One Reduce of 8 bytes per rank, however many darts. Counts have 64 bits: 32 would overflow at 2³¹ darts.
    Raises ValueError for fewer than one dart.
    """
    if samples < 1:
        raise ValueError(f"{samples} samples give no estimate; throw at least 1 dart")
    stream = rank_stream(seed, comm.rank, comm.size)
    inside = np.array(count_inside(stream, share(samples, comm.rank, comm.size)), dtype=np.int64)
    total = np.zeros_like(inside)
    comm.Reduce(inside, total)  # adds up on rank 0
    return Estimate.from_count(int(total), samples, comm.size) if comm.rank == 0 else None


# ------------------------------------------------------------------ terms in strides


def strided_blocks(total: int, rank: int, size: int, block: int = 2**14) -> Iterator[np.ndarray]:
    """Yield this rank's numbers below `total`, which are rank, rank + size, rank + 2·size and so on.

    They come in arrays of at most `block` numbers, so that NumPy's results stay in the core's cache.
    """
    for first in range(rank, total, size * block):
        yield np.arange(first, min(first + size * block, total), size, dtype=np.int64)


def sum_on_root(comm: MPI.Intracomm, part: float) -> float | None:
    """The sum of every rank's `part`: on rank 0, None elsewhere. One Reduce of 8 bytes per rank."""
    mine = np.array(part, dtype=np.float64)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total)
    return float(total) if comm.rank == 0 else None


# ------------------------------------------------------------------ the arctan series


def arctan_loop(terms: int, rank: int = 0, size: int = 1) -> float:
    """Add up the terms of rank `rank` of `size`, one by one; by default all of them."""
    total = 0.0
    for k in range(rank, terms, size):
        total += (-1) ** k * 4 / (2 * k + 1)
    return total


def arctan_part(terms: int, rank: int = 0, size: int = 1) -> float:
    """Add up the terms of rank `rank` of `size` with NumPy; by default all of them, which gives π."""
    total = 0.0
    for k in strided_blocks(terms, rank, size):
        signs = 1.0 - 2.0 * (k & 1)  # minus where k is odd
        total += float(np.sum(4.0 * signs / (2.0 * k + 1.0)))
    return total


def arctan_pi(comm: MPI.Intracomm, terms: int) -> float | None:
    """π from the first `terms` terms of the series, distributed over `comm`: on rank 0, None elsewhere.

    Raises ValueError for fewer than one term.
    """
    _at_least_one(terms, "terms")
    return sum_on_root(comm, arctan_part(terms, comm.rank, comm.size))


# ------------------------------------------------------------------ the midpoint rule


def midpoint_loop(strips: int, rank: int = 0, size: int = 1) -> float:
    """Add up the strips of rank `rank` of `size` under 4/(1 + x²), one by one; by default all of them."""
    h, s = 1.0 / strips, 0.0
    for i in range(rank, strips, size):
        x = h * (i + 0.5)
        s += 4.0 / (1.0 + x**2)
    return s * h


def midpoint_part(strips: int, rank: int = 0, size: int = 1) -> float:
    """This rank's part of the area under 4/(1 + x²) from 0 to 1; the parts of all ranks add up to π."""
    h, area = 1.0 / strips, 0.0
    for i in strided_blocks(strips, rank, size, block=2**13):
        x = h * (i + 0.5)  # the middle of strip i
        area += h * float(np.sum(4.0 / (1.0 + x * x)))
    return area


def midpoint_pi(comm: MPI.Intracomm, strips: int) -> float | None:
    """π from `strips` strips, distributed over `comm`: on rank 0, None elsewhere.

    Raises ValueError for fewer than one strip.
    """
    _at_least_one(strips, "strips")
    return sum_on_root(comm, midpoint_part(strips, comm.rank, comm.size))


def _at_least_one(number: int, of_what: str) -> None:
    """All ranks check the same number before they communicate, so all raise or none does."""
    if number < 1:
        raise ValueError(f"{number} {of_what} give no estimate; add up at least 1")
