"""The results of lesson 06 as plain data, which the kernel reads without MPI."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """A training: ranks, seconds per step, loss of each batch, test accuracy, whether the replicas agree."""

    ranks: int
    seconds: float
    losses: tuple[float, ...]
    accuracy: float
    agree: bool


@dataclass(frozen=True, slots=True)
class Fusion:
    """How many messages a fusion threshold of `limit` bytes leaves per step, and their seconds in all."""

    limit: int
    messages: int
    seconds: float
