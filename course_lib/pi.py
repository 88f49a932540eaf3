"""π by throwing darts: the course's hello world, alone and with a communicator.

A point drawn evenly from the square [-1, 1]² falls into the circle x² + y² ≤ 1 with probability π/4, so
4 · inside / samples estimates π. Samples are independent, hence ranks need no communication but one
sum at the end: the simplest parallel program there is. Two things can still go wrong: ranks that draw
the *same* points, and counts that no longer fit their integer.

NumPy draws coordinates of 16 bits, in chunks that stay in the core's cache. Memory does not grow with the
samples, and the test for the circle is exact. The price is a grid in place of a continuum; its own π can be
counted, and no run that we can afford sees the difference. Streams are spawned from one `SeedSequence`,
which hashes seed and rank (NumPy's manual, "Parallel random number generation").

`sample` is the loop of the ODSC article that the course starts from (Davis 2022, "Large Scale Deep
Learning Using the High-Performance Computing Libraries OpenMPI and DeepSpeed"), with its undefined
variable repaired; `count_inside` draws the same points with NumPy; `estimate_pi` shares them out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # importing mpi4py.MPI starts MPI, and one process can do without it
    from mpi4py import MPI


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
