"""How long a message takes: Hockney's line, one of it for each regime, and fits of both.

Hockney (1994), "The communication challenge for MPP: Intel Paragon and Meiko CS-2": a message of m bytes
takes α + βm seconds. α is the latency; 1/β the bandwidth; half of that is reached at α/β bytes.

    seconds │             ／      A real machine has regimes: short messages are copied at once, long ones
            │          ／         wait for their receiver, and those that no cache holds move at the speed
          α │──────＇             of memory. `Piecewise` has a line for each.
            └─────────────── bytes

Fits minimise *ratios* of predicted to measured: 1 µs is much for 4 bytes, and nothing for 64 MiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Sequence[float] | Floats
REWEIGHTINGS = 30


@dataclass(frozen=True, slots=True)
class Hockney:
    """A machine in three numbers; `gamma` is what it costs to add a received byte to an own one."""

    alpha_seconds: float
    beta_seconds_per_byte: float
    gamma_seconds_per_byte: float = 0.0

    def one_way_seconds(self, nbytes: float) -> float:
        """Of a message of `nbytes`."""
        return self.alpha_seconds + self.beta_seconds_per_byte * nbytes

    def exchange_seconds(self, nbytes: float) -> float:
        """The same, when a message as long comes back meanwhile: the model's links have two lanes."""
        return self.one_way_seconds(nbytes)

    def sum_seconds(self, nbytes: float) -> float:
        """Of adding `nbytes` that were received."""
        return self.gamma_seconds_per_byte * nbytes

    def copy_seconds(self, nbytes: float) -> float:
        """Of copying within a rank: the model takes it for nothing."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Piecewise:
    """A line for each regime of sizes, which ends at its limit; the last limit is infinite."""

    limits_nbytes: tuple[float, ...]
    lines: tuple[Hockney, ...]

    def seconds(self, nbytes: float) -> float:
        """Of `nbytes`, by the line of their regime."""
        regime = next(i for i, limit in enumerate(self.limits_nbytes) if nbytes <= limit)
        return self.lines[regime].one_way_seconds(nbytes)


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """What two ranks of a real machine need for each thing that a collective does, by size."""

    one_way: Piecewise
    exchange: Piecewise
    sum: Piecewise
    copy: Piecewise

    def one_way_seconds(self, nbytes: float) -> float:
        """Of a message of `nbytes`, while nothing comes back."""
        return self.one_way.seconds(nbytes)

    def exchange_seconds(self, nbytes: float) -> float:
        """Of sending `nbytes` and receiving as many at the same time."""
        return self.exchange.seconds(nbytes)

    def sum_seconds(self, nbytes: float) -> float:
        """Of adding `nbytes` that were received, while the other rank adds too."""
        return self.sum.seconds(nbytes)

    def copy_seconds(self, nbytes: float) -> float:
        """Of copying `nbytes` within a rank, while the other rank copies too."""
        return self.copy.seconds(nbytes)


def fit_hockney(nbytes: Numbers, seconds: Numbers) -> Hockney:
    """The line with the least sum of |log(predicted / measured)|; neither α nor β is below 0.

    Twice and half as long are equally wrong, and a few wild measurements do not move the line: their
    logarithms count as they are, not squared. Needs two different sizes; raises ValueError for sizes below
    0, times that are not above 0, and lists of unequal length.
    """
    sizes, times = _checked(nbytes, seconds)
    weights, scale = np.ones_like(times), times
    lines = []
    for _ in range(REWEIGHTINGS):  # squares of differences, weighted until they are absolute logarithms
        line = _least_squares(sizes, times, weights / scale)
        said = np.maximum(_seconds(line, sizes), 1e-30)
        lines.append((_loss(line, sizes, times), line))
        scale = np.sqrt(times * said)
        weights = 1 / np.sqrt(np.maximum(np.abs(said - times) / scale, 1e-9))
    alpha, beta = min(lines)[1]
    return Hockney(alpha, beta)


def fit_piecewise(nbytes: Numbers, seconds: Numbers, regimes: int = 3) -> Piecewise:
    """Up to `regimes` lines, and where they change, that together miss least, as `fit_hockney` counts.

    Every line has three different sizes or more, as far as there are. Raises ValueError as `fit_hockney`.
    """
    sizes, times = _checked(nbytes, seconds)
    order = np.lexsort((times, sizes))
    sizes, times, different = sizes[order], times[order], np.unique(sizes)

    @cache
    def fit(first: int, end: int) -> tuple[float, Hockney]:
        """The line of the sizes from the `first` to before the `end`, and what it misses by."""
        chosen = (sizes >= different[first]) & (sizes <= different[end - 1])
        line = fit_hockney(sizes[chosen], times[chosen])
        found = line.alpha_seconds, line.beta_seconds_per_byte
        return _loss(found, sizes[chosen], times[chosen]), line

    ways = _ways_to_cut(len(different), max(1, min(regimes, len(different) // 3)))
    cuts = min(ways, key=lambda cuts: sum(fit(*part)[0] for part in pairwise(cuts)))
    limits = [float(different[cut - 1]) for cut in cuts[1:-1]]
    return Piecewise((*limits, float("inf")), tuple(fit(*part)[1] for part in pairwise(cuts)))


def _checked(nbytes: Numbers, seconds: Numbers) -> tuple[Floats, Floats]:
    sizes, times = np.asarray(nbytes, float), np.asarray(seconds, float)
    if sizes.ndim != 1 or sizes.shape != times.shape:
        raise ValueError(f"{sizes.size} sizes and {times.size} times; give a time for each size")
    if not (np.isfinite(sizes) & (sizes >= 0)).all() or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("a size is below 0 or a time not above 0; give bytes and seconds as measured")
    if len(np.unique(sizes)) < 2:
        raise ValueError("a line needs two different sizes; measure a short and a long message")
    return sizes, times


def _least_squares(sizes: Floats, times: Floats, weights: Floats) -> tuple[float, float]:
    """α and β, not below 0, with the least squares of weighted differences."""
    longest = max(1.0, float(sizes.max()))  # keeps both columns of like size
    columns = np.stack([weights, weights * sizes / longest], axis=1)
    alpha, beta = np.linalg.lstsq(columns, weights * times, rcond=None)[0].tolist()
    if alpha < 0 or beta < 0:  # then the best line is level, or passes through the origin
        kept = 1 if alpha < 0 else 0
        column = columns[:, kept]
        alone = float(column @ (weights * times) / (column @ column))
        alpha, beta = (0.0, alone) if kept else (alone, 0.0)
    return alpha, beta / longest


def _seconds(line: tuple[float, float], sizes: Floats) -> Floats:
    return line[0] + line[1] * sizes


def _loss(line: tuple[float, float], sizes: Floats, times: Floats) -> float:
    return float(np.abs(np.log(np.maximum(_seconds(line, sizes), 1e-30) / times)).sum())


def _ways_to_cut(length: int, parts: int, least: int = 3) -> list[tuple[int, ...]]:
    """Where `parts` runs of `least` or more of `length` things begin and end; a single run is all of them."""
    if parts == 1:
        return [(0, length)]
    inner = combinations(range(least, length - least + 1), parts - 1)
    ways = [(0, *cuts, length) for cuts in inner]
    return [cuts for cuts in ways if all(b - a >= least for a, b in pairwise(cuts))]
