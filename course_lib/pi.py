"""π three ways: the course's hello world, alone and with a communicator.

    throw darts       4 · inside / samples            off by 1.64/√N typically    `estimate_pi`
    arctan series     4 · (1 - 1/3 + 1/5 - …)         off by 1/N                  `arctan_pi`
    midpoint rule     the area under 4/(1 + x²)       off by 1/(12 N²)            `midpoint_pi`

Each is there as a loop, as the course's sources wrote it (with their mistakes repaired), with NumPy, and
shared out among ranks. No part of the work needs another, so ranks need no communication but one sum at the
end: the simplest parallel programs there are. Two things can still go wrong: ranks that do the *same* work,
and counts that no longer fit their integer. Counts are 64-bit, and NumPy works in blocks that stay in the
core's cache: memory does not grow with N.

Darts: NumPy draws coordinates of 16 bits, and the test for the circle is exact. The price is a grid in place
of a continuum; its own π can be counted, and no run that we can afford sees the difference. Streams are
spawned from one `SeedSequence`, which hashes seed and rank (NumPy's manual, "Parallel random number
generation"). Terms: rank r of n adds up the terms r, r + n, r + 2n, …, of as many as there are.

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

BLOCK = 2**14  # numbers that NumPy handles in one call: few enough for the cache, enough to forget the call


# ------------------------------------------------------------------ darts


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `samples` darts thrown by `ranks` ranks say about π; `standard_error` is the theory's."""

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
    """The typical error of π after `samples` darts: 4 √(p(1-p)/N) with p = π/4, that is 1.64/√N."""
    return math.sqrt(math.pi * (4 - math.pi) / samples)


def sample(num_samples: int) -> int:
    """How many of `num_samples` random points of the square fall into its circle: the article's loop."""
    num_inside = 0
    for _ in range(num_samples):
        x, y = random.uniform(-1, 1), random.uniform(-1, 1)
        if math.hypot(x, y) <= 1:
            num_inside += 1
    return num_inside


def count_inside(stream: np.random.Generator, samples: int) -> int:
    """How many of `samples` random points of the square fall into its circle.

    The π of their grid, 65 536 points wide, is 9e-7 too small: less than the error of up to 3 · 10¹² samples.
    """
    chunk, radius = 2**14, 2**15
    inside = 0
    for start in range(0, samples, chunk):
        shape = (2, min(chunk, samples - start))
        x, y = stream.integers(-radius, radius, size=shape, dtype=np.int16).astype(np.int32)
        inside += int(np.count_nonzero(y * y <= radius**2 - x * x))  # fits 32 bits; x² + y² does not
    return inside


def rank_stream(seed: int, rank: int, size: int) -> np.random.Generator:
    """The random numbers of one rank of `size`: independent of every other rank's, the same in every run."""
    child = np.random.SeedSequence(seed).spawn(size)[rank]
    return np.random.Generator(np.random.SFC64(child))  # the fastest that NumPy has


def share(total: int, rank: int, size: int) -> int:
    """How many of `total` items are this rank's: total // size, and one more for the first ranks."""
    return total // size + (rank < total % size)


def estimate_pi(comm: MPI.Intracomm, samples: int, *, seed: int) -> Estimate | None:
    """π from `samples` darts thrown by the ranks of `comm` together: on rank 0, None elsewhere.

    One Reduce of 8 bytes a rank, however many darts there are. Counts are 64-bit: 2³¹ darts overflow 32.
    """
    if samples < 1:
        raise ValueError(f"{samples} samples give no estimate; throw at least 1 dart")
    stream = rank_stream(seed, comm.rank, comm.size)
    inside = np.array(count_inside(stream, share(samples, comm.rank, comm.size)), dtype=np.int64)
    total = np.zeros_like(inside)
    comm.Reduce(inside, total)  # adds up on rank 0
    return Estimate.from_count(int(total), samples, comm.size) if comm.rank == 0 else None


# ------------------------------------------------------------------ terms, dealt out in strides


def strided_blocks(total: int, rank: int = 0, size: int = 1) -> Iterator[np.ndarray]:
    """The numbers below `total` that are this rank's: rank, rank + size, rank + 2·size, …

    In order, as arrays of int64 with at most 2¹⁴ numbers each; no array at all for a rank past the end.
    """
    for first in range(rank, total, size * BLOCK):
        yield np.arange(first, min(first + size * BLOCK, total), size, dtype=np.int64)


def sum_on_root(comm: MPI.Intracomm, part: float) -> float | None:
    """The sum of every rank's `part`: on rank 0, None elsewhere. One Reduce of 8 bytes a rank."""
    mine = np.array(part, dtype=np.float64)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total)
    return float(total) if comm.rank == 0 else None


# ------------------------------------------------------------------ the arctan series


def arctan_error(terms: int) -> float:
    """How far the first `terms` terms are from π, to first order: 1/N. After an odd number they are above.

    The sum jumps over π with every term, and lands half a term behind it. The next order is 1/(4 N³).
    """
    return 1 / terms


def arctan_term(k: int) -> float:
    """Term k of π = 4 arctan(1) = 4 - 4/3 + 4/5 - …, counted from 0."""
    return (-1) ** k * 4 / (2 * k + 1)


def arctan_loop(terms: int, rank: int = 0, size: int = 1) -> float:
    """The terms of rank `rank` of `size`, added up one by one; by default all of them."""
    total = 0.0
    for k in range(rank, terms, size):
        total += arctan_term(k)
    return total


def arctan_part(terms: int, rank: int = 0, size: int = 1) -> float:
    """The terms of rank `rank` of `size`, added up with NumPy; by default all of them, which is π."""
    total = 0.0
    for k in strided_blocks(terms, rank, size):
        signs = 1.0 - 2.0 * (k & 1)  # minus where k is odd
        total += float(np.sum(4.0 * signs / (2.0 * k + 1.0)))
    return total


def arctan_pi(comm: MPI.Intracomm, terms: int) -> float | None:
    """π from the first `terms` terms of the series, shared out among `comm`: on rank 0, None elsewhere."""
    _at_least_one(terms, "terms")
    return sum_on_root(comm, arctan_part(terms, comm.rank, comm.size))


# ------------------------------------------------------------------ the midpoint rule


def midpoint_error(intervals: int) -> float:
    """How far above π the midpoint rule with `intervals` intervals is, to leading order: 1/(12 N²).

    h²/24 · (f'(0) - f'(1)), with f = 4/(1 + x²), f'(0) = 0 and f'(1) = -2. The next order is N⁻⁶: f''' is 0
    at both ends.
    """
    return 1 / (12 * intervals**2)


def midpoint_loop(intervals: int, rank: int = 0, size: int = 1) -> float:
    """The area under 4/(1 + x²) of rank `rank` of `size`: a strip for every interval, one by one."""
    h, s = 1.0 / intervals, 0.0
    for i in range(rank, intervals, size):
        x = h * (i + 0.5)
        s += 4.0 / (1.0 + x**2)
    return s * h


def midpoint_part(intervals: int, rank: int = 0, size: int = 1) -> float:
    """The strips of rank `rank` of `size`, added up with NumPy; by default all of them, which is π."""
    h, s = 1.0 / intervals, 0.0
    for i in strided_blocks(intervals, rank, size):
        x = h * (i + 0.5)
        s += float(np.sum(4.0 / (1.0 + x * x)))
    return s * h


def midpoint_pi(comm: MPI.Intracomm, intervals: int) -> float | None:
    """π from `intervals` strips, shared out among `comm`: on rank 0, None elsewhere."""
    _at_least_one(intervals, "intervals")
    return sum_on_root(comm, midpoint_part(intervals, comm.rank, comm.size))


def _at_least_one(number: int, of_what: str) -> None:
    """All ranks check the same number before they communicate, so all raise or none does."""
    if number < 1:
        raise ValueError(f"{number} {of_what} give no estimate; add up at least 1")
