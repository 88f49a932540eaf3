"""How deep a model may be before its training no longer fits into the memory of its ranks."""

from collections.abc import Sequence

from course.lessons.shared.memory_limit import MIB, Fit, fits, layer_bytes

TIMEOUT = 200.0  # seconds of a job; on a busy machine its ranks take long to import torch


def deepest(ranks: int, limit_mib: int, guess: int) -> list[Fit]:
    """What was tried, in order of depth: the last model that trained, and the first that did not.

    `guess` is the number of layers to try first, at least one per rank. Each try starts a job. Raises
    ValueError if not even one layer per rank can be trained, OSError where memory cannot be limited.
    """
    found = fits(ranks, limit_mib, layers=max(guess, ranks), timeout=TIMEOUT)
    while True:
        other = found.layers + (1 if found.trained else -1)
        if other < ranks:
            raise ValueError(f"{limit_mib} MiB are too few for one layer per rank; allow more")
        following = fits(ranks, limit_mib, layers=other, timeout=TIMEOUT)
        if following.trained != found.trained:
            return sorted((found, following), key=lambda fit: fit.layers)
        found = following


def boundary(ranks: Sequence[int], limit_mib: int) -> list[Fit]:
    """For each number of ranks, the deepest model that trains, and the next one, which does not."""
    per_rank = limit_mib * MIB // layer_bytes()
    found: list[Fit] = []
    for n in ranks:
        found += deepest(n, limit_mib, n * per_rank)
        per_rank = found[-2].layers // n
    return found
