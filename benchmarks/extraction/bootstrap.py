"""How sure a difference between two systems is that were scored on the same articles: a paired bootstrap.

    differences (N) → draw N of them with replacement → their mean, again and again → the middle 95 % of means

The two systems are compared article by article, so what makes an article hard for both cancels. Koehn,
"Statistical Significance Tests for Machine Translation Evaluation" (2004).
"""

import numpy as np
from numpy.typing import NDArray

DRAWN_TOGETHER = 500


def mean_interval(
    differences: NDArray[np.floating], *, share: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The interval that holds the middle `share` of the means of resampled `differences` (N)."""
    if not len(differences):
        raise ValueError("no article was scored, so there is no interval; give at least one difference")
    rng, means = np.random.default_rng(seed), list[float]()
    while len(means) < resamples:
        rows = min(DRAWN_TOGETHER, resamples - len(means))
        drawn = rng.integers(len(differences), size=(rows, len(differences)))
        means += differences[drawn].mean(axis=1).tolist()
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
