"""What fusing gradients brings, as plain data, which the kernel reads without MPI."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fusion:
    """How many messages a fusion threshold of `limit` bytes leaves per step, and their seconds in all."""

    limit: int
    messages: int
    seconds: float
